"""Errors that a person can act on: each message is one line saying what, where and what to do."""


class BadInput(ValueError):
    """What the user gave cannot be run: a scenario, a name, a topology, a file (exit status 2)."""


class EnvironmentFault(Exception):
    """The testbed or its machine failed, not the subject (exit status 3)."""
