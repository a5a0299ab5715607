"""Where the counts live: keys and their windows, in this process.

A store is one verb, `take`: take up to `want`, at least `least`, atomically over all rates of a
key. This one answers at once. Around it stand the three things that keep a table of keys small:

- **Eviction.** A key goes when its last admission has left its windows and nobody waits for it,
  never before, so that forgetting it changes no decision. A pass over all keys is made in small
  steps, so that no step stops the loop, and is due when the youngest key of the last pass would
  be idle: one idle period after the last call nothing is left.
- **Overflow.** Keys past `max_keys` share one window. Whoever gets a window of its own while the
  shared one still holds admissions inherits them, as some may have been its own: spraying keys
  frees nobody, and an honest newcomer is held up for one period at most.
- **Moving.** When the periods change, keys move to the new layout when they are next used, or in
  the steps of the next pass. No call pays for all of them.
"""

from collections.abc import Callable, Hashable
from math import floor, inf
from typing import Final

from aiolimit.counts import Limits, Look
from aiolimit.eviction import Eviction
from aiolimit.pacer import Pacer
from aiolimit.rate import Rate
from aiolimit.window import Window, span_of

__all__ = ["NEAR", "OVERFLOW", "Account", "MemoryStore"]

#: Who has used more than this share of a limit is near it; Envoy draws the line there, too.
NEAR: Final = 0.8

_STEP = 4  # keys to look at for one that does not find room


class _Overflow:
    def __repr__(self) -> str:
        return "<keys past max_keys>"


#: The key whose window the keys past `max_keys` share.
OVERFLOW: Final = _Overflow()


class Account:
    """What a key has under several rates, or under a burst: a window per rate, and its pacer."""

    __slots__ = ("pacer", "windows")

    def __init__(self, windows: tuple[Window, ...], pacer: Pacer | None) -> None:
        self.windows = windows
        self.pacer = pacer

    def copy(self) -> "Account":
        """Another one with the same charges."""
        windows = tuple(window.copy() for window in self.windows)
        return Account(windows, self.pacer and self.pacer.copy())


# Under one rate without a burst a key is a bare window: most keys are, and there may be millions.
_Entry = Window | Account


