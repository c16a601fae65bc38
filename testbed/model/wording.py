"""How a call is named wherever people read of it: by the subject's functions and its line. Pure."""

ENTRY = "check_hicache_events"
"""What the rank's loop calls: it leads to every operation of a step and tells none apart."""

_WHOLE = 3


def called_at(caller: str, site: str) -> str:
    """``writing_check>_all_reduce at cache.py:88``; "" where nothing is known.

    caller: as in Enter. The chain is given below the function that the loop calls: a helper at its
    end is shared by all that use it, so its name alone says little. Of a long chain the two
    outermost functions and the innermost one are given.
    """
    names = [name for name in caller.split(">") if name]
    while len(names) > 1 and names[0] == ENTRY:  # twice where a subclass calls its base's
        names = names[1:]
    if len(names) > _WHOLE:
        names = [*names[:2], "…", names[-1]]
    return " at ".join(part for part in (">".join(names), site) if part)
