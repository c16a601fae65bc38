"""Numbers that look random and follow from their input alone."""

_MASK = (1 << 64) - 1
ODD = 0x9E3779B97F4A7C15
TURN = 0xBF58476D1CE4E5B9


def mix64(*numbers: int) -> int:
    """A well-spread number from 0 to 2**64 - 1, the same on every machine and in every process."""
    state = 0
    for number in numbers:
        state = (state ^ (number & _MASK)) * ODD & _MASK
        state ^= state >> 29
        state = state * TURN & _MASK
        state ^= state >> 32
    return state


def mix63(*numbers: int) -> int:
    """As ``mix64``, but fits a signed 64-bit integer."""
    return mix64(*numbers) >> 1
