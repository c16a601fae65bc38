"""``python -m testbed bench``: measure what an agreement costs."""

from testbed.bench.command import add_options as options
from testbed.bench.command import run

__all__ = ["options", "run"]
