"""``prefill``: requests of given lengths that share prefixes, made from the scenario's seed."""

from typing import Literal

from testbed.model.errors import BadInput, brief
from testbed.model.mixing import mix63, mix64
from testbed.model.scenario import Scenario
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
        raise BadInput(f"workload.lengths is {brief(spec.lengths)}: give token counts from 1 on")
    if not 0 <= spec.shared_prefix <= 1:
        raise BadInput(f"workload.shared_prefix is {spec.shared_prefix}: give a fraction, 0 to 1")
    if spec.prefixes < 1:
        raise BadInput(f"workload.prefixes is {spec.prefixes}: give a number from 1 on")
    if spec.requests < 1:
        raise BadInput(f"workload.requests is {spec.requests}: give a number from 1 on")
    _check_size(spec, scenario)
    made = [_request(spec, scenario, number) for number in range(spec.requests)]
    return requests.plan(made, spec, scenario)


def _check_size(spec: PrefillSpec, scenario: Scenario) -> None:
    """Before a block is made: sizes that nobody meant must cost neither time nor memory."""
    page = [_pages(spec, scenario, number) for number in range(len(spec.lengths))]
    for number, pages in enumerate(page[: spec.requests]):
        requests.check_room(f"r{number}", pages, scenario)
    rounds, rest = divmod(spec.requests, len(page))
    blocks = rounds * sum(page) + sum(page[:rest])
    if blocks > requests.MAX_BLOCKS:
        raise BadInput(
            f"workload has {spec.requests} requests of {blocks} pages in all: "
            f"at most {requests.MAX_BLOCKS} are made, lower workload.requests"
        )


def _pages(spec: PrefillSpec, scenario: Scenario, number: int) -> int:
    return -(-spec.lengths[number % len(spec.lengths)] // scenario.sizes.page_tokens)


def _request(spec: PrefillSpec, scenario: Scenario, number: int) -> RequestLine:
    pages = _pages(spec, scenario, number)
    shared = int(pages * spec.shared_prefix)
    seed = scenario.seed
    prefix = mix64(seed, _DRAW, number) % spec.prefixes
    blocks = [mix63(seed, _SHARED, prefix, place) for place in range(shared)]
    blocks += [mix63(seed, _OWN, number, place) for place in range(shared, pages)]
    return RequestLine(f"r{number}", tuple(blocks))
