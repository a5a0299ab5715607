"""A pass over a table of keys that forgets the idle ones, in steps that do not stop the loop."""

from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from typing import Generic, TypeVar

__all__ = ["Eviction"]

V = TypeVar("V")


class Eviction(Generic[V]):
    """Passes over one table, one after the other.

    left: seconds, from that time on, until forgetting a key would change no decision; 0 or less
        if it would not now.
    """

    __slots__ = ("_left", "_pass", "_youngest")

    def __init__(self, left: Callable[[Hashable, V, float], float]) -> None:
        self._left = left
        self._pass: Iterator[Hashable] | None = None
        self._youngest = 0.0  # when the youngest key of this pass would be idle

    def begin_anew(self) -> None:
        """The table has become another one."""
        self._pass = None

    def step(
        self, table: dict[Hashable, V], now: float, most: int, longest: float
    ) -> tuple[int, float | None]:
        """Look at up to `most` keys.

        Returns how many were forgotten, and after how many seconds to make the next step: when the
        youngest is idle, or after `longest`; None once there are no keys.
        """
        if self._pass is None:
            self._pass = iter(list(table))
            self._youngest = 0.0
        seen = forgotten = 0
        for key in islice(self._pass, most):
            seen += 1
            if (found := table.get(key)) is not None:
                left = self._left(key, found, now)
                if left > 0:
                    self._youngest = max(self._youngest, now + left)
                else:
                    del table[key]
                    forgotten += 1
        if seen == most:
            return forgotten, 0.0
        self._pass = None
        if not table:
            table.clear()  # gives back the room of the keys that were here
            return forgotten, None
        return forgotten, self._youngest - now if self._youngest > now else longest