class MemoryStore:
    """The counts of one limiter, kept in this process. All times are seconds, all else is cost."""

    def __init__(
        self,
        rates: tuple[Rate, ...],
        *,
        sub_windows: int | None = 32,
        burst: float | None = None,
        max_keys: int | None = None,
    ) -> None:
        self.rates = rates
        self.sub_windows = sub_windows
        self.burst = burst
        self.max_keys = max_keys
        self.on_new_key: Callable[[], object] = lambda: None
        self.is_held: Callable[[Hashable], bool] = lambda _key: False
        self.evicted = 0
        self.near = 0  # admissions that left a key near a limit
        self.layout = 0  # how often the periods have changed
        self.fastest = self._pace(tuple(rate.limit for rate in rates))[1]  # pace there has been
        self.entries: dict[Hashable, _Entry] = {}
        self._past: list[tuple[tuple[Rate, ...], dict[Hashable, _Entry]]] = []
        self._overflow: _Entry | None = None
        self._eviction = Eviction(self._idle_after)

    def tables(self) -> list[dict[Hashable, _Entry]]:
        """The keys and their entries: those of now, and those from before the periods changed."""
        return [self.entries, *(entries for _, entries in self._past)]

    def __len__(self) -> int:
        return len(self.entries) + sum(len(entries) for _, entries in self._past)

    def __contains__(self, key: Hashable) -> bool:
        return key in self.entries or any(key in entries for _, entries in self._past)

    @property
    def longest(self) -> float:
        """The longest period, after which an idle key is forgotten, seconds."""
        return max(rate.per for rate in self.rates)

    def take(
        self,
        key: Hashable,
        want: float,
        least: float,
        limits: Limits,
        now: float,
        at: float | None = None,
        ahead: float = 0,
    ) -> tuple[float, float]:
        """Take up to `want`, at least `least`, under every limit at once, or take nothing.

        Returns what was granted and, if nothing was, the seconds until `least` would be, if
        nobody else takes anything. `want=0` only asks for those seconds, behind a queue whose
        cost is `ahead`. `want < 0` gives back what was taken `at` that time: to the entries it
        came from, and nothing where those have left.
        """
        if want < 0:
            return self._give_back(key, -want, limits, now, now if at is None else at), 0.0
        if want == 0:
            return 0, self._wait(self._find(key) or self._new(), ahead + least, limits, now)
        entry = self.entries.get(key) or self._open(key, now)
        if isinstance(entry, Window) and (limit := limits[0]) is not None:
            # What follows comes to the same; most keys are one window, and this is its short way.
            period = self.rates[0].per
            span = span_of(period, self.sub_windows, limit, want)
            if entry.take(want, now, limit, period, span):
                self.near += entry.total > NEAR * limit
                return want, 0.0
        granted = want
        if not self._fits(entry, want, limits, now):
            granted = self._room(entry, limits, now) if least < want else 0
            if granted < least or granted <= 0:
                return 0, self._wait(entry, least, limits, now)
        self._charge(entry, granted, limits, now)
        pairs = zip(self._windows(entry), limits, strict=True)
        self.near += any(limit and window.total > NEAR * limit for window, limit in pairs)
        return granted, 0.0

    def charge(self, key: Hashable, cost: float, limits: Limits, now: float) -> float:
        """Take the cost whether it fits or not: it has been used already. Returns when it was."""
        self._charge(self.entries.get(key) or self._open(key, now), cost, limits, now)
        return now

    def give_back(
        self,
        key: Hashable,
        cost: float,
        limits: Limits,
        layout: int | None,
        now: float,
        at: float,
    ) -> None:
        """Give back what was taken `at` that time under those limits.

        `layout` is that of then where not all rates were charged, else None: if it has changed
        since, nobody can tell whose copy a window is, and nothing is given back.
        """
        if layout is None:
            limits = tuple(rate.limit for rate in self.rates)
        if layout is None or layout == self.layout:
            self.take(key, -cost, 0, limits, now, at)

    def look(self, key: Hashable, cost: float, limits: Limits, now: float) -> list[Look | None]:
        """How the key stands under each rate, None where a rate does not apply.

        The burst is told with the rate that paces it: the lowest. Changes nothing.
        """
        entry = self._find(key) or self._new()
        looks: list[Look | None] = []
        for rate, window, limit in zip(self.rates, self._windows(entry), limits, strict=True):
            if limit is None:
                looks.append(None)
                continue
            wait = window.wait(cost, now, limit, rate.per)
            room = max(0, window.room(now, limit, rate.per))
            reset = window.empty_after(now, rate.per)
            _, more = window.left(now, limit, rate.per)
            looks.append(Look(room, wait, reset, more, "quota" if wait else "nothing"))
        index, pace = self._pace(limits)
        slowest = looks[index]
        if slowest and isinstance(entry, Account) and entry.pacer and self.burst is not None:
            wait = entry.pacer.wait(cost, now, pace, self.burst)
            room = max(0, entry.pacer.room(now, pace, self.burst))
            reset = entry.pacer.empty_after(now, pace)
            more = slowest.more_after
            if room < slowest.remaining:  # of what grows evenly there is more with the next whole
                more = entry.pacer.wait(min(floor(room) + 1, self.burst), now, pace, self.burst)
            looks[index] = Look(
                min(slowest.remaining, room),
                max(slowest.retry_after, wait),
                max(slowest.reset_after, reset),
                more,
                "pace" if wait > slowest.retry_after else slowest.binding,
            )
        return looks

    def left(self, key: Hashable, limits: Limits, now: float) -> list[tuple[float, float] | None]:
        """What is left of each rate, 0 or more, and the seconds until there is more.

        The part of `look` that every response tells, made to be quick.
        """
        entry = self.entries.get(key) or self._find(key) or self._new()
        if isinstance(entry, Window):
            limit = limits[0]
            return [None if limit is None else entry.left(now, limit, self.rates[0].per)]
        if entry.pacer is not None:
            looks = self.look(key, 0, limits, now)
            return [look and (look.remaining, look.more_after) for look in looks]
        return [
            None if limit is None else window.left(now, limit, rate.per)
            for rate, window, limit in zip(self.rates, entry.windows, limits, strict=True)
        ]

    def home(self, key: Hashable, now: float) -> Hashable:
        """The key whose windows a call for this key is charged to: its own, or the overflow's."""
        if self.max_keys is None or key in self or len(self) < self.max_keys:
            return key
        self.evict(now, _STEP)
        return key if len(self) < self.max_keys else OVERFLOW

    def forget(self, key: Hashable) -> None:
        """Drop one key and all that is charged to it. A key that shares the overflow stays."""
        for entries in (self.entries, *(entries for _, entries in self._past)):
            entries.pop(key, None)

    def clear(self) -> None:
        """Drop all keys."""
        self.entries.clear()
        self._past.clear()
        self._overflow = None
        self._eviction.begin_anew()

    def change(self, rates: tuple[Rate, ...]) -> None:
        """Use other rates from the next decision on; what is charged stays charged."""
        old, self.rates = self.rates, rates
        self.fastest = max(self.fastest, self._pace(tuple(rate.limit for rate in rates))[1])
        if [rate.per for rate in old] != [rate.per for rate in rates]:
            self.layout += 1
            if self.entries:
                self._past.append((old, self.entries))
            self.entries = {}
            self._eviction.begin_anew()
            if self._overflow is not None:
                self._overflow = self._moved(self._overflow, old)

    def evict(self, now: float, most: int) -> float | None:
        """Make a step of a pass: look at up to `most` keys, forget those that are idle.

        Returns the seconds after which to make the next step, None once there are no keys.
        """
        if self._past:
            rates, entries = self._past[-1]
            for _ in range(min(most, len(entries))):
                key, entry = entries.popitem()
                self.entries[key] = self._moved(entry, rates)
            if not entries:
                self._past.pop()
            return 0.0
        forgotten, again = self._eviction.step(self.entries, now, most, self.longest)
        self.evicted += forgotten
        return again

    def _new(self) -> _Entry:
        if len(self.rates) == 1 and self.burst is None:
            return Window()
        pacer = None if self.burst is None else Pacer()
        return Account(tuple(Window() for _ in self.rates), pacer)

    def _find(self, key: Hashable) -> _Entry | None:
        """What the key is charged to, None if there is nothing yet. Changes no count."""
        if key is OVERFLOW:
            return self._overflow
        if (entry := self.entries.get(key)) is not None:
            return entry
        for rates, entries in self._past:
            if (entry := entries.pop(key, None)) is not None:
                self.entries[key] = entry = self._moved(entry, rates)
                return entry
        return self._overflow

    def _open(self, key: Hashable, now: float) -> _Entry:
        """What the key is charged to, made if need be."""
        entry = self._find(key)
        if entry is not None and (key is OVERFLOW or entry is not self._overflow):
            return entry
        if key is OVERFLOW:
            self._overflow = entry = self._new()
        else:
            if self._overflow is not None and self._empty_after(self._overflow, now) <= 0:
                self._overflow = None
            entry = self._new() if self._overflow is None else self._overflow.copy()
            self.on_new_key()  # before it is here: it may forget keys, and this one is empty yet
            self.entries[key] = entry
        for window in self._windows(entry):
            window.forget_before(now)
        return entry

    def _moved(self, entry: _Entry, old: tuple[Rate, ...]) -> _Entry:
        """The same charges under the rates of now.

        Each rate takes over the window with its own period or, where there was none, the one
        that remembers longest.
        """
        pairs = zip((rate.per for rate in old), self._windows(entry), strict=True)
        # Of two with one period the fuller one, which the other cannot hold more than.
        windows = dict(sorted(pairs, key=lambda pair: pair[1].total))
        oldest = windows[max(windows)]
        taken = tuple(windows.get(rate.per, oldest).copy() for rate in self.rates)
        if len(taken) == 1 and self.burst is None:
            return taken[0]
        return Account(taken, entry.pacer if isinstance(entry, Account) else None)

    def _fits(self, entry: _Entry, cost: float, limits: Limits, now: float) -> bool:
        """Whether every rate that applies lets the cost pass now."""
        for rate, window, limit in zip(self.rates, self._windows(entry), limits, strict=True):
            if limit is not None and cost > window.room(now, limit, rate.per):
                return False
        if isinstance(entry, Account) and entry.pacer and self.burst is not None:
            return entry.pacer.wait(cost, now, self._pace(limits)[1], self.burst) == 0
        return True

    def _wait(self, entry: _Entry, cost: float, limits: Limits, now: float) -> float:
        """Seconds until every rate that applies lets the cost pass; 0 if it passes now."""
        longest = 0.0
        for rate, window, limit in zip(self.rates, self._windows(entry), limits, strict=True):
            if limit is not None:
                longest = max(longest, window.wait(cost, now, limit, rate.per))
        if isinstance(entry, Account) and entry.pacer and self.burst is not None:
            _, pace = self._pace(limits)
            longest = max(longest, entry.pacer.wait(cost, now, pace, self.burst))
        return longest

    def _room(self, entry: _Entry, limits: Limits, now: float) -> float:
        """What would pass under every rate that applies."""
        room = inf
        for rate, window, limit in zip(self.rates, self._windows(entry), limits, strict=True):
            if limit is not None:
                room = min(room, window.room(now, limit, rate.per))
        if isinstance(entry, Account) and entry.pacer and self.burst is not None:
            room = min(room, entry.pacer.room(now, self._pace(limits)[1], self.burst))
        return room

    def _charge(self, entry: _Entry, cost: float, limits: Limits, now: float) -> None:
        if isinstance(entry, Window) and (limit := limits[0]) is not None:
            entry.add(cost, now, span_of(self.rates[0].per, self.sub_windows, limit, cost))
            return
        for rate, window, limit in zip(self.rates, self._windows(entry), limits, strict=True):
            if limit is not None:
                window.add(cost, now, span_of(rate.per, self.sub_windows, limit, cost))
        if isinstance(entry, Account) and entry.pacer:
            entry.pacer.take(cost, now, self._pace(limits)[1])

    def _give_back(
        self, key: Hashable, cost: float, limits: Limits, now: float, at: float
    ) -> float:
        entry = self._find(key)
        if entry is None or (entry is self._overflow and key is not OVERFLOW):
            return 0
        given = 0.0
        for rate, window, limit in zip(self.rates, self._windows(entry), limits, strict=True):
            if limit is not None:
                given = max(given, window.give_back(cost, at, now, rate.per))
        if given and isinstance(entry, Account) and entry.pacer:
            entry.pacer.give_back(given, at, now, self._pace(limits)[1], self.fastest)
        return -given

    def _idle_after(self, key: Hashable, entry: _Entry, now: float) -> float:
        left = self._empty_after(entry, now)
        return self.longest if left <= 0 and self.is_held(key) else left

    def _empty_after(self, entry: _Entry, now: float) -> float:
        """Seconds until nothing of what is charged matters any more."""
        if isinstance(entry, Window):
            return entry.idle_after(now, self.rates[0].per)
        pairs = zip(self.rates, self._windows(entry), strict=True)
        longest = max(window.empty_after(now, rate.per) for rate, window in pairs)
        if isinstance(entry, Account) and entry.pacer:
            _, pace = self._pace(tuple(rate.limit for rate in self.rates))
            # With a rate of 0 the pacer never drains, and nothing passes it either.
            longest = max(longest, entry.pacer.empty_after(now, pace) if pace else 0.0)
        return longest

    def _pace(self, limits: Limits) -> tuple[int, float]:
        """Which of the rates is the lowest, and how much it lets through in a second."""
        paces = [
            inf if limit is None else limit / rate.per
            for rate, limit in zip(self.rates, limits, strict=True)
        ]
        pace = min(paces)
        return paces.index(pace), pace

    @staticmethod
    def _windows(entry: _Entry) -> tuple[Window, ...]:
        return (entry,) if isinstance(entry, Window) else entry.windows
