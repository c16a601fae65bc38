"""What a case costs here, and in the harnesses that people would take instead.

    python -m testbed.measure.harness [--world 4] [--cases 40] [--launches 5] [--json OUT]

Four kinds of case: nothing to do; a rank killed in the middle; a rank that leaves out one of a
series of collectives, and ends, or lives on. Each harness is a *contender*; what its ranks do is in
``case``.
"""
