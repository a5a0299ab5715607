"""What a call raises when it may not pass. All are `RateLimited`: one `except` is enough."""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Literal, TypeAlias

from aiolimit.quota import Quota
from aiolimit.rate import Rate

__all__ = [
    "CostTooHigh",
    "Overloaded",
    "QueueFull",
    "RateLimited",
    "Reason",
    "Source",
    "StoreError",
    "StoreUnavailable",
    "shown",
]

#: Why a call was refused, as `Limiter.statistics` counts it: no quota was left; the wait would
#: have exceeded `max_wait`; the queue was full; the cost was above the limit; the process is
#: overloaded; the store that many processes share does not answer.
Reason: TypeAlias = Literal[
    "quota", "timeout", "queue_full", "cost_too_high", "overload", "store_unavailable"
]

#: Where a decision came from: the store that processes share; the counts of this process, which
#: are all there is without such a store, and its share of the limit while the store does not
#: answer; or, then, what was chosen for that case: to let everybody pass, or nobody.
Source: TypeAlias = Literal["store", "local", "open", "closed"]

_FACTS = (
    "quotas",
    "limiter",
    "key",
    "rate",
    "limit",
    "remaining",
    "retry_after",
    "reset_after",
    "reason",
    "source",
)


_FULL = {
    "in_flight": "as many calls are in flight as can be served in time",
    "rate": "as many calls were let in as can be served in time",
    "iteration": "the event loop is behind",
}


def shown(key: Hashable) -> str:
    """A key in a message: its `repr`, or what every object has where that raises.

    A user's key must not be able to stop a refusal half-way.
    """
    try:
        return repr(key)
    except Exception:  # noqa: BLE001
        return object.__repr__(key)


class RateLimited(Exception):
    """A call was refused, and nothing was charged for it.

    limiter: the name of the limiter that refused.
    key: the key of the call.
    rate: the rate that refused; of several, the one to wait longest for.
    limit: the limit that was applied, as cost in `rate.per` seconds, or the burst if that was
        what the cost exceeded.
    remaining: what is left of it now, as cost.
    retry_after: seconds after which the same call would pass if nobody else came before it;
        None if it never would.
    reset_after: seconds after which the whole limit is there again.
    reason: see `Reason`.
    source: where the decision came from, see `Source`.
    quotas: how the key stands under each of the limiter's rates, in their order; a rate that the
        call was not under has the limit `UNLIMITED`.
    """

    def __init__(
        self,
        message: str,
        *,
        limiter: str,
        key: Hashable,
        rate: Rate,
        limit: float,
        remaining: float,
        retry_after: float | None,
        reset_after: float,
        reason: Reason = "quota",
        source: Source = "local",
        quotas: tuple[Quota, ...] | Callable[[], tuple[Quota, ...]] = (),
    ) -> None:
        super().__init__(message)
        self._quotas = quotas
        self.limiter = limiter
        self.key = key
        self.rate = rate
        self.limit = limit
        self.remaining = remaining
        self.retry_after = retry_after
        self.reset_after = reset_after
        self.reason = reason
        self.source: Source = source

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """See above. Most who are refused never look at it, so it waits for a reader."""
        if callable(self._quotas):
            self._quotas = self._quotas()
        return self._quotas

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross process pools; the default would forget the keywords.
        facts = {name: getattr(self, name) for name in _FACTS}
        return partial(type(self), **facts), self.args


class QueueFull(RateLimited):
    """As many callers as `max_waiters` allows were waiting already."""


class Overloaded(RateLimited):
    """The load controller refused: the process does all the work it can do in time.

    binding: what is full: "in_flight", the calls that can be served in time; "rate", the calls
        that only acquire; "iteration", the event loop has not come round for too long; or the
        name of the pressure that lowers those, such as "memory".
    retry_after: seconds, longer the more is refused, and spread out so that callers do not come
        back together. `limit` is what was configured, and `remaining` 0: the quota was not
        looked at.
    """

    retry_after: float

    def __init__(
        self,
        message: str = "",
        *,
        limiter: str,
        key: Hashable,
        rate: Rate,
        retry_after: float,
        limit: float | None = None,
        remaining: float = 0,
        reset_after: float | None = None,
        reason: Reason = "overload",
        source: Source = "local",
        binding: str = "in_flight",
        quotas: tuple[Quota, ...] = (),
    ) -> None:
        # In an overloaded process this is made most of the time, so the text waits for a reader.
        Exception.__init__(self, *(message,) if message else ())
        self.limiter = limiter
        self.key = key
        self.rate = rate
        self.limit = rate.limit if limit is None else limit
        self.remaining = remaining
        self.retry_after = retry_after
        self.reset_after = retry_after if reset_after is None else reset_after
        self.reason = reason
        self.source = source
        self._quotas = quotas
        self.binding = binding

    def __str__(self) -> str:
        if self.args:
            return str(self.args[0])
        full = _FULL.get(self.binding, f"{self.binding} is above its target")
        return f"{self.limiter}: overloaded, {full}; retry after {self.retry_after:.2g} s"

    def __reduce__(self) -> tuple[Any, ...]:
        facts = {name: getattr(self, name) for name in (*_FACTS, "binding")}
        return partial(type(self), **facts), self.args


class CostTooHigh(RateLimited, ValueError):
    """The cost is above the limit, so the call could never pass, however long it waited.

    `retry_after` is None. With a limit of 0 every cost is too high.
    """


class StoreUnavailable(RateLimited):
    """The store does not answer, and nobody passes then: `on_store_error="closed"`.

    `retry_after` is when the store is tried again, seconds. The quota was not looked at.
    """

    retry_after: float


class StoreError(Exception):
    """The store does not answer, and callers are told: `on_store_error="raise"`.

    What went wrong is its cause.
    """
