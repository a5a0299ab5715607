"""Cancelled at every point, in every way: nothing is lost, nothing granted twice, order is kept."""

import asyncio
from collections.abc import Callable
from fractions import Fraction

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiolimit import Limiter
from aiolimit.testing import FakeClock
from tests.support import worst

KEYS = st.sampled_from("ab")
ACTIONS = st.one_of(
    st.tuples(st.just("call"), KEYS, st.integers(1, 3)),
    st.tuples(st.just("call"), KEYS, st.just(1)),
    st.tuples(st.just("timed"), KEYS, st.sampled_from([0.0, 0.3, 1.0])),
    st.tuples(st.just("scoped"), KEYS, st.just(1)),
    st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("grant, then cancel"), st.integers(0, 8), st.just(0)),
    st.tuples(st.just("cancel, then grant"), st.integers(0, 8), st.just(0)),
    st.tuples(st.just("jump"), st.sampled_from([0.1, 0.5, 1.0]), st.just(0)),
    st.tuples(st.just("turn"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("advance"), st.sampled_from([0.1, 0.5, 1.0, 3.0]), st.just(0)),
    st.tuples(st.just("update"), st.sampled_from(["2/s", "4/s", "3/s"]), st.just(0)),
)


class World:
    """Callers of all kinds, who can be cancelled, and what became of them."""

    def __init__(self, **options: float) -> None:
        self.clock = FakeClock()
        self.limiter = Limiter("3/s", clock=self.clock, **options)  # type: ignore[arg-type]
        self.arrived: list[tuple[str, int]] = []
        self.entered: list[tuple[float, str, int, float]] = []
        self.cancels: list[Callable[[], object]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.inside = 0

    async def _body(self, number: int, key: str, cost: float, max_wait: float | None) -> None:
        self.arrived.append((key, number))
        async with self.limiter.acquire(key, cost, max_wait=max_wait) as permit:
            assert permit._at is not None
            self.entered.append((permit._at, key, number, cost))
            self.inside += 1
            try:
                await self.clock.sleep(0.05)
            finally:
                self.inside -= 1

    def call(self, key: str, cost: float, *, max_wait: float | None = None) -> None:
        task = asyncio.create_task(self._body(len(self.tasks), key, cost, max_wait))
        self.tasks.append(task)
        self.cancels.append(task.cancel)

    def scoped(self, key: str) -> None:
        """In an anyio scope: once cancelled, it cancels again at every await."""
        scope = anyio.CancelScope()
        number = len(self.tasks)

        async def run() -> None:
            with scope:
                await self._body(number, key, 1, None)

        self.tasks.append(asyncio.create_task(run()))
        self.cancels.append(scope.cancel)

    def cancel(self, which: int) -> None:
        """Cancel one of those who are not done, the earliest first."""
        alive = [n for n, task in enumerate(self.tasks) if not task.done()]
        if alive:
            self.cancels[alive[which % len(alive)]]()

    async def act(self, action: tuple[str, object, object]) -> None:
        match action:
            case ("call", str(key), int(cost)):
                self.call(key, cost)
            case ("timed", str(key), float(max_wait)):
                self.call(key, 1, max_wait=max_wait)
            case ("scoped", str(key), _):
                self.scoped(key)
            case ("cancel", int(which), _):
                self.cancel(which)
            case ("grant, then cancel", int(which), _):
                await self.clock.settle()
                self.clock.jump(1.0)
                self.cancel(which)
            case ("cancel, then grant", int(which), _):
                await self.clock.settle()
                self.cancel(which)
                self.clock.jump(1.0)
            case ("jump", float(seconds), _):
                self.clock.jump(
                    seconds
                )  # grants, and lets nobody run: what follows is the same tick
            case ("turn", int(turns), _):
                for _ in range(turns):
                    await asyncio.sleep(0)
            case ("advance", float(seconds), _):
                await self.clock.advance(seconds)
                self.check_charges()
            case ("update", str(rate), _):
                self.limiter.update(rate)

    async def end(self, *, cancel: bool) -> None:
        if cancel:
            for each in self.cancels:
                each()
        await self.clock.advance(200)
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def check_charges(self) -> None:
        """What is charged is what was entered, to the last permit: no more, no less."""
        if self.limiter._store.max_keys or self.limiter._store.burst:
            return
        now = self.clock.time()
        for key in "ab":
            used = sum(cost for at, k, _, cost in self.entered if k == key and now - 1.0 < at)
            quota = self.limiter.peek(key)
            assert isinstance(quota.limit, int)
            assert quota.remaining == max(0, quota.limit - used)

    def check(self) -> None:
        statistics = self.limiter.statistics()
        assert statistics.waiting == 0
        assert statistics.in_flight == self.inside == 0
        assert statistics.admitted == statistics.completed == len(self.entered)
        assert not self.limiter._queues.by_key
        for key in "ab":
            # Compared by the moment of the grant: a task that was granted may run after one that
            # came later and passed at once, but it was let in before.
            arrivals = [number for its_key, number in self.arrived if its_key == key]
            granted = {number: at for at, its_key, number, _ in self.entered if its_key == key}
            in_order = [granted[number] for number in arrivals if number in granted]
            assert in_order == sorted(in_order), "overtaken"
            times = [at for at, k, _, cost in self.entered if k == key for _ in range(int(cost))]
            assert worst(times, 1.0) <= 4


def run(actions: list[tuple[str, object, object]], *, cancel: bool, **options: float) -> None:
    async def main() -> None:
        world = World(**options)
        for action in actions:
            await world.act(action)
        await world.end(cancel=cancel)
        world.check()
        # Nothing is left charged, nothing is missing: a whole limit passes at once, and no more.
        world.limiter.update("3/s")
        for key in "ab":
            passed = 0
            while world.limiter.try_acquire(key):
                passed += 1
            assert passed == min(3, options.get("burst", 3))

    asyncio.run(main())


@settings(max_examples=400)
@given(st.lists(ACTIONS, max_size=40), st.booleans())
def test_random_schedules(actions: list[tuple[str, object, object]], cancel: bool) -> None:
    run(actions, cancel=cancel)


@settings(max_examples=150)
@given(st.lists(ACTIONS, max_size=40))
def test_random_schedules_with_a_burst(actions: list[tuple[str, object, object]]) -> None:
    run([action for action in actions if action[2] in (0, 1)], cancel=False, burst=2)


@settings(max_examples=150)
@given(st.lists(ACTIONS, max_size=40))
def test_random_schedules_with_few_keys(actions: list[tuple[str, object, object]]) -> None:
    async def main() -> None:
        world = World(max_keys=1)
        for action in actions:
            await world.act(action)
        await world.end(cancel=False)
        world.check()

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("how", ["task", "timeout", "scope", "nested scope"])
async def test_cancelled_at_every_await(how: str, turns: int) -> None:
    """The first of three waiters is cancelled after so many turns; the others lose nothing."""
    clock = FakeClock()
    limiter = Limiter("1/s", clock=clock)
    await limiter.acquire("k")
    entered: list[str] = []

    async def wait(name: str) -> None:
        async with limiter.acquire("k"):
            entered.append(name)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    scope = anyio.CancelScope()

    async def first() -> None:
        if how == "timeout":
            async with asyncio.timeout(None) as timeout:
                timeouts.append(timeout)
                await wait("first")
        elif how == "scope":
            with scope:
                await wait("first")
        elif how == "nested scope":
            with scope, anyio.move_on_after(1000):
                async with anyio.create_task_group() as group:
                    group.start_soon(wait, "first")
        else:
            await wait("first")

    timeouts: list[asyncio.Timeout] = []
    task = asyncio.create_task(first())
    await clock.settle()
    others = [asyncio.create_task(wait(name)) for name in ("second", "third")]
    await clock.settle()
    clock.jump(1.0)  # grants to the first, which has not run yet
    for _ in range(turns):
        await asyncio.sleep(0)
    match how:
        case "task":
            task.cancel()
        case "timeout":
            if not task.done():
                timeouts[0].reschedule(0)
        case _:
            scope.cancel()
    await clock.advance(5)
    await asyncio.gather(task, *others, return_exceptions=True)
    assert entered[-2:] == ["second", "third"]
    statistics = limiter.statistics()
    assert statistics.waiting == statistics.in_flight == 0
    assert statistics.admitted == 1 + len(entered)
    assert limiter.peek("k").remaining == 1


async def test_granted_and_cancelled_in_one_tick_hands_the_place_on_at_once() -> None:
    clock = FakeClock()
    limiter = Limiter("1/s", clock=clock)
    await limiter.acquire("k")
    first = asyncio.create_task(limiter.acquire("k").__aenter__())
    second = asyncio.create_task(limiter.acquire("k").__aenter__())
    await clock.settle()
    clock.jump(1.0)
    first.cancel()
    await clock.settle()
    assert second.done()
    assert clock.time() == 1.0
    assert not limiter.try_acquire("k")
    assert limiter.statistics().cancelled == 1


async def test_a_large_cost_that_gives_up_lets_the_small_ones_behind_it_go() -> None:
    clock = FakeClock()
    limiter = Limiter("10/s", clock=clock)
    await limiter.acquire("k", 5)
    large = asyncio.create_task(limiter.acquire("k", 10).__aenter__())
    small = [asyncio.create_task(limiter.acquire("k", 2).__aenter__()) for _ in range(2)]
    await clock.settle()
    assert not any(task.done() for task in small), "a large cost must not be overtaken"
    large.cancel()
    await clock.settle()
    assert all(task.done() for task in small)
    assert clock.time() == 0.0


async def test_an_exception_inside_the_scope_leaves_it_all_the_same() -> None:
    limiter = Limiter("10/s")
    with pytest.raises(KeyError):
        async with limiter.acquire("k"):
            assert limiter.statistics().in_flight == 1
            raise KeyError
    assert limiter.statistics().in_flight == 0
    assert limiter.peek("k").remaining == 9, "leaving gives nothing back"


async def test_a_waiting_coroutine_that_is_closed() -> None:
    clock = FakeClock()
    limiter = Limiter("1/s", clock=clock)
    await limiter.acquire("k")
    waiting = limiter.acquire("k").__aenter__()
    waiting.send(None)
    assert limiter.statistics().waiting == 1
    waiting.close()
    assert limiter.statistics().waiting == 0
    assert limiter.statistics().cancelled == 1


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.floats(0, 0.6), st.integers(0, 6), st.integers(0, 6), st.booleans()),
        max_size=25,
    )
)
def test_settled_costs_keep_the_limit(steps: list[tuple[float, int, int, bool]]) -> None:
    """With `adjust` downwards and `cancel` no interval holds more than the limit of true cost."""
    clock = FakeClock()
    limiter = Limiter("6/s", clock=clock)
    kept: list[list[Fraction]] = []
    for move, cost, actual, cancel in steps:
        clock.jump(move)
        permit = limiter.acquire("k", cost, max_wait=0)
        if limiter.peek("k", cost).retry_after:
            continue
        with pytest.raises(StopIteration):
            permit.__await__().send(None)
        kept.append([Fraction(clock.time()), Fraction(cost)])
        clock.jump(move / 3)
        settled = 0 if cancel else min(cost, actual)
        if cancel:
            permit.cancel()
        else:
            permit.adjust(settled)
        kept[-1][1] = Fraction(settled)
        assert permit.cost == settled
        for end, _ in kept:
            assert sum(c for at, c in kept if end - 1 < at <= end) <= 6
