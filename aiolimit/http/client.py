"""A client that keeps to other people's limits: what all HTTP clients have in common.

1. A request waits for its turn under each of the limiters, in order for each key. Where there are
   several it is charged to all of them in one moment, the one in which it is sent: charged before,
   it would be forgotten before the server forgets it.
2. What cannot be in time fails at once: the client's own timeouts bound the wait.
3. A server that refuses is left alone until it says, and by all who share the limiter; where it
   says nothing, or too little, for a pause of our own that doubles. Who waited leaves at the pace
   of the limit. What is added at random only adds.
4. What a server says is left is not exceeded, with what is still on its way counted in. It never
   lets more pass than was configured.
5. What is sent again is closed first, whatever happens meanwhile; what is handed on stays open.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from inspect import isawaitable
from math import inf
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from aiolimit.arguments import check_cost, check_count, check_wait
from aiolimit.errors import RateLimited
from aiolimit.http.feedback import CAP, Feedback, Headers, read
from aiolimit.http.ledger import Charge, Ledger, Sent
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


_FOR_EVER: Final = 1e9

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

    def facts(self, response: R) -> tuple[int, Headers]:
        """The status and the headers."""
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
        self._key = adapter.host if key is None else key
        self._max_wait = check_wait(max_wait)
        checked = check_count(retries, "retries", 0)
        if checked is None:
            raise TypeError("retries must be a whole number, not None")
        self._retries = checked
        self._cap = check_cost(cap, "cap")
        self._classify = classify
        self._turns: dict[Hashable, _Turn] = {}

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
                refused_for = await self._learn(response, sent)
            finally:
                for one in sent:
                    one.end()
            fits = refused_for is None or time.monotonic() + refused_for <= deadline
            if refused_for is None or refused_for > self._cap or not fits or not left:
                _permits[response] = tuple(one.permit for one in sent)
                return response
            if not self._adapter.can_repeat(request):
                return response
            left -= 1
            try:
                kept = await self._adapter.put_by(response)
            except BaseException:
                await self._adapter.discard(response)
                raise

    # Taking one's turn

    async def _acquire(self, request: Q, key: Hashable, deadline: float) -> list[Sent]:
        """Charge all limiters in one moment, once each has room."""
        costs = [
            charge.cost(request) if callable(charge.cost) else charge.cost
            for charge in self._charges
        ]
        if len(self._charges) == 1:
            permit = self._ask(0, key, costs[0], deadline)
            return [Sent(self._charges[0], key, await permit)]
        async with self._turn(key):
            waits = [
                charge.limiter.peek(key, cost).retry_after
                for charge, cost in zip(self._charges, costs, strict=True)
            ]
            longest = [inf if wait is None else wait for wait in waits]
            first = longest.index(max(longest))
            while True:
                permits, first = await self._all_or_none(key, costs, first, deadline)
                if permits is not None:
                    return [
                        Sent(charge, key, permit)
                        for charge, permit in zip(self._charges, permits, strict=True)
                    ]

    async def _all_or_none(
        self, key: Hashable, costs: list[float], first: int, deadline: float
    ) -> tuple[list[Permit] | None, int]:
        """Wait for one limiter, then take the others in the same moment or none of them.

        Returns the permits, or None and for which limiter to wait next.
        """
        taken: dict[int, Permit] = {}
        at = first
        try:
            taken[first] = await self._ask(first, key, costs[first], deadline)
            for at in range(len(costs)):
                if at != first:
                    taken[at] = await self._charges[at].limiter.acquire(key, costs[at], 0)
        except BaseException as error:
            for permit in taken.values():
                permit.cancel()
            if taken and isinstance(error, RateLimited) and error.retry_after is not None:
                return None, at
            raise
        return [taken[at] for at in range(len(costs))], first

    def _ask(self, at: int, key: Hashable, cost: float, deadline: float) -> Permit:
        limiter = self._charges[at].limiter
        ledger = Ledger.of(limiter, key)
        if ledger is not None:
            ledger.check(limiter, key, cost)
        bound = max(0.0, deadline - time.monotonic())
        own = limiter._admission.max_wait
        if own is not None and own < bound:
            bound = own
        return limiter.acquire(key, cost, None if bound > _FOR_EVER / 2 else bound)

    @contextlib.asynccontextmanager
    async def _turn(self, key: Hashable) -> AsyncIterator[None]:
        """One request of a key at a time, in order, where several limiters are waited for."""
        turn = self._turns.get(key)
        if turn is None:
            turn = self._turns[key] = _Turn()
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                self._turns.pop(key, None)

    # Learning

    async def _learn(self, response: R, sent: list[Sent]) -> float | None:
        """Take note of what the server says; for how long it refuses, None if it does not."""
        status, headers = self._adapter.facts(response)
        feedback = read(headers, status, now=time.time(), cap=self._cap)
        try:
            verdict = await self._verdict(response, feedback)
        except BaseException:
            await self._adapter.discard(response)
            raise
        for one in sent:
            one.restrict(feedback, self._cap)
        if verdict is False or (verdict is None and not feedback.is_refusal):
            for one in sent:
                one.ledger.succeeded(one.permit)
            return None
        is_told = verdict is not None and not isinstance(verdict, bool)
        stated = verdict if is_told else feedback.stated_retry_after
        return max(one.ledger.hold(one, stated, self._cap) for one in sent)

    async def _verdict(self, response: R, feedback: Feedback) -> Verdict:
        if self._classify is None:
            return None
        found = self._classify(response, feedback)
        verdict = await found if isawaitable(found) else found
        if verdict is not None and not isinstance(verdict, bool):
            return check_cost(verdict, "what classify gives")
        return verdict


class _Turn:
    """Who waits for several limiters under one key."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
