"""One key's sliding window: a counter that is never over its limit.

The window is a short list of entries `(time of the entry's last admission, cost)`, newest last,
and a running total.

1. An admission joins the newest entry while less than `span = period / N` has passed since that
   entry was opened; otherwise it opens one.
2. An entry leaves when `period` has passed since its *last* admission. An admission exactly
   `period` old no longer counts.
3. Where the limit is at most N, no cost of 1 or more joins (its span is 0): the window is an
   exact log, and still short.

From these follows all that is promised. An admission is counted for at least `period`, because
it leaves no earlier than the last one it shares an entry with: so no half-open interval of that
length ever holds more than the limit, whatever the pattern. It is counted for less than
`period + span`: so under saturation at least N / (N + 1) of the limit is admitted. Entries are
opened at least `span` apart: so at most N + 2 of them exist, each is appended and dropped once,
and nothing has to be cleaned in the background.

Nothing here reads a clock or knows a loop: `now` is an argument, in seconds of any origin, and
should not step back (`clock.steady_time` sees to it); a time before the newest admission counts
as the time of that. The period and the limit are arguments too, because they belong to the
limiter and may change between two calls.
"""

from bisect import bisect_left
from math import fsum, inf, nextafter

__all__ = ["Window", "seconds_until", "span_of"]

_ABOUT = 1e-6  # seconds: sums of times are closer to what is exact than that
_COMPACT_AT = 64  # cells that may stand dropped at the front of `older` until they are removed


def span_of(period: float, sub_windows: int | None, limit: float, cost: float) -> float:
    """How long an entry opened by this cost may be joined, in seconds; 0 keeps it by itself."""
    if sub_windows is None or (limit <= sub_windows and cost >= 1):
        return 0.0
    return period / sub_windows


def _passed(since: float, now: float, period: float) -> bool:
    """Whether `period` seconds have passed, to the last bit.

    A difference of floats is rounded, and may come out as the period a hair too early. Then the
    sign of `fsum` tells, which is that of the exact sum.
    """
    elapsed = now - since
    return elapsed > period or (elapsed == period and fsum((now, -since, -period)) >= 0.0)


def seconds_until(since: float, now: float, period: float) -> float:
    """The least wait after which `period` has passed: who sleeps just that is let in."""
    when = since + period
    if when - since <= period:  # else it has passed by then, whatever was rounded
        while not _passed(since, when, period):
            when = nextafter(when, inf)
    wait = when - now
    if wait <= 0.0:
        return 0.0
    while now + wait < when:
        wait = nextafter(wait, inf)
    return wait


