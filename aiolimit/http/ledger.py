"""What is known of a key while requests are on their way: what was sent, and what came of it.

It is kept for the limiter, not for one client: several may share one, and must know of each other's
requests. Times are the limiter's own.
"""

import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import inf
from typing import Any, Final
from weakref import WeakKeyDictionary

from aiolimit.arguments import check_cost
from aiolimit.http.feedback import Feedback, ServerQuota
from aiolimit.limiter import Limiter
from aiolimit.permit import Permit

__all__ = ["Charge", "Ledger", "Sent"]

_REQUESTS: Final = "requests"
_OTHER_UNITS: Final = ("token", "complexity", "byte", "point")  # in names of counters
_FIRST_PAUSE: Final = 0.5  # seconds after a refusal, at least; twice as long after the next one
_LONGEST_PAUSE: Final = 60.0
_JITTER: Final = 0.1  # of a pause, at most, is added to it
_LEDGERS: Final = 1000  # keys of a limiter, of which those that are over are forgotten


@dataclass(frozen=True, slots=True)
class Charge:
    """What a limiter is charged for each request.

    cost: of a request, from 0 up, or a function of it that tells.
    unit: what the limiter counts, such as "tokens". Of what a server says, that which has it in its
        name restricts the limiter; "requests" is whatever names no other unit.
    """

    limiter: Limiter
    cost: float | Callable[[Any], float] = 1
    unit: str = _REQUESTS

    def __post_init__(self) -> None:
        if not isinstance(self.limiter, Limiter):
            raise TypeError(f"limiter must be a Limiter, not {self.limiter!r}")
        if not callable(self.cost):
            check_cost(self.cost)
        if not isinstance(self.unit, str) or not self.unit:
            raise TypeError(f"unit must be text that is not empty, not {self.unit!r}")

    def concerns(self, quota: ServerQuota) -> bool:
        """Whether what a server counts there is what this limiter counts."""
        name = quota.name.lower()
        if self.unit != _REQUESTS:
            return self.unit.lower() in name
        # Whatever it is of which nothing is left, the next request needs it too.
        return quota.remaining == 0 or not any(unit in name for unit in _OTHER_UNITS)


class Ledger:
    """What is known of one key of one limiter, while it matters. Times are the limiter's."""

    __slots__ = ("barred_until", "held_at", "held_until", "in_flight", "newest", "refusals", "sent")

    def __init__(self) -> None:
        self.in_flight = 0
        self.sent: float = 0  # cost, of all requests so far
        self.newest: float = -inf  # `sent` of the latest request that was answered
        self.refusals = 0  # one after the other
        self.held_at = self.held_until = -inf
        self.barred_until = -inf  # what the server said, past the cap

    @staticmethod
    def of(limiter: Limiter, key: Hashable) -> "Ledger | None":
        """What is known of a key of that limiter."""
        return _ledgers.get(limiter, {}).get(key)

    def check(self, limiter: Limiter, key: Hashable, cost: float) -> None:
        """Raise `RateLimited` while the server wants to be left alone for longer than we obey."""
        now = limiter._time()
        if now < self.held_until < self.barred_until:
            raise limiter._admission.refuse_late(key, cost, self.barred_until - now)

    def succeeded(self, permit: Permit) -> None:
        """A request was served; one that was sent before the last refusal says nothing of it."""
        if (permit._at or 0.0) >= self.held_at:
            self.refusals = 0

    def hold(self, sent: "Sent", stated: float | None, cap: float) -> float:
        """A request was refused: leave the server alone for as long as it says, or for a pause.

        Returns for how many seconds.
        """
        limiter = sent.charge.limiter
        now = limiter._time()
        # All that were sent before the last refusal was known are refused with it.
        if (sent.permit._at or 0.0) >= self.held_at:
            self.refusals += 1
            self.held_at = now
        pause = min(_FIRST_PAUSE * 2.0 ** min(self.refusals - 1, 20), _LONGEST_PAUSE)
        seconds = max(pause, stated or 0.0)
        seconds += random.uniform(0, _JITTER * min(seconds, _LONGEST_PAUSE))  # noqa: S311
        sent.permit.cancel()  # what was refused was not used
        limiter.hold(sent.key, seconds=min(seconds, cap))
        self.held_until = max(self.held_until, now + min(seconds, cap))
        if stated is not None and stated > cap:
            self.barred_until = max(self.barred_until, now + stated)
        return seconds

    def is_over(self, now: float) -> bool:
        """Whether nothing in it matters any more."""
        return not self.in_flight and now >= self.held_until


_ledgers: WeakKeyDictionary[Limiter, dict[Hashable, Ledger]] = WeakKeyDictionary()


class Sent:
    """One request under one charge: its permit, and what had been sent by then."""

    __slots__ = ("charge", "key", "ledger", "permit", "sent")

    def __init__(self, charge: Charge, key: Hashable, permit: Permit) -> None:
        self.charge = charge
        self.key = key
        self.permit = permit
        ledgers = _ledgers.setdefault(charge.limiter, {})
        if key not in ledgers and len(ledgers) >= _LEDGERS:
            now = charge.limiter._time()
            for other in [other for other, one in ledgers.items() if one.is_over(now)]:
                del ledgers[other]
        self.ledger = ledgers.setdefault(key, Ledger())
        self.ledger.in_flight += 1
        self.ledger.sent += permit.cost
        self.sent = self.ledger.sent

    def restrict(self, feedback: Feedback, cap: float) -> None:
        """Let no more pass than the server has left, less what it cannot have counted yet."""
        ledger = self.ledger
        if self.sent < ledger.newest:
            return  # it says how things stood before what we know
        ledger.newest = self.sent
        on_its_way = ledger.sent - self.sent
        for quota in feedback.quotas:
            left, after = quota.remaining, quota.reset_after
            if left is not None and after and self.charge.concerns(quota):
                seconds = min(after, cap)
                left = max(0.0, left - on_its_way)
                self.charge.limiter.restrict(
                    self.key,
                    remaining=left,
                    seconds=seconds,
                    refill=quota.refill,
                    name=quota.name,
                )

    def end(self) -> None:
        """It is no longer on its way."""
        self.ledger.in_flight -= 1
        if not self.ledger.in_flight and not self.ledger.refusals:  # else a hold may be on
            _ledgers.get(self.charge.limiter, {}).pop(self.key, None)
