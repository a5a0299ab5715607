"""What a limiter asks of the engine, each with what follows from the answer."""

from collections.abc import Callable, Hashable
from typing import Protocol

from aiolimit.counts import Limits
from aiolimit.shared.calls import Calls
from aiolimit.shared.credit import Stamp, Ticket
from aiolimit.shared.local import LocalShare
from aiolimit.shared.script import Answer, Call, Past, Run, Shape, was_refused

__all__ = ["Charge", "Debit", "GiveBack", "Look", "Move", "Take"]


class Quota(Protocol):
    """What jobs have to know of `SharedQuota`."""

    calls: Calls
    local: LocalShare

    def wanted(self, key: Hashable, ticket: Ticket) -> tuple[list[Run], Limits] | None:
        """What to ask for now."""
        ...

    def granted(self, key: Hashable, ticket: Ticket, runs: list[Run], answer: Answer) -> None:
        """So many were let in."""
        ...

    def not_granted(
        self, key: Hashable, ticket: Ticket, runs: list[Run], *, is_unsure: bool
    ) -> None:
        """There was no answer."""
        ...


class _Job:
    """A call for a key.

    keeps, leads: see `sender.Job`.
    """

    __slots__ = ("_layout", "_limits", "_name", "_quota", "_shape", "key")

    keeps = leads = False

    def __init__(self, quota: Quota, key: Hashable, limits: Limits) -> None:
        self._quota = quota
        self._limits = limits
        self._layout = quota.calls.layout  # that the limits belong to
        self._shape: Shape
        self._name = quota.calls.names.of(key)  # raises for a key that has no text
        self.key = key

    def _begin(self, *, bends: bool = False) -> tuple[Shape, bytes, float | None]:
        """Under what the call is made, what the key is called, and the time to tell."""
        calls = self._quota.calls
        if self._layout != calls.layout:
            self._layout, self._limits = calls.layout, calls.limits
        shape = self._shape = calls.shape(self.key, self._limits, bends=bends)
        return shape, self._name, calls.now()

    def _read(self, raw: bytes) -> Answer:
        calls = self._quota.calls
        return calls.read(raw, self.key, self._limits, self._layout, self._shape)

    def answer(self, raw: bytes) -> None:
        """Note what it tells of the key."""
        self._read(raw)

    def fail(self, _error: Exception) -> None:
        """It may have been done, so it is not done again."""


class Take(_Job):
    """Let in as many as fit of those who wait for a key."""

    __slots__ = ("_runs", "_ticket")

    def __init__(self, quota: Quota, key: Hashable, ticket: Ticket) -> None:
        super().__init__(quota, key, ticket.limits)
        self._ticket = ticket
        self._runs: list[Run] = []

    def compose(self) -> Call | None:
        """For all who want it by now."""
        found = self._quota.wanted(self.key, self._ticket)
        if found is None:
            return None
        self._runs, self._limits = found
        self._layout = self._quota.calls.layout
        shape, name, now = self._begin(bends=True)
        return shape.take(name, now, self._runs)

    def answer(self, raw: bytes) -> None:
        """Hand out what was granted."""
        self._quota.granted(self.key, self._ticket, self._runs, self._read(raw))

    def fail(self, error: Exception) -> None:
        """The failure policy decides."""
        is_unsure = not was_refused(error)
        self._quota.not_granted(self.key, self._ticket, self._runs, is_unsure=is_unsure)


class Charge(_Job):
    """Charge a cost that has been used already, whatever that does to the limit."""

    __slots__ = ("_cost", "_stamp")

    def __init__(
        self, quota: Quota, key: Hashable, cost: float, limits: Limits, stamp: Stamp
    ) -> None:
        super().__init__(quota, key, limits)
        self._cost = cost
        self._stamp = stamp

    def compose(self) -> Call | None:
        """All of it."""
        shape, name, now = self._begin()
        return shape.charge(name, now, self._cost)

    def answer(self, raw: bytes) -> None:
        """Note when it was, as some of it may be given back."""
        self._stamp.engine = self._read(raw).at

    def fail(self, _error: Exception) -> None:
        """It may not have been done: it is told as a debt, as twice is better than never."""
        self._quota.local.owe_again(self.key, self._cost, self._stamp)


