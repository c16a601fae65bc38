"""The exit statuses of every program of the testbed. Imports nothing, so that all can have them."""

AS_EXPECTED = 0
NOT_AS_EXPECTED = 1
BAD_INPUT = 2
ENVIRONMENT = 3
INTERRUPTED = 130
"""By Ctrl-C: 128 and the number of SIGINT."""
TERMINATED = 143
"""By SIGTERM: 128 and its number."""
