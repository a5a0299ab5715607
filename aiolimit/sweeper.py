"""The timer that has idle keys forgotten without any further call."""

import asyncio
import weakref
from collections.abc import Callable
from typing import Final, Protocol

from aiolimit.clock import Clock, Timer

__all__ = ["Sweeper"]

_AT_ONCE: Final = 1000  # keys looked at in one step: about 1 ms of work


class Swept(Protocol):
    """What holds keys that become idle."""

    @property
    def longest(self) -> float:
        """Seconds after which an idle key can be forgotten, at the latest."""
        ...

    def evict(self, now: float, most: int) -> float | None:
        """Look at so many keys; returns after how many seconds to go on, None if none is left."""
        ...


class Sweeper:
    """Makes the steps of a store's eviction passes, on the loop that is running."""

    __slots__ = ("__weakref__", "_clock", "_loop", "_store", "_time", "_timer")

    def __init__(self, store: Swept, clock: Clock, time: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._time = time
        self._timer: Timer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def see_to_it(self) -> None:
        """Have the keys that are here, and the one that comes, forgotten in time."""
        if self._timer is not None and self._loop is not None and self._loop.is_running():
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            # No loop, no timer: whoever brings a key looks after two.
            self._store.evict(self._time(), 2)
        else:
            self._loop = loop
            self._set(self._store.longest)

    def periods_changed(self) -> None:
        """Be in time for the new periods too: they may be shorter."""
        if self._timer is not None and self._loop is not None:
            if self._loop.is_running():
                self._set(self._store.longest)
            else:  # the next key sets it anew
                self._timer.cancel()
                self._timer = None

    def _set(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # The timer must not keep alive a limiter that nobody uses any more.
        me = weakref.ref(self)

        def step() -> None:
            if (sweeper := me()) is not None:
                sweeper._step()

        self._timer = self._clock.call_later(delay, step)

    def _step(self) -> None:
        self._timer = None
        again: float | None = self._store.longest  # if a key's own methods raise in here
        try:
            again = self._store.evict(self._time(), _AT_ONCE)
        finally:
            if again is not None:
                self._set(again)
