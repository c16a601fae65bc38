"""Any torch.distributed program on recorded ranks: it makes its own groups, as under torchrun.

``plan`` says what is run, ``place`` gives a rank what torchrun gives it, ``life`` is the rank's
life, ``breaks`` damages a program on purpose, and ``host`` is the module for
``Fleet(hosts=testbed.programs.HOSTS)``. The records are judged like any other.
"""

HOSTS = "testbed.programs.host"
"""Module of the hosts whose ranks run programs."""
