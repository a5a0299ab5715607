"""The fast lane: the windows that a cost of 1 may join without more ado.

Most calls find the newest entry of their key open, and room in it. They are let in here, by two
comparisons and an addition (`Window.join`), and counted by one more.
"""

from collections.abc import Callable, Hashable
from math import floor
from typing import TYPE_CHECKING, Any, cast

from aiolimit.admission import Admission
from aiolimit.identity import OneOfAKind
from aiolimit.load.controller import LoadController
from aiolimit.memory import NEAR, MemoryStore
from aiolimit.permit import Permit
from aiolimit.queues import Queues
from aiolimit.window import Window

__all__ = ["Lane"]


class Lane(OneOfAKind):
    """What `Limiter` has of it."""

    __slots__ = (
        "_admission",
        "_bent_lane",
        "_entered",
        "_lane",
        "_lane_limit",
        "_lane_mark",
        "_near",
        "_passed",
        "_store",
        "_time",
    )

    _admission: Admission
    _store: MemoryStore
    _time: Callable[[], float]
    _entered: int
    _passed: int
    _near: int
    _queues: Queues

    if TYPE_CHECKING:
        load: LoadController | None
        acquire: Any

    def _enter_at_once(self, key: Hashable) -> Permit | None:
        """A permit of cost 1 that is entered already, where the fast lane is open; else None."""
        window = self._lane.get(key)
        if window is not None:  # as in `Permit.__aenter__`
            now = self._time()
            if now < window.closes:
                total = window.total + 1
                if total <= self._lane_mark or self._is_near(total):
                    permit = cast(Permit, self.acquire(key))
                    window.total = total
                    window.last = permit._at = now
                    self._entered += 1
                    return permit
        return None

    def _joins_near(self, window: Window, now: float) -> bool:
        """Let a window be joined above the mark of its limit, if it may; it is counted then."""
        joins = window.join(now, self._lane_limit)
        self._near += joins and window.total > NEAR * self._lane_limit
        return joins

    def _is_near(self, total: float) -> bool:
        """Whether a window may hold so much, above the mark of its limit; it is counted then."""
        fits = total <= self._lane_limit
        self._near += fits and total > NEAR * self._lane_limit
        return fits

    def _set_lane(self) -> None:
        """Open or close the fast lane: the windows that a cost of 1 may join without more ado.

        It is open under one rate with a limit above `sub_windows` (up to that every admission
        is kept by itself), without a burst, and while nobody waits. Closed, it holds no keys.
        """
        store = self._store
        self._lane: dict[Hashable, Window] = {}
        self._bent_lane: dict[Hashable, Window] = {}
        self._lane_limit = store.rates[0].limit
        # Whole, as whole numbers compare faster; what is a fraction above it is looked at again.
        self._lane_mark = floor(NEAR * self._lane_limit)
        is_plain = len(store.rates) == 1 and store.burst is None and self._admission.is_here
        if is_plain and store.sub_windows is not None:
            restrictions = self._admission.restrictions
            free = not self._queues.by_key and not (restrictions and restrictions.by_key)
            if self._lane_limit > store.sub_windows and free:
                lane = cast(dict[Hashable, Window], store.entries)
                ramps = self._admission.ramps
                if ramps is None and self.load is None:
                    self._lane = lane
                elif ramps is None or (ramps.is_warm and ramps.timing.idle_after >= store.longest):
                    self._bent_lane = lane
