"""The refusals of a limiter: each is counted, and made into the error that tells of it."""

from collections.abc import Callable, Hashable

from aiolimit.counts import Limits
from aiolimit.errors import Overloaded, RateLimited, Reason
from aiolimit.load.controller import LoadController
from aiolimit.load.gate import Gate, Obstacle
from aiolimit.memory import MemoryStore
from aiolimit.queue import Waiter
from aiolimit.queues import Queues
from aiolimit.standings import Standings
from aiolimit.tally import Tally

__all__ = ["Refusing"]


class Refusing:
    """What `Admission` has for those who may not pass."""

    __slots__ = ()

    _name: str
    _load: LoadController | None
    gate: Gate | None
    queues: Queues
    standings: Standings
    store: MemoryStore
    tally: Tally
    time: Callable[[], float]

    def refuse_for_load(self, obstacle: Obstacle) -> float:
        """Count a call that the load controller refused; returns when it may come again."""
        self.tally.refuse("overload")
        if self._load is None or self.gate is None:
            return 1.0
        self.gate.refuse(obstacle)
        return self._load.retry_after()

    def _overloaded(self, key: Hashable, obstacle: Obstacle) -> Overloaded:
        """Count a call that the load controller refused, and make the error that tells of it."""
        again = self.refuse_for_load(obstacle)
        binding: str = obstacle
        if self._load is not None and obstacle != "iteration":
            state = self._load.state
            binding = state.binding if state.factor < 1 else obstacle
        rate = self.store.rates[0]
        return Overloaded(
            limiter=self._name, key=key, rate=rate, retry_after=again, binding=binding
        )

    def _refuse(
        self,
        error: type[RateLimited],
        reason: Reason,
        key: Hashable,
        cost: float,
        limits: Limits,
        wait: float | None,
    ) -> RateLimited:
        """Count a refusal and make the error that tells of it."""
        self.tally.refuse(reason)
        return self.standings.refusal(error, reason, key, cost, limits, wait)

    def refuse_late(self, key: Hashable, cost: float, wait: float) -> RateLimited:
        """Count a call that would wait too long, by somebody else's word, and make the error."""
        return self._refuse(RateLimited, "timeout", key, cost, self.queues.limits, wait)

    def _refuse_waiter(
        self, error: type[RateLimited], reason: Reason, waiter: Waiter
    ) -> RateLimited:
        """The same, for one who waited."""
        if reason == "overload":
            return self._overloaded(waiter.key, waiter.queue.held or "in_flight")
        limits = self.queues.limits_of(waiter)
        wait = None
        if reason != "cost_too_high":
            now = self.time()
            wait = self.queues.behind(waiter.queue, waiter.cost, limits, now)
        return self._refuse(error, reason, waiter.key, waiter.cost, limits, wait)
