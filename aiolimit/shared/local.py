"""This process's own part: what it has let in, and how much it may while the engine is silent.

1. What the engine grants is noted here too, so that the share of this process begins with what it
   has used already.
2. What is let in without the engine is a debt, kept with its time for one window, and told to the
   engine when it is back.

Pure: it takes `now`, reads no clock and knows no engine.
"""

from collections.abc import Hashable
from math import floor, inf

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
        self._debts: dict[Hashable, list[Past]] = {}  # (time, cost), oldest first
        self._eviction = Eviction[list[Past]](lambda _, past, now: past[-1][0] + self.longest - now)

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
        self.counts.charge(self.counts.home(key, now), cost, limits, now)

    def wait(self, key: Hashable, cost: float, limits: Limits, now: float) -> float:
        """Seconds until the share of this process, those limits, lets the cost pass."""
        home = self.counts.home(key, now)
        return self.counts.take(home, 0, cost, limits, now)[1]

    def owe(self, key: Hashable, cost: float, limits: Limits, now: float) -> None:
        """The cost was let in, or charged, and the engine does not know."""
        home = self.counts.home(key, now)
        self.counts.charge(home, cost, limits, now)
        if home is OVERFLOW:
            return  # as many keys as may be kept are kept
        debts = self._debts.get(key)
        if debts is None:
            debts = self._debts[key] = []
        if debts and now - debts[-1][0] < self.longest / _JOINED:
            debts[-1] = now, debts[-1][1] + cost
        else:
            while debts and debts[0][0] <= now - self.longest:
                debts.pop(0)
            debts.append((now, cost))

    def give_back(
        self,
        key: Hashable,
        cost: float,
        limits: Limits,
        now: float,
        at: float,
        *,
        is_debt: bool,
    ) -> None:
        """What was let in at that time was not needed."""
        self.counts.take(self.counts.home(key, now), -cost, 0, limits, now, at)
        debts = self._debts.get(key, [])
        index = 0
        while is_debt and cost > 0 and index < len(debts):
            then, owed = debts[index]
            if then >= at:
                part = min(cost, owed)
                debts[index] = then, owed - part
                cost -= part
            index += 1

    def look(self, key: Hashable, cost: float, limits: Limits, now: float) -> list[Look | None]:
        """How the key stands under this process's share."""
        return self.counts.look(self.counts.home(key, now), cost, limits, now)

    def past(self, key: Hashable, now: float) -> tuple[list[Past], list[Past], float | None]:
        """What this process let in: all of it, what the engine does not know of, and the latest.

        As (seconds ago, cost), oldest first. The latest is the time of what the engine granted
        last, as far as that is known.
        """
        entry = self.counts.entries.get(key)
        debts = [(now - at, cost) for at, cost in self._debts.get(key, ()) if cost > 0]
        if entry is None:
            return debts, debts, None
        windows = (entry,) if isinstance(entry, Window) else entry.windows
        # The window that remembers longest; of two the fuller one.
        longest = max(
            zip(self.counts.rates, windows, strict=True),
            key=lambda pair: (pair[0].per, pair[1].total),
        )[1]
        everything = _entries(longest, now)
        begun = debts[0][0] if debts else -inf
        granted = [age for age, _ in everything if age > begun]
        return everything, debts, now - granted[-1] if granted else None

    def keys(self) -> list[Hashable]:
        """Those with something that the engine may have to be told."""
        return list(self.counts.entries)

    def owing(self) -> list[Hashable]:
        """Those with something that the engine does not know of."""
        return list(self._debts)

    def settled(self, key: Hashable, until: float) -> None:
        """The engine knows by now what was let in up to then."""
        left = [debt for debt in self._debts.get(key, ()) if debt[0] > until]
        if left:
            self._debts[key] = left
        else:
            self._debts.pop(key, None)

    def forget(self, key: Hashable | None) -> None:
        """Forget one key, or all."""
        if key is None:
            self.counts.clear()
            self._debts.clear()
        else:
            self.counts.forget(key)
            self._debts.pop(key, None)


def _entries(window: Window, now: float) -> list[Past]:
    """A window's entries as (seconds ago, cost), oldest first."""
    flat = (window.older or [])[window.first :]
    found = [(now - at, cost) for at, cost in zip(flat[::2], flat[1::2], strict=True)]
    newest = window.total - window.older_total
    if newest > 0:
        found.append((now - window.last, newest))
    return found


def less(look: Look, own: Look) -> Look:
    """Of two views of one rate what both let pass."""
    return Look(
        min(look.remaining, own.remaining),
        max(look.retry_after, own.retry_after),
        max(look.reset_after, own.reset_after),
        own.more_after if own.remaining < look.remaining else look.more_after,
        look.binding if look.retry_after >= own.retry_after else own.binding,
    )
