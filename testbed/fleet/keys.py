"""The store of one case whose ranks share no folder, as the controller holds it."""

from testbed.wire import StoreAnswer, StoreAsk


class Keys:
    """Keys and values. ``ask`` takes a rank's call and returns the answers that are now due: its
    own, unless it must wait, and those of the calls that waited for what it set.
    """

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._waiting: list[StoreAsk] = []

    def ask(self, ask: StoreAsk) -> list[StoreAnswer]:
        """Raises ValueError for an operation that there is not."""
        if ask.op == "set":
            self._values[ask.keys[0]] = ask.value
            return [_answer(ask), *self._due()]
        if ask.op == "add":
            total = int(self._values.get(ask.keys[0], b"0")) + ask.amount
            self._values[ask.keys[0]] = str(total).encode()
            return [_answer(ask, count=total), *self._due()]
        if ask.op == "check":
            return [_answer(ask, count=int(self._has(ask.keys)))]
        if ask.op == "wait":
            self._waiting.append(ask)
            return self._due()
        raise ValueError(f"rank {ask.rank} asks its store for {ask.op!r}")

    def _has(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def _due(self) -> list[StoreAnswer]:
        due = [ask for ask in self._waiting if self._has(ask.keys)]
        self._waiting = [ask for ask in self._waiting if ask not in due]
        return [_answer(ask, value=self._values[ask.keys[0]] if ask.keys else b"") for ask in due]


def _answer(ask: StoreAsk, *, value: bytes = b"", count: int = 0) -> StoreAnswer:
    return StoreAnswer(ask.case, ask.rank, ask.number, value, count)
