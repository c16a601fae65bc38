"""Chunked prefill: which tokens are computed in which step. Pure.

Requests of one length follow each other without a gap. Of each, the shared prefix is found on host
and loaded when it is admitted; the rest is computed in chunks. A step computes up to a chunk's
tokens, of one request or of several.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One step of one stage, in tokens. computed: pieces, one per request in it. loaded: prefixes
    of the requests admitted in it."""

    computed: tuple[int, ...]
    loaded: tuple[int, ...]

    @property
    def input_tokens(self) -> int:
        """Computed, or found."""
        return sum(self.computed) + sum(self.loaded)


def schedule(length: int, shared_prefix: float, chunk: int, steps: int) -> list[Step]:
    """The first ``steps`` steps. length, chunk: tokens from 1 on; shared_prefix: 0 to below 1."""
    prefix = int(length * shared_prefix)
    made: list[Step] = []
    left = 0
    while len(made) < steps:
        room, computed, loaded = chunk, [], []
        while room:
            if not left:
                left = length - prefix
                loaded += [prefix] if prefix else []
            piece = min(room, left)
            computed.append(piece)
            room, left = room - piece, left - piece
        made.append(Step(tuple(computed), tuple(loaded)))
    return made
