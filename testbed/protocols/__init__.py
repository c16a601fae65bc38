"""The ways to agree on how many transfers every rank completes in a step.

What lives here: the groups of a rank, the chain through which counts are agreed, and one file per
protocol. What may not: pending maps, locks, trees. A protocol acts through the few methods of a
``Party`` and calls ``torch.distributed`` by its own names, so that a recorder can stand beneath.
"""

from testbed.model.errors import BadInput
from testbed.protocols.agreement import Agreement, Party, Protocol, count_ready
from testbed.protocols.batched import Batched
from testbed.protocols.deferred import Deferred
from testbed.protocols.fused import Fused
from testbed.protocols.groups import Groups
from testbed.protocols.local import Local
from testbed.protocols.separate import Separate
from testbed.protocols.world import World

Made = type[Separate | Batched | Fused | Local | Deferred | World]

REGISTRY: dict[str, Made] = {
    "separate": Separate,
    "batched": Batched,
    "fused": Fused,
    "local": Local,
    "deferred": Deferred,
    "world": World,
}

__all__ = [
    "REGISTRY",
    "Agreement",
    "Batched",
    "Deferred",
    "Fused",
    "Groups",
    "Local",
    "Party",
    "Protocol",
    "Separate",
    "World",
    "count_ready",
    "make",
]


def make(name: str, groups: Groups) -> Protocol:
    """The protocol called ``name`` on this rank's groups. Raises BadInput for an unknown name."""
    if name not in REGISTRY:
        raise BadInput(f"protocol {name!r} is unknown: give one of {', '.join(REGISTRY)}")
    return REGISTRY[name](groups)
