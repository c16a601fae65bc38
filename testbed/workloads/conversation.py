"""``conversation``: a request trace like one of a chat service, generated from the scenario's seed.

It needs no file and copies none. Users open conversations and come back to them; every prompt
begins with one system prompt, and a later turn's prompt is the earlier one, the reply, and a new
message. Statistics that the generator follows:

- Published trace: ``FAST25-release/traces/conversation_trace.jsonl`` of the repository
  ``kvcache-ai/Mooncake``, with the paper "Mooncake: Trading More Storage for Less Computation"
  (Qin and others, USENIX FAST 2025): 12,031 requests of one hour. Its first 3,000 requests arrive
  in 987 s; 41 % of the third thousand continue a conversation; the first block of 512 tokens is
  the same in all of them. The tables below are quantiles of these requests: input of a first turn,
  growth of the input from turn to turn, output.
- Published analysis: the technical report (arXiv 2407.00079, section 4.2) gives a hit ratio from
  30 % to 50 % of all blocks, by the size of the cache.

Simplified: each turn keeps the whole earlier prompt (published turns also edit or cut it), and a
conversation comes back sooner than published ones do, so that a few hundred requests have as many
hits as an hour of the service.

``python -m testbed.workloads --requests 300 --seed 0`` prints it as Mooncake JSONL.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from testbed.model.errors import BadInput
from testbed.model.mixing import mix63
from testbed.model.scenario import Scenario
from testbed.workloads import requests
from testbed.workloads.requests import Pace, RequestLine, RequestPlan

BLOCK_TOKENS = 512

MAX_REQUESTS = 10_000
"""More than anybody needs; it keeps the time for a slip of the finger short."""

Quantiles = Sequence[tuple[float, int]]
"""(share of all values that are smaller, value), from (0, smallest) to (1, largest)."""

FIRST_INPUT: Quantiles = (
    (0, 890),
    (0.1, 910),
    (0.25, 1_650),
    (0.5, 6_450),
    (0.75, 15_400),
    (0.9, 27_900),
    (0.95, 42_700),
    (0.99, 94_400),
    (1, 122_900),
)
GROWTH: Quantiles = (
    (0, 32),
    (0.25, 190),
    (0.5, 470),
    (0.75, 1_050),
    (0.9, 5_060),
    (0.95, 8_540),
    (0.99, 21_300),
    (1, 40_000),
)
OUTPUT: Quantiles = (
    (0, 1),
    (0.1, 25),
    (0.25, 160),
    (0.5, 360),
    (0.75, 480),
    (0.9, 610),
    (0.99, 1_090),
    (1, 2_000),
)
LARGEST_INPUT = 123_000
"""The largest published input; a conversation that would pass it ends."""
CONTINUED = 0.4
"""Share of requests that continue a conversation, in the steady state."""
RECENT = 100
"""A request continues one of the conversations that were last active, this many at most."""
MEAN_GAP_MS = 330.0
ARRIVALS_MS = 3_000
"""Published timestamps are multiples of this."""

_SYSTEM, _OWN = 21, 22


class ConversationSpec(Pace, frozen=True, kw_only=True):
    """Keys of the ``conversation`` workload. requests: how many."""

    kind: Literal["conversation"] = "conversation"
    requests: int = 200


class TraceLine(msgspec.Struct, frozen=True):
    """One request, with the keys of the Mooncake format."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def plan(spec: ConversationSpec, scenario: Scenario) -> RequestPlan:
    """Generate the requests. Raises BadInput."""
    if not 1 <= spec.requests <= MAX_REQUESTS:
        raise BadInput(
            f"workload.requests is {spec.requests}: give a number from 1 to {MAX_REQUESTS}"
        )
    made = [
        RequestLine(f"r{number}", line.hash_ids)
        for number, line in enumerate(generated(scenario.seed, spec.requests))
    ]
    return requests.plan(made, spec, scenario)


class _Conversation(msgspec.Struct):
    """A conversation so far. tokens: of its last prompt and the reply to it."""

    number: int
    tokens: int


def generated(seed: int, count: int) -> Iterator[TraceLine]:
    """Yield ``count`` requests; the same seed gives the same ones on every machine."""
    draws = random.Random(seed)
    recent: list[_Conversation] = []
    opened, now = 0, 0.0
    for _ in range(count):
        talk = None
        if recent and draws.random() < CONTINUED:
            talk = recent.pop(draws.randrange(len(recent)))
            tokens = talk.tokens + _drawn(draws, GROWTH)
            talk = None if tokens > LARGEST_INPUT else talk
        if talk is None:
            talk, tokens = _Conversation(opened, 0), _drawn(draws, FIRST_INPUT)
            opened += 1
        output = _drawn(draws, OUTPUT)
        yield TraceLine(
            timestamp=int(now // ARRIVALS_MS) * ARRIVALS_MS,
            input_length=tokens,
            output_length=output,
            hash_ids=_blocks(seed, talk.number, tokens),
        )
        talk.tokens = tokens + output
        recent = [*recent, talk][-RECENT:]
        now += draws.expovariate(1 / MEAN_GAP_MS)


def _blocks(seed: int, conversation: int, tokens: int) -> tuple[int, ...]:
    """Ids of a prompt's blocks. The last one is full only sometimes: then a later turn has other
    tokens in it, and another id."""
    full, rest = divmod(tokens, BLOCK_TOKENS)
    ids = [mix63(seed, _OWN, conversation, place) for place in range(full)]
    ids[:1] = [mix63(seed, _SYSTEM)]
    if rest:
        ids.append(mix63(seed, _OWN, conversation, full, rest))
    return tuple(ids)


def _drawn(draws: random.Random, quantiles: Quantiles) -> int:
    """A value of that distribution, linear between its quantiles."""
    share = draws.random()
    for (below, low), (above, high) in pairwise(quantiles):
        if share <= above:
            return round(low + (high - low) * (share - below) / (above - below))
    return quantiles[-1][1]