class Move(_Job):
    """Take what is charged to a key over to other periods."""

    __slots__ = ("on_failure", "then")

    keeps = leads = True

    def __init__(self, quota: Quota, key: Hashable, limits: Limits) -> None:
        super().__init__(quota, key, limits)
        self.on_failure: Callable[[], object] = lambda: None
        self.then: Callable[[], object] = lambda: None

    def compose(self) -> Call | None:
        """To those of now."""
        shape, name, now = self._begin()
        return shape.move(name, now)

    def answer(self, raw: bytes) -> None:
        """Note what it tells of the key."""
        self._read(raw)
        self.then()

    def fail(self, _error: Exception) -> None:
        """It is done when the key is asked for: twice does no harm."""
        self.on_failure()
        self.then()


class GiveBack(Charge):
    """Give back to the entry that it came from."""

    __slots__ = ()

    keeps = True

    def compose(self) -> Call | None:
        """At the time that the engine has told, if it has."""
        if None in self._limits and self._layout != self._quota.calls.layout:
            return None  # nobody can tell to which windows
        at = self._stamp.engine
        if at is None:
            at = self._quota.calls.engine_time(self._stamp)
        shape, name, now = self._begin()
        calls = self._quota.calls
        born = calls.born(self.key)
        return shape.give_back(name, now, self._cost, at, calls.fastest, born)

    def answer(self, raw: bytes) -> None:
        """Note what it tells of the key."""
        self._read(raw)

    def fail(self, _error: Exception) -> None:
        """It may have been done, so it is not done again."""


class Debit(_Job):
    """Tell what was let in without the engine, and what it may have lost."""

    __slots__ = ("_since", "_told", "lost", "on_loss", "then")

    leads = True  # whoever asks for the key has it told before

    def __init__(self, quota: Quota, key: Hashable, limits: Limits) -> None:
        super().__init__(quota, key, limits)
        self._since: float | None = None  # until it is composed
        self._told: list[Past] = []
        #: What the engine has lost for sure: when it told of it, and what it was.
        self.lost: tuple[float, list[Past]] | None = None
        self.on_loss: Callable[[], object] = lambda: None  # the engine has lost what it knew
        self.then: Callable[[], object] = lambda: None

    def compose(self) -> Call | None:
        """All of the last window."""
        now = self._quota.calls.time()
        everything, unknown = self._quota.local.past(self.key, now)
        since = self._quota.calls.told_at(self.key)
        if self.lost is not None:
            since, everything = self.lost[0], [(now - at, cost) for at, cost in self.lost[1]]
        if not unknown and (since < 0 or not everything):
            self.then()
            return None
        # Known from here on, or a second one on its way would tell it again.
        self._since = since
        self._quota.calls.tell_at(self.key, -1.0)
        self._told = [(now - age, cost) for age, cost in unknown]
        self._quota.local.settled(self.key)
        shape, name, fixed = self._begin()
        return shape.debit(name, fixed, since, everything, unknown)

    def answer(self, raw: bytes) -> None:
        """The engine knows it now."""
        if self._read(raw).granted:
            self.on_loss()
        self.then()

    def fail(self, _error: Exception) -> None:
        """It is told again when the engine is back: twice is too strict for a window at most."""
        if self._since is not None:
            self._quota.calls.tell_at(self.key, self._since)
        for at, cost in self._told:
            self._quota.local.owe_again(self.key, cost, at)
        self.then()


class Look(_Job):
    """Ask how a key stands."""

    __slots__ = ("_on_end",)

    def __init__(
        self, quota: Quota, key: Hashable, limits: Limits, on_end: Callable[[], object]
    ) -> None:
        super().__init__(quota, key, limits)
        self._on_end = on_end

    def compose(self) -> Call | None:
        """Nothing is wanted."""
        shape, name, now = self._begin()
        return shape.take(name, now, ())

    def answer(self, raw: bytes) -> None:
        """Note what it tells of the key."""
        try:
            self._read(raw)
        finally:
            self._on_end()

    def fail(self, _error: Exception) -> None:
        """What is known has to do."""
        self._on_end()
