"""This process's own part: what it has let in, and how much it may while the engine is silent.

1. What the engine grants is noted here too, so that the share of this process begins with what it
   has used already.
2. What is let in without the engine is a debt, kept with its time for one window, and told to the
   engine when it is back.

Pure: it takes `now`, reads no clock and knows no engine.
"""

from bisect import insort
from collections.abc import Hashable
from math import floor

from aiolimit.counts import Limits, Look
from aiolimit.eviction import Eviction
from aiolimit.memory import OVERFLOW, MemoryStore
from aiolimit.rate import Rate
from aiolimit.shared.script import Past
from aiolimit.window import Window

__all__ = ["LocalShare", "less", "share_of"]

_JOINED = 64  # debts of a key that are closer than this part of the longest window are one


def share_of(limit: float, processes: int) -> float:
    """What one of so many processes may use of a limit: a whole number, and of 1 or more one."""
    return limit if limit < 1 else max(1, floor(limit / processes))


class LocalShare:
    """The counts of one process under one limiter."""

    __slots__ = ("_burst", "_debts", "_eviction", "counts")

    def __init__(
        self,
        rates: tuple[Rate, ...],
        sub_windows: int | None,
        burst: float | None,
        max_keys: int | None,
    ) -> None:
        self.counts = MemoryStore(rates, sub_windows=sub_windows, burst=burst, max_keys=max_keys)
        self._burst = burst
        self._debts: dict[Hashable, _Debts] = {}
        self._eviction = Eviction[_Debts](
            lambda _, debts, now: max(at for at, _ in debts.passed) + self.longest - now
        )

    @property
    def longest(self) -> float:
        """Seconds after which nothing of it matters any more."""
        return self.counts.longest

    def evict(self, now: float, most: int) -> float | None:
        """Make a step of a pass over the keys, as `MemoryStore.evict` does."""
        again = self.counts.evict(now, most)
        _, later = self._eviction.step(self._debts, now, most, self.longest)
        if again is None or later is None:
            return later if again is None else again
        return min(again, later)

    def share(self, limits: Limits, processes: int) -> Limits:
        """What this process, one of so many, may use of those limits and of the burst."""
        if self._burst is not None:
            self.counts.burst = max(1, self._burst / processes)
        return tuple(None if limit is None else share_of(limit, processes) for limit in limits)

    def note(self, key: Hashable, cost: float, limits: Limits, now: float) -> None:
        """The engine has granted that to this process."""
        counts = self.counts
        home = key if counts.max_keys is None else counts.home(key, now)
        counts.charge(home, cost, limits, now)

    def wait(self, key: Hashable, cost: float, limits: Limits, now: float) -> float:
        """Seconds until the share of this process, those limits, lets the cost pass."""
        home = self.counts.home(key, now)
        return self.counts.take(home, 0, cost, limits, now)[1]

    def owe(self, key: Hashable, cost: float, limits: Limits, now: float) -> None:
        """The cost was let in, or charged, and the engine does not know."""
        home = self.counts.home(key, now)
        debts = self._debts.get(key)
        if debts is None and home is not OVERFLOW:  # no more keys are kept than may be
            debts = self._debts[key] = _Debts(self._entries(key))
        if debts is not None:
            debts.add(now, cost, self.longest)
        self.counts.charge(home, cost, limits, now)

    def give_back(
        self,
        key: Hashable,
        cost: float,
        limits: Limits,
        now: float,
        at: float,
        *,
        is_debt: bool,
    ) -> float:
        """What was let in at that time was not needed. Returns what the engine has to give back."""
        self.counts.take(self.counts.home(key, now), -cost, 0, limits, now, at)
        debts = self._debts.get(key)
        if debts is None:
            return cost
        taken = _take_out(debts.passed if is_debt else debts.granted, cost, at)
        return cost - taken if is_debt else cost

    def owe_again(self, key: Hashable, cost: float, now: float) -> None:
        """What was noted as charged may not have been."""
        debts = self._debts.get(key)
        if debts is None:
            granted = self._entries(key)
            _take_out(granted, cost, now)
            debts = self._debts[key] = _Debts(granted)
        debts.add(now, cost, self.longest)

    def look(self, key: Hashable, cost: float, limits: Limits, now: float) -> list[Look | None]:
        """How the key stands under this process's share."""
        return self.counts.look(self.counts.home(key, now), cost, limits, now)

    def past(self, key: Hashable, now: float) -> tuple[list[Past], list[Past]]:
        """What this process let in: all of it, and what the engine does not know of.

        As (seconds ago, cost), oldest first.
        """
        debts = self._debts.get(key)
        if debts is None:
            return _ago(self._entries(key), now), []
        passed = _ago(debts.passed, now)
        return _ago(debts.granted, now) + passed, passed

    def _entries(self, key: Hashable) -> list[Past]:
        """What is charged to a key, (time, cost), oldest first, where it is remembered longest."""
        entry = self.counts.entries.get(key)
        if entry is None:
            return []
        windows = (entry,) if isinstance(entry, Window) else entry.windows
        pairs = zip(self.counts.rates, windows, strict=True)
        # Of two windows that remember as long the fuller one.
        _, window = max(pairs, key=lambda pair: (pair[0].per, pair[1].total))
        flat = (window.older or [])[window.first :]
        found = list(zip(flat[::2], flat[1::2], strict=True))
        newest = window.total - window.older_total
        return [*found, (window.last, newest)] if newest > 0 else found

    def keys(self) -> list[Hashable]:
        """Those with something that the engine may have to be told."""
        return list(self.counts.entries)

    def owing(self) -> list[Hashable]:
        """Those with something that the engine does not know of."""
        return list(self._debts)

    def settled(self, key: Hashable) -> None:
        """The engine is told of all that was let in."""
        self._debts.pop(key, None)

    def forget(self, key: Hashable | None) -> None:
        """Forget one key, or all."""
        if key is None:
            self.counts.clear()
            self._debts.clear()
        else:
            self.counts.forget(key)
            self._debts.pop(key, None)


class _Debts:
    """What a key was granted by the engine before it was silent, and what passed since."""

    __slots__ = ("granted", "passed")

    def __init__(self, granted: list[Past]) -> None:
        self.granted = granted  # (time, cost), oldest first
        self.passed: list[Past] = []

    def add(self, at: float, cost: float, longest: float) -> None:
        """So much has passed without the engine then; what it was not told of is added later."""
        passed = self.passed
        if passed and 0 <= at - passed[-1][0] < longest / _JOINED:
            passed[-1] = at, passed[-1][1] + cost
        else:
            while passed and passed[0][0] <= at - longest:
                passed.pop(0)
            insort(passed, (at, cost))


def _take_out(entries: list[Past], cost: float, at: float) -> float:
    """Take up to the cost out of the first entries that are no older than that time."""
    left = cost
    for index, (then, held) in enumerate(entries):
        if then >= at and left > 0:
            part = min(left, held)
            entries[index] = then, held - part
            left -= part
    return cost - left


def _ago(entries: list[Past], now: float) -> list[Past]:
    return [(now - at, cost) for at, cost in entries if cost > 0]


def less(look: Look, own: Look) -> Look:
    """Of two views of one rate what both let pass."""
    return Look(
        min(look.remaining, own.remaining),
        max(look.retry_after, own.retry_after),
        max(look.reset_after, own.reset_after),
        own.more_after if own.remaining < look.remaining else look.more_after,
        look.binding if look.retry_after >= own.retry_after else own.binding,
    )
