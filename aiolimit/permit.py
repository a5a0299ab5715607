"""A permit: what `Limiter.acquire` returns; first it asks, then it is held, then settled."""

import sys
import types
import warnings
from collections.abc import Awaitable, Generator, Hashable
from math import inf, isfinite
from types import EllipsisType, FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary

from aiolimit.arguments import check_cost
from aiolimit.errors import Source, shown
from aiolimit.load.gate import Cohort
from aiolimit.rate import Limit

if TYPE_CHECKING:
    from aiolimit.limiter import Limiter

__all__ = ["ASKED", "UNUSUAL", "BentPermit", "Permit", "bent", "new_bent_permit", "new_permit"]

# What `Permit._at` is before the permit is granted. None is the common case: a cost of 1 under
# the limiter's own limit, not asked for yet. One look at it tells who may take the fast lane.
UNUSUAL: Final = inf  # any other, not asked for yet
ASKED: Final = -inf  # asked for, and waiting or refused


@types.coroutine
def _nothing_to_await() -> Generator[None, None, None]:
    return
    yield


# Awaiting a finished generator gives None at once, any number of times, on any loop. So leaving
# a permit is an ordinary call: no cancellation can lose it, and no coroutine is made for it.
_DONE: Final[Awaitable[None]] = _nothing_to_await()
next(cast(Generator[None, None, None], _DONE), None)


class Permit:
    """Leave to do one thing. `Limiter.acquire` makes it; it does nothing until awaited or entered.

    key: the key it was asked for.
    """

    __slots__ = (
        "_at",
        "_charged_at",
        "_cohort",
        "_cost",
        "_home",
        "_later",
        "_layout",
        "_limit",
        "_limiter",
        "_max_wait",
        "_source",
        "_verdict",
        "_waited",
        "key",
    )

    _limiter: "Limiter"
    key: Hashable
    _max_wait: float | None | EllipsisType
    _at: float | None  # when it was granted; until then None, UNUSUAL or ASKED
    # Set only where they differ from what is usual, as every assignment costs every call:
    _cost: float  # not 1
    _limit: Limit | tuple[Limit, ...] | None  # the limit of this call
    _waited: float  # not 0
    _home: Hashable  # charged to another key: the overflow
    _layout: int | None  # of the store then, if it was charged to some of the rates only
    _later: list[tuple[float, float, Hashable]]  # what `adjust` charged since: time, cost, home
    _cohort: Cohort  # of those who hold a permit of the load controller's
    _source: Source  # of the decision, where that was not this process
    _verdict: object  # in shadow: what would have become of it; None where it was charged
    _charged_at: float  # in shadow: not when it was granted, but when its turn had come

    async def __aenter__(self) -> "Permit":
        # The common case, written out because a call costs as much as the whole decision:
        # `Window.join` says what happens here, `Limiter._lane` when it may.
        limiter = self._limiter
        if self._at is None:
            window = limiter._lane.get(self.key)
            if window is not None:
                now = limiter._time()
                if now < window.closes:
                    total = window.total + 1
                    if total <= limiter._lane_mark or limiter._is_near(total):
                        window.total = total
                        window.last = self._at = now
                        limiter._entered += 1
                        return self
        waiter = limiter._admission.request(self, holds=True)
        if waiter is not None:
            await limiter._admission.wait(self, waiter)
        limiter._entered += 1
        return self

    def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> Awaitable[None]:
        self._limiter._completed += 1
        return _DONE

    def __await__(self) -> Generator[Any, None, "Permit"]:
        limiter = self._limiter
        if self._at is None:
            window = limiter._lane.get(self.key)
            if window is not None and (
                window.join(now := limiter._time(), limiter._lane_mark)
                or limiter._joins_near(window, now)
            ):
                self._at = now
                limiter._passed += 1
                return self
        waiter = limiter._admission.request(self, holds=False)
        if waiter is not None:
            yield from limiter._admission.wait(self, waiter).__await__()
        limiter._passed += 1
        return self

    def __bool__(self) -> bool:
        if not self._is_granted:
            raise TypeError(f"{self!r}: await or enter it, or use try_acquire")
        return True

    def __repr__(self) -> str:
        state = f"waited {self.waited:.3g} s" if self._is_granted else "not granted"
        return (
            f"<Permit of {self._limiter.name} for {shown(self.key)}: cost {self.cost:g}, {state}>"
        )

    @property
    def cost(self) -> float:
        """What is charged for it; `adjust` and `cancel` change it."""
        return getattr(self, "_cost", 1)

    @property
    def _is_granted(self) -> bool:
        """Whether it was let in."""
        return self._at is not None and isfinite(self._at)

    @property
    def _own_limit(self) -> Limit | tuple[Limit, ...] | None:
        """The limit it came with; None for that of the limiter."""
        return getattr(self, "_limit", None)

    @property
    def waited(self) -> float:
        """Seconds from asking to being let in."""
        return getattr(self, "_waited", 0.0)

    @property
    def limit(self) -> Limit:
        """The limit it is under, as cost in the period of the rate that binds."""
        return self._limiter._quota(self).limit

    @property
    def remaining(self) -> float:
        """What its key has left now, as cost."""
        return self._limiter._quota(self).remaining

    @property
    def source(self) -> Source:
        """Where it was decided that it may pass: see `aiolimit.errors.Source`."""
        return getattr(self, "_source", "local")

    def adjust(self, cost: float) -> None:
        """Settle the true cost, once it is known. Never refuses, never waits.

        What is less is given back to where it was taken from, or nothing if that has left the
        window; what is more is charged now, even past the limit, and later calls wait it out.
        Raises `ValueError` or `TypeError` for a cost that is not a finite number from 0 up and
        `RuntimeError` before the permit is granted.
        """
        self._limiter._admission.settle(self, check_cost(cost))

    def cancel(self) -> None:
        """Give back all of it: what it was for was not done. Calling it again does nothing."""
        self._limiter._admission.settle(self, 0)