class Window:
    """The entries of one key under one rate.

    Of the newest entry only what the next decision needs is kept: its last admission and until
    when it may be joined; its cost is `total - older_total`. The older entries lie flat in one
    list, time, cost, time, cost, which most keys never need.
    """

    __slots__ = ("closes", "first", "gone", "last", "older", "older_total", "total")

    def __init__(self) -> None:
        self.total: float = 0  # the cost of all entries
        self.closes = -inf  # until this time an admission joins the newest entry
        self.last = -inf  # the newest entry's last admission
        self.gone = -inf  # what was admitted up to then is not in here any more
        self.older: list[float] | None = None
        self.older_total: float = 0
        self.first = 0  # where the oldest entry stands in `older`; what is before it has left

    def copy(self) -> "Window":
        """Another window with the same entries."""
        twin = Window()
        twin.total, twin.older_total = self.total, self.older_total
        twin.closes, twin.last, twin.gone = self.closes, self.last, self.gone
        twin.older = self.older[self.first :] if self.older else None
        return twin

    def join(self, now: float, limit: float) -> bool:
        """Admit a cost of 1 into the newest entry, or do nothing and return False.

        The common case of `take`, by itself because everyone's speed hangs on it: while the
        newest entry is open and there is room, nothing old has to be looked at. Not for a
        window that is an exact log.
        """
        if self.last <= now < self.closes:
            total = self.total + 1
            if total <= limit:
                self.total = total
                self.last = now
                return True
        return False

    def take(self, cost: float, now: float, limit: float, period: float, span: float) -> bool:
        """Admit the cost if it fits, or change nothing and return False."""
        if cost > self.room(now, limit, period):
            return False
        self.add(cost, now, span)
        return True

    def add(self, cost: float, now: float, span: float) -> None:
        """Charge the cost, whether or not it fits."""
        if now < self.last:
            now = self.last
        if now >= self.closes or span == 0.0:
            self._open(now, span)
        self.total += cost
        self.last = now

    def room(self, now: float, limit: float, period: float) -> float:
        """What fits now, after what is old has left; below 0 where more than the limit is in."""
        if self.total:
            self._drop(now if now > self.last else self.last, period)
        return limit - self.total

    def wait(self, cost: float, now: float, limit: float, period: float) -> float:
        """Seconds until the cost fits if nothing else is admitted; 0 if it fits now.

        A cost above the limit is the sum of a queue: it takes whole periods first, in each of
        which the limit is admitted once, and then waits for the rest. With a limit of 0 the
        wait is infinite.
        """
        periods = 0.0
        if cost > limit:
            if limit <= 0 or cost / limit == inf:
                return inf
            rounds = -int(-cost // limit) - 1
            cost -= rounds * limit
            periods = rounds * period
        # The sums are made as `_drop` will make them, or fractions would round another way here.
        if cost <= self.room(now, limit, period) or not self.total:
            return periods
        now = max(now, self.last)
        if self.older is not None:
            total, older_total = self.total, self.older_total
            for index in range(self.first, len(self.older), 2):
                total -= self.older[index + 1]
                older_total -= self.older[index + 1]
                if index + 2 == len(self.older):
                    total -= older_total
                if cost <= limit - total:
                    return seconds_until(self.older[index], now, period) + periods
        return seconds_until(self.last, now, period) + periods

    def empty_after(self, now: float, period: float) -> float:
        """Seconds until the last entry leaves; 0 if there is none."""
        self.room(now, 0, period)
        return seconds_until(self.last, max(now, self.last), period) if self.total else 0.0

    def idle_after(self, now: float, period: float) -> float:
        """About the same, and 0 or less only where it is: most are far from that, either way."""
        left = self.last + period - now if self.total else 0.0
        return left if abs(left) > _ABOUT else self.empty_after(now, period)

    def left(self, now: float, limit: float, period: float) -> tuple[float, float]:
        """What fits now, 0 or more, and seconds until more does: when the oldest entry leaves.

        The seconds are exact where they are about whole; elsewhere they may be rounded in the
        last bit, as each response tells them, in whole seconds.
        """
        if not self.total:
            return limit, 0.0
        oldest = self.last if self.older is None else self.older[self.first]
        if now < self.last or now - oldest >= period:
            left = self.room(now, limit, period)
            if not self.total:
                return limit, 0.0
            now = max(now, self.last)
            oldest = self.last if self.older is None else self.older[self.first]
        else:
            left = limit - self.total
        if left < 0:  # in debt, as after `Permit.adjust`: one that leaves may not be enough
            return 0, self.wait(1, now, limit, period)
        more = oldest + period - now
        if not 1e-9 < more % 1.0 < 1 - 1e-9:
            more = seconds_until(oldest, now, period)
        return left, more

    def give_back(self, cost: float, at: float, now: float, period: float) -> float:
        """Take up to `cost` out of the entry that the admission made at time `at` is in.

        Returns what was taken out: 0 if that entry has left, less than asked if it holds less.
        """
        self.room(now, 0, period)
        if at <= self.gone:
            return 0.0
        left = cost
        older = self.older or []
        index = bisect_left(range(0, len(older), 2), at, self.first // 2, key=older.__getitem__)
        cell = 2 * index
        # Several entries of an exact log may have one time; they leave together.
        while left > 0 and cell < len(older):
            part = min(left, older[cell + 1])
            older[cell + 1] -= part
            self.older_total -= part
            self.total -= part
            left -= part
            if older[cell + 1] <= 0:
                del older[cell : cell + 2]
            else:
                cell += 2
            following = older[cell] if cell < len(older) else self.last
            if following > at:
                break
        else:
            part = min(left, self.total - self.older_total)
            self.total -= part
            left -= part
        if self.total <= 0:
            gone = self.gone
            self._empty()
            self.gone = gone  # more may come at this very time
        elif self.older and self.total - self.older_total <= 0:
            # The newest entry is empty: the one before it is the newest again.
            self.last, part = self.older[-2:]
            del self.older[-2:]
            self.older_total -= part
            self.closes = -inf
        if self.older is not None and self.first >= len(self.older):
            # What was dropped is all that is left of it: then there is nothing older.
            self.total -= self.older_total
            self.older_total = self.first = 0
            self.older = None
        return cost - left

    def forget_before(self, now: float) -> None:
        """Let nothing be given back that was admitted before now: it was not admitted here."""
        self.gone = nextafter(now, -inf)

    def _open(self, now: float, span: float) -> None:
        newest = self.total - self.older_total
        if newest:
            if self.older is None:
                self.older = []
            self.older += (self.last, newest)
            self.older_total = self.total
        self.closes = now + span

    def _drop(self, now: float, period: float) -> None:
        """Let what is old leave."""
        if _passed(self.last, now, period):
            self._empty()
            return
        older = self.older
        if older is None:
            return
        first = self.first
        while first < len(older) and _passed(older[first], now, period):
            self.gone = older[first]
            self.total -= older[first + 1]
            self.older_total -= older[first + 1]
            first += 2
        if first == len(older):
            self.total -= self.older_total  # what rounding has left there
            self.older_total = first = 0
            self.older = None
        elif first >= _COMPACT_AT and 2 * first >= len(older):
            del older[:first]
            first = 0
        self.first = first

    def _empty(self) -> None:
        self.gone = self.last
        self.closes = -inf
        self.total = self.older_total = self.first = 0
        self.older = None
