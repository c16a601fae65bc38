"""The life of one rank: its groups, its parts put together (``assemble``), the scheduler loop, and
whose fault an exception is.

Runs in a forked process and imports nothing of the controller. What may not live here: anything
that knows of more than one rank but through ``torch.distributed``, and the fleet that forks it.
"""
