"""Shadow mode: decide and count as always, and let everybody pass.

A limit can be tried on live traffic before it bites. What a call would have met is worked out by
the same rooms that limit for real, so the counts are those of a limiter that bites, as long as its
callers come no matter what became of them:

- A call that would pass passes, and is charged.
- A call that would be refused passes, is counted as refused, and is charged nothing.
- A call that would wait passes at once. Its place in the queue is kept without it (`_Absent`): it
  is charged when its turn has come, or counted as refused when its `max_wait` cannot be met. So
  many places are kept, as callers who do not wait keep coming: more count as a full queue.
- A call that the load controller would hold up, and that may not wait for ever, is counted as
  refused. The controller is told of no refusal, as there was none.
"""

import asyncio
from collections.abc import Hashable
from typing import Any, ClassVar, Final, cast

from aiolimit.admission import Admission
from aiolimit.counts import Limits
from aiolimit.errors import RateLimited
from aiolimit.load.gate import UNCOUNTED, Obstacle
from aiolimit.permit import Permit
from aiolimit.queue import Waiter
from aiolimit.settling import settle

__all__ = ["ShadowAdmission"]


class _Absent:
    """Stands where the future of a waiting caller would, who has passed already.

    Like a future it is told when it is the caller's turn, or why it never will be.
    """

    __slots__ = ("_admission", "_is_over", "_loop", "_permit", "waiter")

    def __init__(self, admission: "ShadowAdmission", permit: Permit, waiter: Waiter) -> None:
        self._admission = admission
        self._permit = permit
        self.waiter = waiter
        self._loop = asyncio.get_running_loop()
        self._is_over = False

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop on which the caller would wait."""
        return self._loop

    def done(self) -> bool:
        """Whether it is known what would have become of the caller."""
        return self._is_over

    def set_result(self, _result: None) -> None:
        """It would pass now, and was charged."""
        self._is_over = True
        permit, waiter = self._permit, self.waiter
        permit._charged_at = cast(float, waiter.granted_at)
        permit._layout = waiter.layout
        if permit.cost == waiter.cost:
            permit._verdict = None
        else:
            # What it costs by now is charged next, and not here: those behind it are being let in.
            self._loop.call_soon(self._settle)

    def _settle(self) -> None:
        permit, cost = self._permit, self._permit.cost
        permit._verdict, permit._cost = None, self.waiter.cost
        settle(self._admission, permit, cost)

    def set_exception(self, _error: BaseException) -> None:
        """It would be refused now. That is counted where the error was made."""
        self._is_over = True
        self._permit._verdict = _REFUSED


_REFUSED: Final = object()
_PLACES: Final = 10_000  # that are kept, where `max_waiters` says nothing: some 5 MB


class ShadowAdmission(Admission):
    """The decisions of one limiter, of which nothing follows."""

    shadow: ClassVar[bool] = True

    __slots__ = ()

    def __init__(self, *arguments: Any, max_waiters: int | None, **options: Any) -> None:
        options["max_waiters"] = _PLACES if max_waiters is None else max_waiters
        super().__init__(*arguments, **options)

    def vet(self, permit: Permit) -> None:
        """Raise what is wrong with a permit that is to be let pass later, and not a refusal."""
        self.terms(permit)
        hash(permit.key)
        if self.gate is not None:
            self.gate.check(permit._limiter.name)

    def request(self, permit: Permit, *, holds: bool) -> Waiter | None:
        """Let the permit pass, and find out what would have become of it."""
        verdict: object = None
        try:
            waiter = super().request(permit, holds=holds)
        except RateLimited:
            verdict = _REFUSED
        else:
            if waiter is None:
                return None
            if waiter.granted_at is None:
                waiter.is_absent = True
                waiter.future = cast(Any, _Absent(self, permit, waiter))
                verdict = waiter
            else:
                permit._charged_at, permit._layout = waiter.granted_at, waiter.layout
        now = permit._at = self.time()
        permit._verdict = verdict
        permit._cohort = UNCOUNTED if self.gate is None else self.gate.enter(now, holds=holds)
        if permit.cost != 1:
            self.tally.admit(permit.cost)
        return None

    def try_acquire(self, key: Hashable, cost: float, limits: Limits) -> bool:
        """Let a call pass, and count it as refused if it would be."""
        if not super().try_acquire(key, cost, limits):
            if self.gate is not None:
                self.gate.enter(self.time(), holds=False)
            if cost != 1:
                self.tally.admit(cost)
        return True

    def settle(self, permit: Permit, cost: float) -> None:
        """As always where it was charged; what was not, or is not yet, only changes its cost."""
        if getattr(permit, "_verdict", None) is None:
            super().settle(permit, cost)
            return
        self.tally.settle(cost - permit.cost)
        permit._cost = cost

    def refuse_at_once(self, key: Hashable) -> None:
        """Nobody is refused; the call has to be made."""

    def refuse_for_load(self, _obstacle: Obstacle) -> float:
        """Count a call that would be refused; the load controller knows of none."""
        self.tally.refuse("overload")
        return 1.0
