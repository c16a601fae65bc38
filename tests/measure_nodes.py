"""How long a lost node goes unnoticed: ``python -m tests.measure_nodes [TRIES]``, as root.

Pulls the plug of one of two machines again and again, in mid-case and while the fleet is idle, and
prints the seconds until the verdict, until ``Fleet.lost`` says so, and until the next case has run
once the link is back.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

from testbed.fleet import Fleet
from testbed.model.scenario import from_object
from tests.two_machines import why_not
from tests.two_nodes import TwoNodes, fleet_on_two_nodes

_CASE = {
    "name": "measured",
    "topology": {"pp": 2, "tp": 2},
    "deadline_ms": 600_000,
    "workload": {"kind": "scripted", "writes": [{"at": 0, "ready_after": 1}]},
}
_LONG = from_object({**_CASE, "steps": 100_000}, "measure_nodes")
_SHORT = from_object({**_CASE, "steps": 8}, "measure_nodes")


def busy(nodes: TwoNodes, after_s: float) -> tuple[float, float]:
    """Seconds from the plug to the record of the case in flight, from the link to the next one."""
    pulled = 0.0
    begin = Fleet._step_through

    def unplug(fleet: Fleet, case: Any) -> Any:
        nonlocal pulled
        time.sleep(after_s)
        nodes.far.pull_the_plug()
        pulled = time.monotonic()
        return begin(fleet, case)

    with mock.patch.object(Fleet, "_step_through", unplug):
        record = nodes.fleet.run(_LONG)
    noticed_s = time.monotonic() - pulled
    assert "cannot be reached" in record.trouble[0], record.trouble
    return noticed_s, _back(nodes)


def idle(nodes: TwoNodes, after_s: float) -> tuple[float, float]:
    """Seconds from the plug until the idle fleet is known to be lost, from the link to a case."""
    fleet = nodes.gathered
    time.sleep(after_s)
    nodes.far.pull_the_plug()
    pulled = time.monotonic()
    while not fleet.lost:
        time.sleep(0.005)
    return time.monotonic() - pulled, _back(nodes)


def _back(nodes: TwoNodes) -> float:
    nodes.far.plug_in()
    began = time.monotonic()
    assert nodes.fleet.run(_SHORT).ended == "finished"
    return time.monotonic() - began


def main() -> int:
    """Entry point; exit status 3 where there are no namespaces."""
    tries = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    reason = why_not()
    if reason:
        print(f"measure_nodes: {reason}", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as folder, fleet_on_two_nodes(4, Path(folder)) as nodes:
        for name, measure in (("busy", busy), ("idle", idle)):
            # At another phase of the kernel's probes each time: they are a second apart.
            taken = [measure(nodes, attempt / tries) for attempt in range(tries)]
            for what, values in zip(("noticed", "back"), zip(*taken, strict=True), strict=True):
                median, worst = statistics.median(values), max(values)
                print(f"{name} {what}: median {median:.2f} s, worst {worst:.2f} s of {tries}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
