"""What a subject is: the code under test on one rank, with the few hooks its surroundings need."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from testbed.cache import TransferController
from testbed.model.scenario import Call

Calls = Mapping[Call, Callable[[str], object]]
"""What a scenario's ``calls`` may call of a subject besides its check. Each is given the key of the
request or load it is about, "" for none; a question returns whether the answer is yes."""

Need = Literal["storage", "sidecars", "no-controller"]
"""What a scenario may need that not every class has: a part for storage, pools beside the KV
cache's own, being without a transfer controller."""

Map = Literal["write", "load", "backup", "prefetch"]


class Subject(Protocol):
    """One rank's code under test. A class of your own needs these members and nothing more; with
    ``calls: Calls`` besides, scenarios can call those of it.

    promises: what it says of itself and is held to, such as ``{"budget": "batched", "stage-local":
    True}``. controller: the rank's transfer controller, None on a rank without one.
    """

    promises: dict[str, Any]

    @property
    def controller(self) -> TransferController | None:
        """The transfer controller, None on a rank without one."""

    @controller.setter
    def controller(self, controller: TransferController | None) -> None: ...

    def check_hicache_events(self) -> None:
        """Once per scheduler step: agree with the other ranks, complete what all may complete."""

    def drain_sends(self) -> None:
        """Wait for every outstanding send and forget them."""

    def outstanding_sends(self) -> int:
        """Length of the list of sends not waited for yet."""

    def track_write(self, node_id: int) -> None:
        """A write of this node was enqueued: lock the node, remember it as pending."""

    def track_load(self, node_id: int) -> None:
        """A load down to this node was enqueued: lock it on device and host, remember it."""

    def track_prefetch(self, operation: Any) -> None:
        """A storage query was begun: lock its anchor node on host, remember it."""

    def on_split(self, old_id: int, new_prefix_id: int) -> None:
        """A node whose write is in flight was split: the old id is the lower part now."""

    def pending(self) -> dict[Map, list[int] | list[str]]:
        """What is remembered: ACK ids of writes and loads, operation ids of backups, request ids of
        prefetches."""
