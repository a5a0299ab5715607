"""What somebody else has said of one key: that it must wait, or how much it has left.

It only takes away from what the limiter would let pass, and goes by itself.

1. A *hold*: nothing passes until a moment. It is only ever extended: a shorter word, or a late
   one, does not end it.
2. After a hold who waits leaves evenly, at the limit's own pace, for as long as `RESUME` and the
   hold had lasted: all at once would be refused again. A cost passes once what went before it
   has had its time.
3. A *ceiling*: at most so much cost passes until a moment, and what comes back evenly meanwhile,
   where it does. What is said later under the same name takes its place, as whoever counts there
   knows better than what was heard before.

Times are seconds of the limiter's clock; `pace` is cost a second. Pure: `now` is an argument.
"""

from math import inf
from typing import Final

from aiolimit.window import seconds_until

__all__ = ["RESUME", "Restriction"]

RESUME: Final = 60.0  # seconds for which calls are spread out after a hold, at most

_NAMES: Final = 16  # ceilings that are kept; names come from outside, and may be made up


class _Ceiling:
    __slots__ = ("left", "refill", "since", "until")

    def __init__(self, left: float, since: float, until: float, refill: float) -> None:
        self.left = left  # at first, less what has passed since
        self.since = since
        self.until = until
        self.refill = refill  # cost a second

    def left_at(self, now: float) -> float:
        return self.left + self.refill * max(0.0, now - self.since)

    def has_room_at(self, cost: float) -> float:
        """When the cost passes if nothing else does."""
        if not self.refill or cost <= self.left:
            return self.since if cost <= self.left else self.until
        return min(self.since + (cost - self.left) / self.refill, self.until)


class Restriction:
    """The hold and the ceilings of one key."""

    __slots__ = (
        "_ceilings",
        "_latest",
        "_next_at",
        "_resumed_at",
        "held_until",
        "stated_until",
    )

    def __init__(self) -> None:
        self.held_until = -inf
        self.stated_until = -inf
        self._resumed_at = -inf  # until when calls are spread out
        self._next_at = -inf  # when the one that went has had its time
        self._latest = -inf, -inf  # when it went, and when it could
        self._ceilings: dict[str, _Ceiling] = {}

    def hold(self, now: float, until: float, period: float, stated_until: float = -inf) -> None:
        """Let nothing pass until then. `period` is that of the limit whose pace holds after.

        stated_until: what was asked for, where that is more than is obeyed.
        """
        self.stated_until = max(self.stated_until, stated_until)
        if until <= max(now, self.held_until):
            return
        self.held_until = until
        self._next_at = max(self._next_at, until)
        self._resumed_at = max(self._resumed_at, until + min(max(period, until - now), RESUME))

    def ceiling(
        self,
        name: str,
        left: float,
        now: float,
        until: float,
        refill: float = 0.0,
        asked_at: float = inf,
    ) -> None:
        """Let at most so much pass until then, and what comes back of it.

        asked_at: when the question was put. Where that was before the answer under that name
            which is known, nobody can tell which of the two is newer, and the lower one holds.
        """
        known = self._ceilings.get(name)
        if known is not None and now < known.until and asked_at < known.since:
            if left >= known.left_at(now):
                return
        past = [other for other, one in self._ceilings.items() if one.until <= now]
        for other in past:
            del self._ceilings[other]
        if name not in self._ceilings and len(self._ceilings) >= _NAMES:
            generous = max(self._ceilings, key=lambda other: self._ceilings[other].left)
            if self._ceilings[generous].left <= left:
                return
            del self._ceilings[generous]
        self._ceilings[name] = _Ceiling(left, now, until, refill)

    def lift(self, name: str, asked_at: float) -> None:
        """There is no ceiling of that name, says an answer to a question put at that time."""
        known = self._ceilings.get(name)
        if known is not None and asked_at >= known.since:
            del self._ceilings[name]

    def wait(self, cost: float, now: float, pace: float, ahead: float = 0) -> float:
        """Seconds until the cost passes, behind a queue with the cost `ahead`; 0 if it does now."""
        begin = max(now, self.held_until)
        if begin < self._resumed_at and pace > 0:
            begin = min(max(begin, self._next_at) + ahead / pace, self._resumed_at)
        for one in self._ceilings.values():
            if now < one.until:
                begin = max(begin, one.has_room_at(ahead + cost))
        return seconds_until(begin, now, 0.0) if begin > now else 0.0

    def take(self, cost: float, now: float, pace: float) -> None:
        """Note that so much has passed."""
        if now < self._resumed_at and pace > 0:
            self._latest = now, self._next_at
            self._next_at = max(now, self._next_at) + cost / pace
        for one in self._ceilings.values():
            one.left -= cost

    def give_back(self, cost: float, at: float) -> None:
        """What passed `at` that time was not needed."""
        if self._latest[0] == at:
            self._next_at = self._latest[1]  # its turn is the next one's
        for one in self._ceilings.values():
            if one.since <= at:
                one.left += cost

    def left(self, now: float) -> float:
        """What may pass now; infinite where nothing was said."""
        if now < self.held_until:
            return 0.0
        lefts = (one.left_at(now) for one in self._ceilings.values() if now < one.until)
        return min(lefts, default=inf)

    def over_at(self) -> float:
        """When nothing of it matters any more."""
        ends = (one.until for one in self._ceilings.values())
        return max(self.held_until, self._resumed_at, *ends, -inf)
