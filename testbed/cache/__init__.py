"""The minimal KV-cache hierarchy of one rank: radix tree, page pools, transfers with their ACK
queues.

Decides nothing about other ranks: no process group and no protocol may be known here.
"""

from testbed.cache.contents import Shard, shard_of
from testbed.cache.kv import Inserted, KVCache, Match, Transfer
from testbed.cache.prefetch import PrefetchKey, PrefetchOperation
from testbed.cache.transfers import Ack, RecordedQueue, TransferController
from testbed.cache.tree import Node

__all__ = [
    "Ack",
    "Inserted",
    "KVCache",
    "Match",
    "Node",
    "PrefetchKey",
    "PrefetchOperation",
    "RecordedQueue",
    "Shard",
    "Transfer",
    "TransferController",
    "shard_of",
]
