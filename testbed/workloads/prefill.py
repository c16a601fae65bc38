"""``prefill``: requests of given lengths that share prefixes, made from the scenario's seed."""

from typing import Literal

from testbed.cache.contents import mix63, mix64
from testbed.errors import BadInput
from testbed.scenario import Scenario
from testbed.workloads import requests
from testbed.workloads.requests import Pace, RequestLine, RequestPlan

_DRAW, _SHARED, _OWN = 11, 12, 13


class PrefillSpec(Pace, frozen=True, kw_only=True):
    """Keys of the ``prefill`` workload.

    lengths: input lengths in tokens, taken in turn. requests: how many. shared_prefix: fraction of
    a request that is one of ``prefixes`` common beginnings.
    """

    lengths: list[int]
    requests: int
    kind: Literal["prefill"] = "prefill"
    shared_prefix: float = 0.5
    prefixes: int = 2


def plan(spec: PrefillSpec, scenario: Scenario) -> RequestPlan:
    """Make the requests. Raises BadInput."""
    if not spec.lengths or min(spec.lengths) < 1:
        raise BadInput(f"workload.lengths is {spec.lengths}: give token counts from 1 on")
    if not 0 <= spec.shared_prefix <= 1:
        raise BadInput(f"workload.shared_prefix is {spec.shared_prefix}: give a fraction, 0 to 1")
    if spec.prefixes < 1:
        raise BadInput(f"workload.prefixes is {spec.prefixes}: give a number from 1 on")
    made = [_request(spec, scenario, number) for number in range(spec.requests)]
    return requests.plan(made, spec, scenario)


def _request(spec: PrefillSpec, scenario: Scenario, number: int) -> RequestLine:
    tokens = spec.lengths[number % len(spec.lengths)]
    pages = -(-tokens // scenario.sizes.page_tokens)
    shared = int(pages * spec.shared_prefix)
    seed = scenario.seed
    prefix = mix64(seed, _DRAW, number) % spec.prefixes
    blocks = [mix63(seed, _SHARED, prefix, place) for place in range(shared)]
    blocks += [mix63(seed, _OWN, number, place) for place in range(shared, pages)]
    return RequestLine(f"r{number}", tuple(blocks))
