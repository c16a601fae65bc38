"""Options for a fleet whose hosts are started elsewhere, and the making of it."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from testbed.fleet import Fleet, LastingFleet, Meeting
from testbed.fleet.fleet_file import HOSTS, check_place
from testbed.model.errors import BadInput, EnvironmentFault
from testbed.sessions.store import DEFAULT_ROOT
from testbed.sessions.world import RunsCases

DEFAULT_FILE = DEFAULT_ROOT / "fleet.json"


def add_options(add: Callable[..., Any]) -> None:
    """``add``: as ``argparse.ArgumentParser.add_argument``."""
    add(
        "--listen",
        metavar="HOST:PORT",
        help="start no hosts: wait for those of other machines at this address (port 0: any free)",
    )
    add("--nodes", type=int, metavar="N", help="with --listen: how many machines come (default: 1)")
    add(
        "--fleet-file",
        metavar="FILE",
        help=f"with --listen: where to write address and token for them (default: {DEFAULT_FILE})",
    )


def check(options: dict[str, Any]) -> None:
    """Raise BadInput for options that make no sense without ``listen``, and for a fleet file that
    cannot be made. options: their values.
    """
    for name in ("nodes", "fleet_file"):
        if options[name] is not None and options["listen"] is None:
            option = name.replace("_", "-")
            raise BadInput(f"--{option} says nothing without --listen HOST:PORT: give that too")
    if options["fleet_file"] == "":
        raise BadInput("--fleet-file is empty: give a file, or leave it out")
    if options["listen"] is not None:
        check_place(_file(options))


def _file(options: dict[str, Any]) -> Path:
    return Path(options["fleet_file"] or DEFAULT_FILE)


@contextlib.contextmanager
def awaited_fleet(
    world: int,
    options: dict[str, Any],
    *,
    oversubscribe: bool,
    hosts: str = HOSTS,
    **how: Any,
) -> Iterator[RunsCases]:
    """A fleet of ``world`` hosts that were started elsewhere; another one is gathered when a host
    was lost and has come back. hosts: the module that they are to run. how: as ``Fleet`` takes it.
    Raises BadInput, EnvironmentFault.
    """
    path = _file(options)
    check_place(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"fleet file {path} cannot be written: {error.strerror}") from error
    nodes = 1 if options["nodes"] is None else options["nodes"]
    with Meeting(world, nodes, options["listen"], path, hosts) as meeting:

        def gather() -> Fleet:
            return Fleet(world, oversubscribe=oversubscribe, meeting=meeting, **how)

        with LastingFleet(gather) as fleet:
            yield fleet
