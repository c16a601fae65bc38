"""Wrong uses of torch.distributed, small and one a program, and correct ones that look like them.

``misuses`` and ``correct`` hold the programs, ``use`` makes each a subject (so that a fleet runs it
under the recorder) and ``bare`` runs it with the recorder absent, under plain gloo or
``TORCH_DISTRIBUTED_DEBUG=DETAIL``. ``python -m cases.wrong_uses`` measures who notices what and
writes ``docs/wrong_uses.md``.
"""
