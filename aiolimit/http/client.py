"""A client that keeps to other people's limits: what all HTTP clients have in common.

1. A request waits for its turn under each of the limiters, in order for each key. Where there are
   several it is charged to all of them in one moment, the one in which it is sent (`joint.py`):
   charged before, it would be forgotten before the server forgets it.
2. What cannot be in time fails at once: the client's own timeouts bound the wait.
3. A server that refuses is left alone until it says, and by all who share the limiter; where it
   says nothing, or too little, for a pause of our own that doubles. Who waited leaves at the pace
   of the limit. What is added at random only adds.
4. What a server says is left is not exceeded, with what is still on its way counted in. It never
   lets more pass than was configured.
5. What is sent again is closed first, whatever happens meanwhile; what is handed on stays open.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from inspect import isawaitable
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from aiolimit.arguments import check_cost, check_count, check_wait
from aiolimit.errors import RateLimited
from aiolimit.http.feedback import CAP, Feedback, Headers, read
from aiolimit.http.ledger import Charge, Sent, check_bar, hold_all
from aiolimit.joint import acquire_together
from aiolimit.limiter import Limiter
from aiolimit.permit import Permit

__all__ = ["Adapter", "Charge", "Classify", "ClientLimits", "permits_of"]

Q = TypeVar("Q")  # a request
Asked = TypeVar("Asked", contravariant=True)
R = TypeVar("R")  # a response

#: What a limit that comes in disguise is: whether it is one, or for how many seconds; None for what
#: the headers say. Given the response and what was read from it; plain or async.
Verdict: TypeAlias = bool | float | None
Classify: TypeAlias = Callable[[Any, Feedback], Verdict | Awaitable[Verdict]]


_FOR_EVER: Final = 1e9  # seconds
_LONG: Final = 1e8  # and what is above is no bound
_READ: Final = 0.5  # seconds for which the rest of a refusal is waited for

_permits: WeakKeyDictionary[Any, tuple[Permit, ...]] = WeakKeyDictionary()


def permits_of(response: object) -> tuple[Permit, ...]:
    """The permits that a request was sent with, one for each limiter, in their order.

    With `Permit.adjust` the true cost is settled once the response tells it.
    """
    return _permits.get(response, ())


class Adapter(Protocol[Asked, R]):
    """What the core has to know of one HTTP client."""

    def host(self, request: Asked) -> Hashable:
        """The key by default."""
        ...

    def can_repeat(self, request: Asked) -> bool:
        """Whether a request that was sent can be sent once more."""
        ...

    def never_left(self, error: Exception) -> bool:
        """Whether an error says that the request was not sent at all."""
        ...

    def facts(self, response: R) -> tuple[int, Headers]:
        """The status and the headers."""
        ...

    def shown(self, request: Asked, response: R, /) -> tuple[R, R]:
        """A response for `classify` to read, and one to hand on, as if nobody had read it."""
        ...

    async def put_by(self, response: R) -> R | None:
        """Give its connection back; the response, if it can be handed on all the same."""
        ...

    async def discard(self, response: R) -> None:
        """Close what nobody will see."""
        ...


class ClientLimits(Generic[Q, R]):
    """Keeps the requests of a client to limits. Its options are those of all clients.

    limits: limiters, or `Charge`s where a request costs something else than 1.
    key: a function of the request; by default the host, so that each has its own quota.
    max_wait: seconds a request may wait; the limiter's own and the client's timeouts hold as well.
    retries: how often a refused request is sent again, if it can be.
    cap: the most seconds a server can make us wait.
    classify: see `Classify`.

    Raises `TypeError` or `ValueError` for options that are none of these.
    """

    def __init__(
        self,
        adapter: Adapter[Q, R],
        limits: tuple[Limiter | Charge, ...],
        *,
        key: Callable[[Q], Hashable] | None = None,
        max_wait: float | None = None,
        retries: int = 0,
        cap: float = CAP,
        classify: Classify | None = None,
    ) -> None:
        if not limits:
            raise ValueError("give at least one Limiter")
        for name, function in (("key", key), ("classify", classify)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a function or None, not {function!r}")
        self._adapter = adapter
        self._charges = tuple(
            limit if isinstance(limit, Charge) else Charge(limit) for limit in limits
        )
        if len({charge.limiter for charge in self._charges}) < len(limits):
            raise ValueError(f"give each limiter once, not {limits!r}")
        if len(limits) > 1 and any(charge.limiter.load for charge in self._charges):
            raise ValueError("several limiters together take none with a load controller")
        self._key = adapter.host if key is None else key
        self._max_wait = check_wait(max_wait)
        checked = check_count(retries, "retries", 0)
        if checked is None:
            raise TypeError("retries must be a whole number, not None")
        self._retries = checked
        self._cap = check_cost(cap, "cap")
        self._classify = classify

    async def run(self, request: Q, send: Callable[[Q], Awaitable[R]], bound: float | None) -> R:
        """Send the request in its turn, learn from the response, and hand it on.

        bound: how long the client lets it wait, seconds from now; None as long as it takes.

        Raises `RateLimited` if its turn would come too late.
        """
        key = self._key(request)
        bounds = [_FOR_EVER, *(one for one in (bound, self._max_wait) if one is not None)]
        deadline = time.monotonic() + min(bounds)
        left = self._retries
        kept: R | None = None
        while True:
            try:
                sent = await self._acquire(request, key, deadline)
            except RateLimited:
                if kept is None:
                    raise
                return kept  # there is no time to ask again: what it said then
            try:
                response = await send(request)
            except BaseException as error:
                for one in sent:
                    one.end()
                    if isinstance(error, Exception) and self._adapter.never_left(error):
                        one.permit.cancel()
                raise
            try:
                response, refused_for, stated = await self._learn(request, response, sent)
            finally:
                for one in sent:
                    one.end()
            _permits[response] = tuple(one.permit for one in sent)
            if refused_for is None or not left or (stated or 0.0) > self._cap:
                return response
            fits = time.monotonic() + refused_for <= deadline
            if not fits or not self._adapter.can_repeat(request):
                return response
            left -= 1
            kept = await self._put_by(response)
            if kept is not None:
                _permits[kept] = _permits[response]
            if all(charge.limiter.shadow for charge in self._charges):
                await asyncio.sleep(refused_for)  # what bites has it wait in its line

    async def _put_by(self, response: R) -> R | None:
        """Give a connection back; the response, if it could be read in no time."""
        try:
            async with asyncio.timeout(_READ):
                return await self._adapter.put_by(response)
        except Exception:  # noqa: BLE001 (a body that stalls or is broken is not needed)
            await self._adapter.discard(response)
            return None
        except BaseException:
            await self._adapter.discard(response)
            raise

    # Taking one's turn

    async def _acquire(self, request: Q, key: Hashable, deadline: float) -> list[Sent]:
        """Charge all limiters in one moment, once each has room."""
        permits = []
        for charge in self._charges:
            cost = charge.cost(request) if callable(charge.cost) else charge.cost
            if not charge.limiter.shadow:
                check_bar(charge.limiter, key, cost)
            if not cost and not charge.limiter.shadow:
                await self._wait_out_hold(charge.limiter, key, deadline)
            own = charge.limiter._admission.max_wait
            left = max(0.0, deadline - time.monotonic())
            bound = left if own is None else min(own, left)
            permits.append(charge.limiter.acquire(key, cost, bound if bound < _LONG else None))
        if len(permits) == 1:
            await permits[0]
        else:
            await acquire_together(permits)
        return [
            Sent(charge, key, permit) for charge, permit in zip(self._charges, permits, strict=True)
        ]

    async def _wait_out_hold(self, limiter: Limiter, key: Hashable, deadline: float) -> None:
        """A request that costs nothing needs no quota, but it does leave a server alone."""
        admission = limiter._admission
        while wait := admission.standings.tell(key, 0, admission.queues.limits).retry_after:
            if time.monotonic() + wait > deadline:
                raise limiter._admission.refuse_late(key, 0, wait)
            await asyncio.sleep(wait)

    # Learning

    async def _learn(
        self, request: Q, response: R, sent: list[Sent]
    ) -> tuple[R, float | None, float | None]:
        """Take note of what the server says.

        Returns the response to hand on, for how long to leave the server alone, None if it does
        not refuse, and for how long it asked for that.
        """
        status, headers = self._adapter.facts(response)
        feedback = read(headers, status, now=time.time(), cap=self._cap)
        try:
            verdict: Verdict = None
            if self._classify is not None:
                view, response = self._adapter.shown(request, response)
                verdict = await self._verdict(self._classify, view, feedback)
        except BaseException:
            await self._adapter.discard(response)
            raise
        seconds = None
        stated = feedback.stated_retry_after
        if verdict is not None and not isinstance(verdict, bool):
            stated = verdict
        # What it refuses comes first: what it has left may let somebody go.
        if verdict is False or (verdict is None and not feedback.is_refusal):
            for one in sent:
                one.succeeded()
        else:
            seconds = hold_all(sent, stated, self._cap)
        for one in sent:
            one.restrict(feedback, self._cap)
        return response, seconds, stated

    async def _verdict(self, classify: Classify, view: R, feedback: Feedback) -> Verdict:
        found = classify(view, feedback)
        verdict = await found if isawaitable(found) else found
        if verdict is not None and not isinstance(verdict, bool):
            return check_cost(verdict, "what classify gives")
        return verdict
