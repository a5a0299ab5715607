"""What is known of a key while requests are on their way: what was sent, and what came of it.

It is kept for the limiter, not for one client: several may share one, and must know of each other's
requests. Times are the limiter's own.
"""

import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final
from weakref import WeakKeyDictionary

from aiolimit.arguments import check_cost
from aiolimit.http.feedback import Feedback, ServerQuota
from aiolimit.limiter import Limiter
from aiolimit.permit import Permit

__all__ = ["Charge", "Sent", "check_bar", "hold_all"]

_REQUESTS: Final = "requests"
_OTHER_UNITS: Final = ("token", "complexity", "byte", "point")  # in names of counters
_FIRST_PAUSE: Final = 0.5  # seconds after a refusal, at least; twice as long after the next one
_LONGEST_PAUSE: Final = 60.0
_LONGER: Final = (1.01, 1.5)  # how much longer than a server's a limiter's period may be
_JITTER: Final = 0.1  # of a pause, at most, is added to it


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


class _Ledger:
    """Of one key of one limiter, while anything is on its way or held."""

    __slots__ = ("held_at", "in_flight", "pause_until", "refusals")

    def __init__(self) -> None:
        self.in_flight: float = 0  # cost, of those that are not answered
        self.refusals = 0  # one after the other
        self.held_at = self.pause_until = -inf

    def pause(self, sent_at: float, now: float) -> float:
        """How long to wait after a refusal at least, in seconds: longer each time."""
        # All that were sent before the last refusal was known are refused with it.
        if sent_at >= self.held_at:
            self.refusals += 1
            self.held_at = now
        return min(_FIRST_PAUSE * 2.0 ** min(max(self.refusals - 1, 0), 20), _LONGEST_PAUSE)


_ledgers: WeakKeyDictionary[Limiter, dict[Hashable, _Ledger]] = WeakKeyDictionary()


class Sent:
    """One request under one charge: its permit, and how things stood when it was sent."""

    __slots__ = (
        "_cost",
        "_is_on_its_way",
        "charge",
        "key",
        "ledger",
        "permit",
    )

    def __init__(self, charge: Charge, key: Hashable, permit: Permit) -> None:
        self.charge = charge
        self.key = key
        self.permit = permit
        self.ledger = _ledgers.setdefault(charge.limiter, {}).setdefault(key, _Ledger())
        self._cost = permit.cost
        self.ledger.in_flight += self._cost
        self._is_on_its_way = True

    @property
    def at(self) -> float:
        """When it was let go."""
        return self.permit._at or 0.0

    def restrict(self, feedback: Feedback, cap: float) -> None:
        """Let no more pass than the server has left, less what it may not have counted yet.

        Where nobody else asks it, and the limiter is the stricter one, it is left to the limiter:
        its times are not rounded to seconds.
        """
        admission = self.charge.limiter._admission
        others = self.ledger.in_flight - (self._cost if self._is_on_its_way else 0)
        for quota in feedback.quotas:
            left, after = quota.remaining, quota.reset_after
            if left is None or not after or not self.charge.concerns(quota):
                continue
            name = f"server {quota.name}"  # apart from those that a user has restricted
            if self._is_stricter(quota):
                if admission.restrictions is not None:
                    admission.restrictions.lift(self.key, name, self.at)
                continue
            admission.restricted().restrict(
                self.key,
                max(0.0, left - others),
                min(after, cap),
                name,
                quota.refill,
                self.at,
            )

    def _is_stricter(self, quota: ServerQuota) -> bool:
        """Whether the limiter lets less through than the server, and the server counts only that.

        One of its rates has at most the limit of the server's in a period that is a little longer,
        by so much that a request which was slow to arrive is counted here for as long as there.
        """
        if quota.limit is None or quota.window is None or quota.remaining is None:
            return False
        used = quota.limit - quota.remaining
        admission = self.charge.limiter._admission
        for rate, left in admission.standings.left_of_its_own(self.key, admission.queues.limits):
            if rate.limit <= quota.limit and _LONGER[0] <= rate.per / quota.window <= _LONGER[1]:
                return used <= rate.limit - left
        return False

    def succeeded(self) -> None:
        """It was served; if it was sent before the last refusal, that says nothing of it."""
        if self.at >= self.ledger.held_at:
            self.ledger.refusals = 0

    def end(self) -> None:
        """It is no longer on its way."""
        if not self._is_on_its_way:
            return
        self._is_on_its_way = False
        self.ledger.in_flight = max(0, self.ledger.in_flight - self._cost)
        _forget(self.charge.limiter, self.key)


def _forget(limiter: Limiter, key: Hashable) -> None:
    """Forget a key of which nothing is on its way, and that is not held."""
    ledger = _ledgers.get(limiter, {}).get(key)
    if ledger is not None and not ledger.in_flight and limiter._time() >= ledger.pause_until:
        del _ledgers[limiter][key]


def hold_all(sent: Sequence[Sent], stated: float | None, cap: float) -> float:
    """Leave a server alone that has refused, for as long as it says or for a pause of our own.

    Returns for how many seconds, at most the cap.
    """
    pauses = []
    for one in sent:
        limiter = one.charge.limiter
        now = limiter._time()
        seconds = max(one.ledger.pause(one.at, now), stated or 0.0)
        seconds += random.uniform(0, _JITTER * min(seconds, _LONGEST_PAUSE))  # noqa: S311
        seconds = min(seconds, cap)
        # First of all, as what follows may let somebody go.
        limiter._admission.restricted().hold(one.key, seconds, stated or 0.0)
        if now + seconds > one.ledger.pause_until:
            one.ledger.pause_until = now + seconds
            _forget_later(limiter, one.key, seconds)
        pauses.append(seconds)
    for one in sent:
        if one.charge.unit != _REQUESTS:
            one.permit.cancel()  # what was refused used no tokens; but it was a request
    return max(pauses)


def _forget_later(limiter: Limiter, key: Hashable, seconds: float) -> None:
    def forget() -> None:
        _forget(limiter, key)

    limiter._admission.clock.call_later(seconds + _FIRST_PAUSE, forget)


def check_bar(limiter: Limiter, key: Hashable, cost: float) -> None:
    """Raise `RateLimited` while a server wants to be left alone for longer than we obey."""
    restrictions = limiter._admission.restrictions
    if restrictions is not None and (one := restrictions.by_key.get(key)) is not None:
        now = limiter._time()
        if now < one.held_until < one.stated_until:
            raise limiter._admission.refuse_late(key, cost, one.stated_until - now)
