"""A multi-process testbed for protocols that keep a KV-cache hierarchy in step across ranks.

Importing this package must stay free of torch: a host asks for its parent-death signal before
it spends seconds on importing torch.
"""

__version__ = "0.1.0"
