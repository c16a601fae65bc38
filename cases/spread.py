"""Which topologies and subjects the cases are spread over.

The default subject meets every topology, the others one of each kind: the suite stays under a
minute. ``--subject`` spreads any subject over all of them. Where a selector names nobody, a case is
left out.
"""

from collections.abc import Callable
from typing import TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., object])

PIPELINES = "pp2tp1 pp2tp2 pp4tp1 pp2tp1cp2"
EVERY = f"{PIPELINES} pp1tp4"
CP = "pp2tp1cp2"
KINDS = "pp2tp2 pp1tp4"

DEFAULT = "batched"
OTHERS = "separate fused sglang==0.5.18 sglang==0.5.19 sglang==0.5.23"
SUBJECTS = f"{DEFAULT} {OTHERS}"


def spread(*names: str, topologies: str = EVERY) -> Callable[[Test], Test]:
    """Mark a test to run these scenarios with every subject at its topologies."""
    kinds = " ".join(each for each in KINDS.split() if each in topologies.split()) or topologies

    def mark(test: Test) -> Test:
        for where, subjects in ((topologies, DEFAULT), (kinds, OTHERS)):
            test = pytest.mark.scenarios(*names, topologies=where, subjects=subjects)(test)
        return test

    return mark
