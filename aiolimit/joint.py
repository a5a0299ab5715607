"""One call under several limiters: it passes when all of them let it, in one moment, or waits.

1. It stands in the line of each of them, and takes its places in one go: so whoever comes first is
   first everywhere, and no two can wait for each other.
2. It goes when it is first in every line and every limiter has room; then all are charged, at that
   time. Nothing is taken before, so nothing has to be given back, and nobody spins.
3. Where it is first, those behind it wait for it, as they do behind a large cost. It loses its
   places all at once: let in, refused, or gone.
"""

import asyncio
from collections.abc import Sequence
from math import inf
from typing import NamedTuple, cast

from aiolimit.admission import Admission
from aiolimit.counts import Limits
from aiolimit.permit import ASKED, Permit
from aiolimit.queue import Waiter
from aiolimit.queues import Queues
from aiolimit.shadow import ShadowAdmission

__all__ = ["acquire_together"]


class _Part(NamedTuple):
    """What is asked of one limiter."""

    permit: Permit
    admission: Admission
    cost: float
    limits: Limits
    own_limits: Limits | None
    max_wait: float | None

    @property
    def is_free(self) -> bool:
        """Whether nothing is charged, and nothing waited for."""
        return not self.cost or all(limit is None for limit in self.limits)


class _Joint:
    """The places of one call in the lines. See `queue.Joint`."""

    __slots__ = ("places",)

    def __init__(self) -> None:
        self.places: list[tuple[Queues, Waiter]] = []

    def wait(self) -> float:
        """Seconds until every limiter has room; infinite while it is not first in every line."""
        if not self._is_first():
            return inf
        return max(queues.wait_for(waiter, queues.time()) for queues, waiter in self.places)

    def grant(self) -> None:
        """Charge them all, and let it go."""
        future = self.places[0][1].future
        try:
            for queues, waiter in self.places:
                queues.take_for(waiter, queues.time())
                queues.serve_soon(waiter.queue.key)
        except Exception as error:
            future.set_exception(error)  # a key's own methods; what was charged is given back
            raise
        future.set_result(None)

    def leave(self, waiter: Waiter) -> None:
        """It has lost one place, and with it all others."""
        for queues, other in self.places:
            if other is not waiter:
                queues.drop_out(other)

    def tell(self, wait: float) -> None:
        """Tell the lines in which it is first when it may go, at the least."""
        asks = wait == inf and self._is_first()  # a store of one of them has yet to answer
        if wait == inf:
            wait = max(self._waits())
        for queues, waiter in self.places:
            if waiter.queue.first() is waiter:
                waiter.queue.elsewhere = True
                waiter.queue.expected = queues.time() + wait
                waiter.queue.asks = asks
                queues.told(waiter.queue)

    def fail(self) -> None:
        """Refuse it, for the limiter that it waits for longest."""
        waits = self._waits()
        queues, waiter = self.places[waits.index(max(waits))]
        queues.refuse_now(waiter)

    def _is_first(self) -> bool:
        """Whether it is first in every line."""
        return all(waiter.queue.first() is waiter for _, waiter in self.places)

    def _waits(self) -> list[float]:
        """Seconds that it waits for each limiter, at the least."""
        waits = []
        for queues, waiter in self.places:
            now = queues.time()
            wait = queues.expected(waiter, now)
            if waiter.queue.first() is not waiter:  # whoever is goes before
                wait = max(wait, waiter.queue.due_at(now) - now)
            waits.append(wait)
        return waits


async def acquire_together(permits: Sequence[Permit]) -> None:
    """Await permits of several limiters, each of another one, as if they were one permit.

    Not for limiters with a load controller. Raises what `Limiter.acquire` raises, for the limiter
    that stands in the way, and then nothing is charged to any.
    """
    parts, shadows = [], []
    for permit in permits:
        admission = permit._limiter._admission
        if admission.shadow:
            shadows.append(permit)
        else:
            parts.append(_Part(permit, admission, *admission.begin(permit)))
    for permit in shadows:
        cast(ShadowAdmission, permit._limiter._admission).vet(permit)
    try:
        await _acquire(parts)
    except BaseException:
        for permit in shadows:
            permit._at = ASKED  # it was not needed, so nobody has to be warned that it was dropped
        raise
    for permit in shadows:
        await permit  # which waits for nothing; what bites has let it pass


async def _acquire(parts: Sequence[_Part]) -> None:
    waits = [_ask(part) for part in parts]
    if all(wait is None for wait in waits):
        for part in parts:
            now = part.admission.time()
            home, wait = part.admission.take(part.permit.key, part.cost, part.limits, now)
            if wait is not None:
                raise RuntimeError(f"{part.permit!r} had room, and has none in the same moment")
            if home is not part.permit.key:
                part.permit._home = home
            _let_in(part, now, 0.0)
        return
    line = [part for part in parts if not part.is_free]
    for part, wait in zip(parts, waits, strict=True):
        if wait is None and not part.is_free:
            _check_turn(part, part.admission.time(), 0.0)  # it waits there, too
    joint = _Joint()
    future = asyncio.get_running_loop().create_future()
    asked = [part.admission.time() for part in line]
    try:
        for part, now in zip(line, asked, strict=True):
            _take_place(part, joint, future, now)
        for queues, waiter in joint.places:
            queues.serve(waiter.queue.key)
        await future
    except BaseException:
        for queues, waiter in joint.places:
            queues.leave(waiter)
        raise
    for part, begun, (_, waiter) in zip(line, asked, joint.places, strict=True):
        at = waiter.granted_at
        _let_in(part, begun if at is None else at, 0.0 if at is None else at - begun)
        part.permit._layout = waiter.layout
        part.admission.passed(part.permit, waiter.source)
    for part in parts:
        if part.is_free:
            _let_in(part, part.admission.time(), 0.0)


def _ask(part: _Part) -> float | None:
    """Seconds it would have to wait for one limiter, None if it would not; or refuses it."""
    now, key = part.admission.time(), part.permit.key
    _, wait = part.admission.take(key, part.cost, part.limits, now, only_ask=True)
    if wait is not None:
        _check_turn(part, now, wait)
    return wait


def _check_turn(part: _Part, now: float, wait: float) -> None:
    key = part.permit.key
    home = part.admission.home(key, now)
    part.admission.check_turn(key, home, part.cost, part.limits, wait, part.max_wait, now)


def _take_place(part: _Part, joint: _Joint, future: asyncio.Future[None], now: float) -> None:
    admission, key = part.admission, part.permit.key
    home, wait = admission.take(key, part.cost, part.limits, now, only_ask=True)
    if home is not key:
        part.permit._home = home
    deadline = inf if part.max_wait is None else now + part.max_wait
    waiter = admission.queues.add(
        *(home, key, part.cost, part.own_limits, now, wait or 0.0, deadline, False, None)
    )
    waiter.joint, waiter.future = joint, future
    joint.places.append((admission.queues, waiter))


def _let_in(part: _Part, at: float, waited: float) -> None:
    permit = part.permit
    permit._at, permit._waited = at, waited
    tally = part.admission.tally
    if waited:
        tally.wait(waited)
    if part.cost != 1:
        tally.admit(part.cost)
    if part.own_limits is not None and None in part.limits:
        permit._layout = part.admission.store.layout
    permit._limiter._passed += 1
