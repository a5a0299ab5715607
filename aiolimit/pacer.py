"""A rate with a small burst: admissions are spread out, at most `burst` ahead of an even pace.

This is what others call a token bucket, a leaky bucket or GCRA (ITU-T I.371); they decide alike.
The state is the cost by which admissions are ahead of the pace, and when that was true. It
drains at `rate` cost a second, never below 0. A cost passes if it would leave the key at most
`burst` ahead.

It is kept as a cost, not as a point in time, so that a new rate acts on what is already owed:
with a rate ten times as high, the wait is a tenth.

Like the window it takes `now`, in seconds, and treats a step back as no time passed.
"""

from math import inf

from aiolimit.window import seconds_until

__all__ = ["Pacer"]


class Pacer:
    """How far one key is ahead of its pace."""

    __slots__ = ("ahead", "at")

    def __init__(self) -> None:
        self.ahead: float = 0.0  # cost
        self.at = -inf  # when `ahead` was true, seconds

    def copy(self) -> "Pacer":
        """Another pacer in the same state."""
        twin = Pacer()
        twin.ahead, twin.at = self.ahead, self.at
        return twin

    def wait(self, cost: float, now: float, rate: float, burst: float) -> float:
        """Seconds until the cost passes if nothing else does; 0 if it passes now.

        A cost above the burst is the sum of a queue, which leaves at the rate.
        """
        excess = self.ahead + cost - burst
        if excess <= 0:
            return 0.0
        if rate <= 0:
            return inf
        now = max(now, self.at)
        if cost > burst:
            return max(0.0, self._ahead(now, rate) + cost - burst) / rate
        # From the same start each time, so that who has slept the wait finds it over.
        return seconds_until(self.at, now, excess / rate)

    def room(self, now: float, rate: float, burst: float) -> float:
        """What passes now; below 0 where more than the burst was charged."""
        return burst - self._ahead(max(now, self.at), rate)

    def take(self, cost: float, now: float, rate: float) -> None:
        """Charge the cost now, whether or not it has waited its time."""
        now = max(now, self.at)
        self.ahead = self._ahead(now, rate) + cost
        self.at = now

    def give_back(self, cost: float, at: float, now: float, rate: float, fastest: float) -> None:
        """Take back what was charged at that time, as far as it cannot have drained since.

        `fastest` is the highest rate there has been in between.
        """
        now = max(now, self.at)
        left = max(0.0, cost - (now - at) * max(rate, fastest))
        self.ahead = max(0.0, self._ahead(now, rate) - left)
        self.at = now

    def empty_after(self, now: float, rate: float) -> float:
        """Seconds until the key is on its pace again, nothing ahead."""
        return self.wait(0, now, rate, 0)

    def _ahead(self, now: float, rate: float) -> float:
        drained = (now - self.at) * rate if self.ahead else 0.0
        return max(0.0, self.ahead - drained)
