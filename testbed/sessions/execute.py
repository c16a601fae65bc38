"""One run from scenario to judged result: the scenario is checked, run on a fleet, its record
written to disk, and only then judged.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from testbed import faults, subjects, workloads
from testbed.device import gpus
from testbed.faults.no_controller import NoController
from testbed.model import record
from testbed.model.errors import BadInput, brief, naming, shortened
from testbed.model.scenario import Scenario
from testbed.oracles import REGISTRY, check_claims
from testbed.sessions.result import LOST, RunResult, judged
from testbed.sessions.store import VERDICT_FILE, RunStore, keep_sessions
from testbed.sessions.world import RunsCases


def check_backend(backend: str | None, device: str | None) -> None:
    """Raise EnvironmentFault if a GPU is asked for and there is none; None stands for what a
    scenario says.
    """
    if backend == "nccl" or device == "cuda":
        gpus.check_usable()


def _check_hardware(scenario: Scenario) -> None:
    """Raise BadInput or EnvironmentFault if the scenario asks for more than this machine has."""
    check_backend(scenario.backend, scenario.device)
    if scenario.backend == "nccl":
        gpus.check_one_each(scenario.topology)
    if scenario.agree_on == "nccl":
        subjects.check_places_tensors(scenario.subject)


def prepare(scenario: Scenario, where: str = "") -> None:
    """Check all that can be checked before a rank is forked, and fetch the subject's sources.

    where: the file it was read from, for what is told; without one its name is.

    Raises BadInput for an unknown subject, release, fault, workload, selector or claim, for a
    broken trace file, for a fault that can never take effect and for more ranks than NCCL has GPUs;
    EnvironmentFault for a release that cannot be fetched, and where a GPU is wanted and there is
    none.
    """
    with naming(where or f"scenario {shortened(scenario.name)}"):
        _check_hardware(scenario)
        _check_sidecars(scenario)
        plan = workloads.parse(scenario)
        faults.check(scenario, plan)
        check_claims(scenario.claims)
        _check_expectations(scenario)
        subjects.prepare(scenario.subject)
        subjects.check_calls(scenario.subject, (spec.call for spec in scenario.calls))
        subjects.check_needs(scenario.subject, _needs(scenario))


def _needs(scenario: Scenario) -> Iterator[subjects.Need]:
    """What its subject must have for the run to say anything of it."""
    listed = faults.parse(scenario.faults)
    if scenario.storage:
        yield "storage"
    if faults.adapted(listed, scenario).sidecars:
        yield "sidecars"
    if any(isinstance(fault, NoController) for fault in listed):
        yield "no-controller"


def _check_sidecars(scenario: Scenario) -> None:
    if scenario.sidecars and not scenario.storage:
        raise BadInput('sidecars are listed but storage is off: set "storage": true')


def _check_expectations(scenario: Scenario) -> None:
    stated = scenario.expect if isinstance(scenario.expect, list) else [scenario.expect]
    for oracle in (expect.oracle for expect in stated if expect.oracle is not None):
        if oracle not in REGISTRY:
            raise BadInput(f"expect.oracle is {brief(oracle)}: give one of {', '.join(REGISTRY)}")


def execute(fleet: RunsCases, scenario: Scenario, store: RunStore) -> RunResult:
    """Run one scenario; the record is on disk before anything judges it, unless the disk is full.

    Raises BadInput if the scenario cannot be run, EnvironmentFault if the fleet failed.
    """
    prepare(scenario)
    return execute_as_it_is(fleet, scenario, store)


def execute_as_it_is(fleet: RunsCases, scenario: Scenario, store: RunStore) -> RunResult:
    """The same for a fleet whose ranks take other scenarios than ``prepare`` knows."""
    keep_sessions()  # refused before anything has run
    run_record = fleet.run(scenario)
    try:
        path = store.claim(scenario.case_id)
        record.save(run_record, path)
        result = judged(run_record, path)
        verdict_json = msgspec.json.encode(result.verdict.to_json())
        (path / VERDICT_FILE).write_bytes(msgspec.json.format(verdict_json, indent=1) + b"\n")
    except OSError as error:
        lost = f"{scenario.case_id} cannot be kept: {error.strerror}"
        return replace(judged(run_record, Path(LOST)), lost=lost)
    return result
