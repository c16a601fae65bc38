"""Hosts of the programs, with what takes seconds to import imported before any rank is forked."""

import importlib.util
import os

from cases.peers.programs.torch_suite import MODULE
from testbed.programs import host

HERE = "cases.peers.host"
_NEEDS = "expecttest"


def main() -> None:
    """Entry point, as torchrun starts it."""
    os.environ["BACKEND"] = "gloo"  # which torch's tests read when they are imported
    suite = (MODULE,) if importlib.util.find_spec(_NEEDS) else ()
    host.main((*host.HEAVY, *suite))


if __name__ == "__main__":
    main()
