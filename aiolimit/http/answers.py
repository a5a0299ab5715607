"""What one limiter says in HTTP, ready for any framework: its fields, and its refusals."""

import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from aiolimit.counts import Limits
from aiolimit.errors import Overloaded, RateLimited, StoreUnavailable
from aiolimit.http import fields
from aiolimit.http.fields import (
    LIMIT,
    SPOKEN,
    Dialect,
    Pairs,
    Policy,
    Standing,
    retry_after,
)
from aiolimit.limiter import Limiter
from aiolimit.rate import Limit
from aiolimit.window import Window

__all__ = ["Answers", "Refusal"]

_KEPT: Final = 1024  # refusals, each a kilobyte or so
_TYPE: Final = (b"content-type", b"application/problem+json")


# Limits, windows, quota, period, and the fields as far as they are always the same.
_Short = tuple[Limits, Mapping[Hashable, object], float, float, tuple[bytes, bytes], bytes]


class Refusal(NamedTuple):
    """A whole response."""

    status: int
    headers: Pairs
    body: bytes


class Answers:
    """The answers of one limiter.

    headers: "draft-11", "legacy" or None: how to tell clients what they have left.
    """

    __slots__ = (
        "_admission",
        "_headers",
        "_known",
        "_limiter",
        "_limits",
        "_queues",
        "_refusals",
        "_short",
        "_standings",
        "_store",
        "_time",
    )

    def __init__(self, limiter: Limiter, headers: Dialect) -> None:
        self._headers: Dialect = fields.check_dialect(headers)
        if limiter.shadow:
            self._headers = None  # who keeps to what is told would be limited by it
        self._limiter = limiter
        self._admission = limiter._admission
        self._queues = limiter._admission.queues
        self._standings = limiter._admission.standings
        self._time = limiter._admission.time
        self._store = limiter._store
        self._limits: Limits | None = None
        self._known: Sequence[Policy | None] = ()
        self._short: _Short | None = None
        self._refusals: dict[tuple[object, ...], Refusal] = {}

    def onto(
        self,
        headers: Iterable[tuple[bytes, bytes]],
        key: Hashable,
        limit: Limit | tuple[Limit, ...] | None = None,
    ) -> Pairs:
        """The headers of a response to a call with that key and limit, with the fields added."""
        if type(headers) is not list:
            headers = list(headers)
        short = self._short
        if limit is None and short is not None and self._queues.limits is short[0]:
            # One rate, in the draft's words: each response has it, so this is written out. What
            # follows comes to the same; `Window.left` says what happens here.
            _, entries, quota, period, policy, head = short
            window = entries.get(key)
            if type(window) is Window and self._admission.restrictions is None:
                left = quota - window.total
                oldest = window.last if window.older is None else window.older[window.first]
                more = oldest + period - self._time()
                if 0 < left < quota and more > 0 and 1e-9 < more % 1.0 < 1 - 1e-9:
                    for name, _ in headers:
                        if name in SPOKEN:
                            break
                    else:
                        told = LIMIT, b"%b%d;t=%d" % (head, left, more + 1)
                        return [*headers, policy, told]
        limits = self._queues.limits
        if limit is not None:
            limits = self._admission.limits_of(limit, strict=False)
        standing = self._standings.left(key, limits, self._time())
        return fields.merged(headers, self._pairs(limits, standing, fields.asked(headers)))

    def refusal(self, refused: RateLimited) -> Refusal:
        """The response to a call that was refused."""
        if isinstance(refused, Overloaded):
            return _overloaded(retry_after(refused.retry_after))
        if isinstance(refused, StoreUnavailable):
            headers = _raw(fields.refusal_headers(refused))
            return _whole(503, headers, fields.refusal_body(refused))
        headers = _raw(fields.refusal_headers(refused, self._headers, time.time()))
        return _whole(429, headers, fields.refusal_body(refused))

    def at_once(self, key: Hashable) -> Refusal | None:
        """The response to a call of cost 1 that would not wait, if it is plainly refused.

        The same as that to `acquire(key, max_wait=0)`, and counted like it, without the cost of
        an error; None where the call has to be made to know.
        """
        entry = self._store.entries.get(key)
        if entry is None or (
            type(entry) is Window and entry.total + 1 <= self._store.rates[0].limit
        ):
            return None
        found = self._admission.refuse_at_once(key)
        if found is None:
            return None
        wait, standing = found
        limits = self._queues.limits
        if self._headers == "legacy":
            return self._refused(wait, limits, standing)
        self._policies(limits)
        # In whole seconds few answers differ, and whoever is refused comes again and again.
        which: tuple[object, ...]
        if len(standing) == 1:
            left, more = standing[0]
            after = retry_after(wait)
            which = after, int(left), after if more == wait else retry_after(more)
        else:
            told = ((int(left), retry_after(more)) for left, more in standing)
            which = retry_after(wait), *told
        answer = self._refusals.get(which)
        if answer is None:
            if len(self._refusals) >= _KEPT:
                self._refusals.clear()
            answer = self._refusals[which] = self._refused(wait, limits, standing)
        return answer

    def _refused(
        self, wait: float, limits: Limits, standing: Sequence[tuple[float, float]]
    ) -> Refusal:
        after = retry_after(wait)
        violated = tuple(
            policy.name
            for policy, (left, _) in zip(self._policies(limits), standing, strict=True)
            if policy is not None and left < 1
        )
        pairs = self._pairs(limits, standing, after)
        headers = [_TYPE, (b"retry-after", b"%d" % after), *pairs]
        return _whole(429, headers, fields.quota_body(violated, after))

    def _policies(self, limits: Limits) -> Sequence[Policy | None]:
        """What the rates are called; made anew when the limiter's have changed."""
        if limits is not self._limits:
            self._known = fields.policies(self._limiter.name, self._store.rates, limits)
            self._limits = limits
            self._refusals.clear()
            self._short = None
            only = self._known[0]
            is_plain = len(limits) == 1 and self._store.burst is None and not self._admission.ramps
            is_small = only is not None and only.quota < fields.LARGEST
            if self._headers == "draft-11" and is_plain and is_small and only is not None:
                rate = self._store.rates[0]
                policy = fields.POLICY, only.item
                self._short = limits, self._store.entries, rate.limit, rate.per, policy, only.head
        return self._known

    def _pairs(self, limits: Limits, standing: Standing, after: int | None) -> Pairs:
        if self._headers == "draft-11":
            return fields.quota_fields(self._policies(limits), standing, after)
        if self._headers == "legacy":
            return fields.legacy(self._policies(limits), standing, time.time())
        return []


@lru_cache
def _overloaded(after: int) -> Refusal:
    """The answer of an overloaded process, which has no time to make it anew each time."""
    return _whole(503, _raw(fields.overload_headers(after)), fields.overload_body(after))


def _raw(headers: dict[str, str]) -> Pairs:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def _whole(status: int, headers: Pairs, body: bytes) -> Refusal:
    return Refusal(status, [*headers, (b"content-length", b"%d" % len(body))], body)
