"""The model's traffic over NCCL and everything else on the GPUs, one for each rank: what
``make test-nccl`` runs. Where there are too few GPUs a case is skipped, with the reason.
"""

import pytest

from testbed.device import gpus
from testbed.model.errors import BadInput
from testbed.model.scenario import Scenario
from testbed.pytest_plugin import RunCase

EVERY = "pp1tp1 pp1tp2 pp2tp1 pp2tp2 pp2tp1cp2 pp4tp2"

# Their tensors are on the CPU, whatever the groups.
OVER_GLOO = "batched fused sglang==0.5.19 sglang==0.5.23"
OVER_NCCL = "batched separate fused deferred world"

# A mark and no fixture: no fleet is to be started for nothing.
pytestmark = pytest.mark.skipif(bool(gpus.why_none()), reason=gpus.why_none())


@pytest.fixture(autouse=True)
def a_gpu_each(scenario: Scenario) -> None:
    """Skip topologies for which there are too few."""
    try:
        gpus.check_one_each(scenario.topology)
    except BadInput as error:
        pytest.skip(str(error))


def on_gpus(scenario: Scenario, agree_on: str) -> Scenario:
    return scenario.but(backend="nccl", device="cuda", agree_on=agree_on)


@pytest.mark.scenarios("storage-clean", "prefill-3k5", topologies=EVERY, subjects=OVER_GLOO)
@pytest.mark.scenarios("claim-one-agreement", topologies="pp2tp2", subjects=OVER_GLOO)
@pytest.mark.scenarios("skew-followers-*", topologies="pp2tp1 pp2tp2 pp4tp2", subjects="batched")
@pytest.mark.scenarios("skew-leader-peer-slower-3", topologies="pp1tp2 pp2tp2", subjects="batched")
@pytest.mark.scenarios("empty-leader-both", "none-controller-leader", topologies="pp2tp1 pp2tp2")
def test_the_model_over_nccl_the_agreement_over_gloo(scenario: Scenario, check: RunCase) -> None:
    check(on_gpus(scenario, "gloo"))


@pytest.mark.scenarios("storage-clean", "prefill-3k5", topologies=EVERY, subjects=OVER_NCCL)
@pytest.mark.scenarios("skew-followers-slower-*", topologies="pp2tp1 pp2tp2", subjects=OVER_NCCL)
@pytest.mark.scenarios("skew-leader-peer-slower-3", topologies="pp1tp2", subjects=OVER_NCCL)
@pytest.mark.scenarios("empty-leader-both", "none-controller-leader", topologies="pp2tp2")
def test_everything_over_nccl(scenario: Scenario, check: RunCase) -> None:
    check(on_gpus(scenario, "nccl"))


@pytest.mark.scenarios("skew-never-follower", topologies="pp2tp1", subjects="batched")
@pytest.mark.scenarios("fault-kill-follower", topologies="pp2tp2", subjects="batched")
def test_a_rank_that_stops_is_named_over_nccl_too(scenario: Scenario, check: RunCase) -> None:
    check(on_gpus(scenario, "gloo"))
