"""The judge: every oracle's findings and the way the run ended -> one verdict.

The stated order: ``error`` before everything; then the earliest violation, on a tie in the order
of REGISTRY; then ``deadlock``, ``crash``, ``hang``, ``degraded``, ``ok``. A violation of a later
step than the one in which the run got stuck or broke is a consequence and overrides nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from testbed.analysis import standing
from testbed.analysis.sides import named, singled_out
from testbed.analysis.view import RankView, View
from testbed.model.errors import BadInput, brief
from testbed.model.events import (
    Block,
    Complete,
    Enter,
    Evict,
    Query,
    Request,
    Start,
    Sync,
    Take,
)
from testbed.model.record import RunRecord
from testbed.model.verdict import Divergence, Finding, Outcome, Verdict
from testbed.oracles import (
    agreement,
    bounded,
    budget,
    conservation,
    integrity,
    pairing,
    prefix,
    progress,
    safety,
    stage_local,
)
from testbed.oracles.counts import counts
from testbed.oracles.endings import ending
from testbed.oracles.injected import injected
from testbed.oracles.scripted import scripted

Oracle = Callable[[View], Iterable[Finding]]

INJECTED, SCRIPTED = "injected: ", "scripted: "
"""How notes begin that tell what the scenario did by then: its faults, its ``calls``."""

NOTHING = "nothing was recorded: no operation and no transfer"
"""Summary of a run that proves nothing."""

_NOTHING_NOTE = (
    "no rank made an operation that the recorder knows, and no transfer: this run proves nothing"
)
_WHOLE = "left a whole record"

_MODULES = (
    pairing,
    agreement,
    safety,
    stage_local,
    conservation,
    integrity,
    budget,
    bounded,
    progress,
)
REGISTRY: dict[str, Oracle] = {module.NAME: module.check for module in _MODULES}
"""Oracle name -> its check, in the order that decides between findings of the same step."""


def available() -> dict[str, str]:
    """Oracle name -> what it holds, in one line."""
    return {
        module.NAME: (module.__doc__ or "").splitlines()[0].removeprefix(f"{module.NAME}: ")
        for module in _MODULES
    }


def check_claims(claims: Iterable[str]) -> None:
    """Raises BadInput for a claim no oracle knows: ``stage-local`` or ``budget:<protocol>``."""
    known = [stage_local.NAME, *(budget.CLAIM + protocol for protocol in budget.PROTOCOLS)]
    for claim in claims:
        if claim not in known:
            raise BadInput(f"claim {brief(claim)} is unknown: give any of {', '.join(known)}")


def judge(record: RunRecord, registry: Mapping[str, Oracle] = REGISTRY) -> Verdict:
    """The verdict on one record: ``error`` if it is no evidence, or if an oracle raises. Where a
    log was full, a violation in the steps before that counts all the same.
    """
    whole = None if record.trouble else prefix.whole_steps(record)
    if whole is not None:
        verdict = judge(whole, registry)
        if verdict.outcome is Outcome.VIOLATION:
            return replace(verdict, notes=(prefix.told(record), *verdict.notes))
    view = View(record)
    numbers = counts(view)
    troubles = _troubles(view)
    findings: list[Finding] = []
    for name, oracle in () if troubles else registry.items():
        try:
            findings += _checked(name, oracle(view))
        # Whatever an oracle raises must show as ``error``: neither a crash of the suite nor a pass.
        except Exception as error:  # noqa: BLE001
            troubles.append(f"oracle {name} failed: {type(error).__name__}: {error}")
    if troubles:
        return Verdict(
            Outcome.ERROR,
            troubles[0],
            first_divergence=_no_evidence(view),
            findings=tuple(findings),
            notes=tuple(troubles[1:]),
            ops=numbers,
        )
    order = {name: place for place, name in enumerate(registry)}
    findings.sort(key=lambda finding: (finding.step, order[finding.oracle]))
    verdict = _weigh(view, tuple(findings), numbers)
    first = verdict.first_divergence
    told = [f"{INJECTED}{one.told()}" for one in injected(view, first)]
    told += [f"{SCRIPTED}{one.told()}" for one in scripted(view, first)]
    return replace(verdict, notes=(*told, *verdict.notes))


def _checked(name: str, findings: Iterable[Finding]) -> list[Finding]:
    found = list(findings)
    for finding in found:
        if finding.oracle != name:
            raise ValueError(f"a finding says it is of oracle {finding.oracle!r}")
        if finding.outcome not in (Outcome.VIOLATION, Outcome.DEGRADED):
            raise ValueError(f"a finding has the outcome {finding.outcome}")
    return found


def _weigh(view: View, findings: tuple[Finding, ...], numbers: dict[str, object]) -> Verdict:
    end = ending(view)
    notes = (*(end.notes if end else ()), *_unfired(view))
    violations = [one for one in findings if one.outcome is Outcome.VIOLATION]
    first = violations[0] if violations else None
    if first is not None and (end is None or first.step <= end.until):
        if end is not None:
            notes = (f"then {end.outcome}: {end.summary}", *notes)
        return _from_finding(first, findings, notes, numbers)
    if end is not None:
        later = tuple(f"after that, {one.oracle}: {one.summary}" for one in violations)
        return Verdict(
            end.outcome,
            end.summary,
            step=end.step,
            ranks=end.ranks,
            first_divergence=end.divergence,
            findings=findings,
            notes=notes + later,
            ops=numbers,
        )
    if findings:
        return _from_finding(findings[0], findings, notes, numbers)
    if not _recorded_anything(view):
        return Verdict(Outcome.OK, NOTHING, notes=(*notes, _NOTHING_NOTE), ops=numbers)
    return Verdict(Outcome.OK, "every oracle holds", notes=notes, ops=numbers)


def _recorded_anything(view: View) -> bool:
    """Whether any rank left something that can be right or wrong. A run without is ``ok``, since
    nobody did anything wrong and an idle run is what a sound program may do, but it says so.
    """
    kinds = (Enter, Start, Sync, Complete, Block, Take, Evict, Request, Query)
    return any(
        isinstance(event, kinds) for rank in view.ranks.values() for event in rank.record.events
    )


def _no_evidence(view: View) -> Divergence:
    """Of a run that is no evidence: what each rank left behind, the ranks without a whole record
    singled out.
    """
    did = {rank.rank: _left(view, rank) for rank in view.ranks.values()}
    missing = [rank for rank in range(view.topology.size) if rank not in view.ranks]
    did |= dict.fromkeys(missing, "left no record")
    broken = [rank for rank, told in did.items() if told != _WHOLE]
    return singled_out(-1, "record", did, broken)


def _left(view: View, rank: RankView) -> str:
    if rank.record.overflow:
        return "left a record that lacks events"
    if rank.done:
        return "; ".join(_gaps(view, rank)) or _WHOLE
    return standing.told(view, rank)


def _from_finding(
    finding: Finding,
    findings: tuple[Finding, ...],
    notes: tuple[str, ...],
    numbers: dict[str, object],
) -> Verdict:
    return Verdict(
        finding.outcome,
        finding.summary,
        oracle=finding.oracle,
        step=finding.step,
        ranks=finding.ranks,
        first_divergence=finding.divergence,
        findings=findings,
        notes=notes,
        ops=numbers,
    )


def _troubles(view: View) -> list[str]:
    """What makes the record no evidence: the testbed's own faults, never the subject's."""
    record = view.record
    troubles = list(record.trouble)
    missing = [rank for rank in range(view.topology.size) if rank not in view.ranks]
    if missing:
        troubles.append(f"{named(missing)} left no record")
    if full := prefix.told(record):
        troubles.append(full)
    troubles += [text for rank in view.ranks.values() if rank.done for text in _gaps(view, rank)]
    broke = any(rank.record.exit in ("raised", "signal") for rank in view.ranks.values())
    if record.ended in ("finished", "broken") and not (broke or missing or view.all_done):
        troubles.append(f"the run ended as {record.ended}, but its ranks were merely stopped")
    if record.ended != "finished" and view.all_done:
        troubles.append(f"the run ended as {record.ended}, but every rank was done")
    if view.all_done:
        troubles += _unfired(view)
    return troubles


def _gaps(view: View, rank: RankView) -> list[str]:
    if rank.final is None:
        return [f"rank {rank.rank} was done but drew up no final books"]
    ended = sum(1 for _ in rank.ended_steps())
    if ended != view.scenario.steps:
        return [f"rank {rank.rank} was done but recorded {ended} of {view.scenario.steps} steps"]
    return []


def _unfired(view: View) -> tuple[str, ...]:
    """Faults and calls that never took effect. In a run that broke off their turn may not have
    come.
    """
    fired = {event.fault for rank in view.ranks.values() for event in rank.fired}
    called = {call for rank in view.ranks.values() for call in rank.calls}
    faults = tuple(
        f"fault {place} ({fault.get('kind', '?')}) never took effect: "
        "look at its ranks, queue and steps"
        for place, fault in enumerate(view.scenario.faults)
        if place not in fired
    )
    calls = tuple(
        f"calls[{place}] ({spec.call}) called nothing: look at its ranks, steps and keys"
        for place, spec in enumerate(view.scenario.calls)
        if spec.call not in called
    )
    return faults + calls
