"""Time: what the limiter asks of a clock, the clock of the running loop, and steadiness."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol, cast

__all__ = ["Clock", "LoopClock", "Timer", "check_clock", "steady_time"]


class Timer(Protocol):
    """A call that will be made."""

    def cancel(self) -> None:
        """Do not make it. Has no effect if it was made or cancelled."""


class Clock(Protocol):
    """The time, and a timer: all that a limiter knows of the world."""

    def time(self) -> float:
        """Seconds since a fixed moment of the clock's own."""
        ...

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        """Call `callback` on the running event loop after `delay` seconds, 0 or more."""
        ...


class LoopClock:
    """The monotonic clock of the machine and the timers of the running event loop."""

    time = staticmethod(time.monotonic)

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        """Have the running loop call `callback`; raises `RuntimeError` if there is none."""
        return asyncio.get_running_loop().call_later(delay, callback)


def check_clock(clock: object) -> Clock:
    """The clock that was given, or that of the running loop for None."""
    if clock is None:
        return LoopClock()
    if not all(callable(getattr(clock, name, None)) for name in ("time", "call_later")):
        raise TypeError(f"clock must have the methods time and call_later, not {clock!r}")
    return cast(Clock, clock)


def steady_time(clock: Clock) -> Callable[[], float]:
    """The clock's `time`, made to stand still where the clock steps back, and then go on.

    A clock set back by an hour would otherwise refill nothing for an hour.
    """
    if clock.time is time.monotonic:
        return time.monotonic
    read = clock.time
    latest = read()
    lost = 0.0

    def steady() -> float:
        nonlocal latest, lost
        now = read() + lost
        if now < latest:
            lost += latest - now
            now = latest
        latest = now
        return now

    return steady
