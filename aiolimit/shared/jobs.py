"""What a limiter asks of the engine, each with what follows from the answer."""

from collections.abc import Callable, Hashable
from typing import Protocol

from aiolimit.counts import Limits
from aiolimit.shared.local import LocalShare
from aiolimit.shared.script import Answer, Call, Run, Shape
from aiolimit.shared.ticket import Stamp, Ticket

__all__ = ["Charge", "Debit", "GiveBack", "Look", "Take"]


class Quota(Protocol):
    """What jobs have to know of `SharedQuota`."""

    local: LocalShare
    time: Callable[[], float]

    def shape(self, key: Hashable, limits: Limits, *, bends: bool = False) -> Shape:
        """Of a call for that key."""
        ...

    def engine_now(self) -> float | None:
        """The time to tell the engine."""
        ...

    def engine_time(self, at: float) -> float:
        """What the engine calls a moment of this process."""
        ...

    def wanted(self, key: Hashable, ticket: Ticket) -> tuple[list[Run], Limits] | None:
        """What to ask for now."""
        ...

    def read(self, raw: bytes, key: Hashable, limits: Limits) -> Answer:
        """Read an answer, and note what it tells of the key."""
        ...

    def granted(self, key: Hashable, ticket: Ticket, runs: list[Run], answer: Answer) -> None:
        """So many were let in."""
        ...

    def not_granted(self, key: Hashable, ticket: Ticket, asked: int) -> None:
        """There was no answer."""
        ...

    def fastest(self) -> float:
        """The highest pace there has been, cost a second."""
        ...


class Take:
    """Let in as many as fit of those who wait for a key."""

    __slots__ = ("_key", "_quota", "_runs", "_ticket")

    keeps = False

    def __init__(self, quota: Quota, key: Hashable, ticket: Ticket) -> None:
        self._quota = quota
        self._key = key
        self._ticket = ticket
        self._runs: list[Run] = []

    def compose(self) -> Call | None:
        """For all who want it by now."""
        found = self._quota.wanted(self._key, self._ticket)
        if found is None:
            return None
        self._runs, limits = found
        shape = self._quota.shape(self._key, limits, bends=True)
        return shape.take(self._quota.engine_now(), self._runs)

    def answer(self, raw: bytes) -> None:
        """Hand out what was granted."""
        answer = self._quota.read(raw, self._key, self._ticket.limits)
        self._quota.granted(self._key, self._ticket, self._runs, answer)

    def fail(self, _error: Exception) -> None:
        """The failure policy decides."""
        asked = sum(count for _, count in self._runs)
        self._quota.not_granted(self._key, self._ticket, asked)


class _Told:
    """A call of which nobody waits for the answer."""

    __slots__ = ("_cost", "_limits", "_quota", "_stamp", "key")

    keeps = True

    def __init__(
        self, quota: Quota, key: Hashable, cost: float, limits: Limits, stamp: Stamp
    ) -> None:
        self._quota = quota
        self._cost = cost
        self._limits = limits
        self._stamp = stamp
        self.key = key

    def answer(self, raw: bytes) -> None:
        """Note what it tells of the key."""
        self._quota.read(raw, self.key, self._limits)

    def fail(self, _error: Exception) -> None:
        """It may have been done, so it is not done again."""


class Charge(_Told):
    """Charge a cost that has been used already."""

    __slots__ = ()

    def compose(self) -> Call | None:
        """Whatever it does to the limit."""
        shape = self._quota.shape(self.key, self._limits)
        return shape.charge(self._quota.engine_now(), self._cost)

    def answer(self, raw: bytes) -> None:
        """Note when it was, as some of it may be given back."""
        self._stamp.engine = self._quota.read(raw, self.key, self._limits).at


class GiveBack(_Told):
    """Give back to the entry that it came from."""

    __slots__ = ()

    def compose(self) -> Call | None:
        """At the time that the engine has told, if it has."""
        at = self._stamp.engine
        if at is None:
            at = self._quota.engine_time(self._stamp)
        shape = self._quota.shape(self.key, self._limits)
        fastest = self._quota.fastest()
        return shape.give_back(self._quota.engine_now(), self._cost, at, fastest)


class Debit:
    """Tell what was let in without the engine, and what it may have lost."""

    __slots__ = ("_limits", "_quota", "_until", "key", "then")

    keeps = False

    def __init__(self, quota: Quota, key: Hashable, limits: Limits) -> None:
        self._quota = quota
        self._limits = limits
        self._until = 0.0
        self.key = key
        self.then: Callable[[], object] = lambda: None

    def compose(self) -> Call | None:
        """All of the last window."""
        now = self._until = self._quota.time()
        everything, unknown, latest = self._quota.local.past(self.key, now)
        if not unknown and latest is None:
            self.then()
            return None
        since = -1.0 if latest is None else self._quota.engine_time(latest)
        shape = self._quota.shape(self.key, self._limits)
        return shape.debit(self._quota.engine_now(), since, everything, unknown)

    def answer(self, raw: bytes) -> None:
        """The engine knows it now."""
        self._quota.read(raw, self.key, self._limits)
        self._quota.local.settled(self.key, self._until)
        self.then()

    def fail(self, _error: Exception) -> None:
        """It is told again when the engine is back: twice is too strict for a window at most."""


class Look:
    """Ask how a key stands."""

    __slots__ = ("_key", "_limits", "_on_end", "_quota")

    keeps = False

    def __init__(
        self, quota: Quota, key: Hashable, limits: Limits, on_end: Callable[[], object]
    ) -> None:
        self._quota = quota
        self._key = key
        self._limits = limits
        self._on_end = on_end

    def compose(self) -> Call | None:
        """Nothing is wanted."""
        shape = self._quota.shape(self._key, self._limits)
        return shape.take(self._quota.engine_now(), ())

    def answer(self, raw: bytes) -> None:
        """Note what it tells of the key."""
        try:
            self._quota.read(raw, self._key, self._limits)
        finally:
            self._on_end()

    def fail(self, _error: Exception) -> None:
        """What is known has to do."""
        self._on_end()
