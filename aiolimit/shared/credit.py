"""What keys were granted by the engine and have not spent, and when it was charged."""

from collections.abc import Callable, Hashable
from math import inf
from typing import Final

from aiolimit.clock import Clock, Timer
from aiolimit.counts import Limits
from aiolimit.errors import Source

__all__ = ["Credits", "Stamp", "Ticket"]

_IDLE: Final = 1.0  # seconds without use after which what is kept is given back
_KEPT: Final = 0.2  # seconds for which credit is kept for a caller who waits elsewhere, too
_ROUNDING: Final = 1e-9  # of a credit: a sum of fractions


class Stamp(float):
    """When something was charged, in this process's time, and what the engine calls that moment.

    engine: microseconds, which mean something to that engine only, and say from which entry to
        give back; None where it does not know of the charge, or not yet.
    """

    engine: float | None = None
    source: Source = "store"
    is_unsure = False  # the engine was asked, and may have charged it, or not


class Ticket:
    """What a key has asked for, or was granted and has not spent."""

    __slots__ = (
        "batch",
        "credit",
        "expires",
        "is_asking",
        "is_hopeful",
        "is_lease",
        "is_used",
        "layout",
        "limits",
        "stamp",
        "timer",
    )

    def __init__(self, limits: Limits) -> None:
        self.limits = limits  # under which it was asked
        self.layout = 0  # of the store then
        self.batch = 0  # what was asked for ahead
        self.is_asking = True
        self.is_hopeful = False  # whether there was room, as far as was known
        self.is_lease = False
        self.is_used = False
        self.credit: float = 0
        self.stamp: Stamp | None = None
        self.expires = -inf
        self.timer: Timer | None = None

    def covers(self, cost: float, limits: Limits) -> bool:
        """Whether the cost was granted: what is charged to some of the rates is not for others."""
        if self.credit < cost * (1 - _ROUNDING) or not cost:
            return False
        if None not in limits and None not in self.limits:
            return True
        return [one is None for one in limits] == [one is None for one in self.limits]

    def keep(self, clock: Clock, until: float, on_end: Callable[[], object]) -> None:
        """Have it looked at when it expires, or a while earlier to see whether it is used."""
        self.sleep()
        self.expires = until
        self.is_used = False
        left = until - clock.time()
        self.timer = clock.call_later(max(0.0, min(left, _IDLE)), on_end)

    def sleep(self) -> None:
        """Have nothing called."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None


class Credits:
    """The tickets of one limiter's keys.

    give_back: called with a key and a ticket that has credit left over.
    """

    __slots__ = ("_by_key", "_clock", "_give_back", "of")

    def __init__(self, clock: Clock, give_back: Callable[[Hashable, Ticket], object]) -> None:
        self._by_key: dict[Hashable, Ticket] = {}
        #: The ticket of a key, if it has asked or has something.
        self.of: Callable[[Hashable], Ticket | None] = self._by_key.get
        self._clock = clock
        self._give_back = give_back

    def open(self, key: Hashable, ticket: Ticket) -> None:
        """A key asks; what it had is given back."""
        if (old := self._by_key.get(key)) is not None:
            self.release(key, old)
        self._by_key[key] = ticket

    def close(self, key: Hashable, ticket: Ticket) -> None:
        """A ticket is over."""
        ticket.sleep()
        if self._by_key.get(key) is ticket:
            del self._by_key[key]

    def spend(self, key: Hashable, ticket: Ticket, cost: float, now: float) -> Stamp:
        """Let a cost that is covered go. Returns when it was charged."""
        stamp = ticket.stamp
        if stamp is None or ticket.is_lease:  # it was granted before it is used
            stamp = Stamp(now)
            stamp.engine = ticket.stamp and ticket.stamp.engine
        ticket.credit -= cost
        ticket.is_used = True
        if ticket.credit <= _ROUNDING * cost:
            self.close(key, ticket)
        return stamp

    def leave(self, key: Hashable, *, lease: float, keeps: bool) -> None:
        """All have gone who could: what is left is a lease for so many seconds, or goes back.

        keeps: whether it is kept a moment for somebody who waits for another store as well.
        """
        ticket = self._by_key.get(key)
        if ticket is None or ticket.is_asking or ticket.timer is not None:
            return
        ticket.is_lease = lease > 0
        if ticket.credit and (lease or keeps):
            until = self._clock.time() + (lease or _KEPT)
            ticket.keep(self._clock, until, lambda: self._look_at(key, ticket))
        else:
            self.release(key, ticket)

    def _look_at(self, key: Hashable, ticket: Ticket) -> None:
        """What is kept has come to its end, or is not used any more, or is looked at later."""
        if self._by_key.get(key) is not ticket:
            return
        if ticket.is_used and self._clock.time() < ticket.expires:
            ticket.keep(self._clock, ticket.expires, lambda: self._look_at(key, ticket))
        else:
            self.release(key, ticket)

    def release(self, key: Hashable, ticket: Ticket) -> None:
        """Give back what was not spent."""
        self.close(key, ticket)
        if ticket.credit > 0 and ticket.stamp is not None:
            self._give_back(key, ticket)

    def release_all(self) -> None:
        """Give back all that was not spent: the process goes."""
        for key, ticket in list(self._by_key.items()):
            if not ticket.is_asking:
                self.release(key, ticket)

    def forget(self, key: Hashable | None) -> None:
        """What was granted to a key, or to all, is not charged any more."""
        for one in list(self._by_key) if key is None else [key]:
            ticket = self._by_key.get(one)
            if ticket is not None and not ticket.is_asking:
                self.close(one, ticket)

    def clear(self) -> None:
        """Another event loop is in use: what was asked on the old one is not answered any more."""
        for ticket in self._by_key.values():
            ticket.sleep()
        self._by_key.clear()