class BentPermit(Permit):
    """A permit of a limiter that warms up or has a load controller.

    It asks a little more on its way in and tells a little more on its way out; a class of its
    own, so that those who need none of it do not pay.
    """

    __slots__ = ()

    async def __aenter__(self) -> "Permit":
        # As in `Permit`, and the gate must not want to be asked (see `Cohort`).
        limiter = self._limiter
        if self._at is None:
            window = limiter._bent_lane.get(self.key)
            if window is not None:
                now = limiter._time()
                cohort = limiter._gate.cohort
                if now < window.closes and now < cohort.until and cohort.held < cohort.most:
                    total = window.total + 1
                    if total <= limiter._lane_mark or limiter._is_near(total):
                        window.total = total
                        window.last = limiter._ramp.at = self._at = now
                        limiter._entered += 1
                        self._cohort = cohort
                        cohort.held += 1
                        return self
        waiter = limiter._admission.request(self, holds=True)
        if waiter is not None:
            await limiter._admission.wait(self, waiter)
        limiter._entered += 1
        return self

    def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> Awaitable[None]:
        limiter = self._limiter
        limiter._completed += 1
        cohort = self._cohort
        cohort.held -= 1
        if cohort.asks:
            limiter._gate.leave(cast(float, self._at))
        return _DONE


class _WatchedPermit(Permit):
    """Warns, as a coroutine does, when it is dropped before it was awaited or entered.

    `__del__` would make every call an eighth slower, so it is for Python's development mode.
    """

    __slots__ = ()

    def __del__(self) -> None:
        if self._at is None or self._at is UNUSUAL:
            what = f"{self!r} was never awaited or entered: it limits nothing"
            warnings.warn(what, RuntimeWarning, stacklevel=2, source=self)


class _WatchedBentPermit(BentPermit, _WatchedPermit):
    __slots__ = ()


#: What `Limiter.acquire` makes, and what it makes where limits are bent.
new_permit: Final = _WatchedPermit if sys.flags.dev_mode else Permit
new_bent_permit: Final = _WatchedBentPermit if sys.flags.dev_mode else BentPermit

_bent_classes: WeakKeyDictionary["type[Limiter]", "type[Limiter]"] = WeakKeyDictionary()


def bent(limiter: "type[Limiter]", acquire: Any) -> "type[Limiter]":
    """The class of those that warm up or have a load controller: their permits are bent ones.

    Looking up which kind to make would cost each call of all other limiters 4 %, so this has the
    same code of `acquire` with another global.
    """
    if limiter.acquire is not acquire:
        raise TypeError(
            f"{limiter.__name__} overrides acquire, so it takes neither warm_up nor load; "
            "keep a Limiter inside instead"
        )
    if limiter not in _bent_classes:
        others = {**acquire.__globals__, "new_permit": new_bent_permit}
        twin = FunctionType(acquire.__code__, others, acquire.__name__, acquire.__defaults__)
        made = type(limiter.__name__, (limiter,), {"__slots__": (), "acquire": twin})
        _bent_classes[limiter] = made
    return _bent_classes[limiter]
