"""What went wrong for users of other limiters, row by row of the field notes, part A.

The name of each test begins with its row. Rows 23 to 25 come with warm-up, load and metrics.
"""

import asyncio
import gc
import math
import random
import time
import warnings

import pytest

from aiolimit import CostTooHigh, Limiter, QueueFull, RateLimited
from aiolimit.testing import FakeClock
from tests.support import Callers, CountingClock, HastyClock, worst

MODULE_LEVEL = Limiter("2/200ms", name="module")


def test_01_three_loops_in_a_row_each_leaving_a_cancelled_waiter() -> None:
    left_behind: list[asyncio.Task[object]] = []

    async def main() -> None:
        await MODULE_LEVEL.acquire("k")
        await MODULE_LEVEL.acquire("k")
        waiter = asyncio.create_task(MODULE_LEVEL.acquire("k").__aenter__())
        await asyncio.sleep(0)
        assert MODULE_LEVEL.statistics().waiting == 1
        waiter.cancel()
        begun = time.monotonic()
        async with MODULE_LEVEL.acquire("k") as permit:
            assert permit.waited > 0.1
        assert time.monotonic() - begun < 5
        left_behind.append(asyncio.create_task(MODULE_LEVEL.acquire("k").__aenter__()))
        await asyncio.sleep(0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            MODULE_LEVEL.reset()
            asyncio.run(main(), debug=True)
            gc.collect()
            assert MODULE_LEVEL.statistics().waiting == 0


def test_01_a_loop_that_was_closed_over_its_waiters() -> None:
    limiter = Limiter("1/h")
    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(limiter.acquire("k", max_wait=0).__aenter__())
        waiting = limiter.acquire("k").__aenter__()
        task = loop.create_task(waiting)
        loop.run_until_complete(asyncio.sleep(0))
        assert limiter.statistics().waiting == 1
        waiting.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
        limiter.reset()


@pytest.mark.parametrize("run", [1, 2])
async def test_01_function_scoped_loops(run: int) -> None:
    # Two loops, one limiter: neither call hangs, warns or raises.
    MODULE_LEVEL.reset()
    for _ in range(3):
        async with MODULE_LEVEL.acquire("scoped"):
            pass


async def test_02_one_timer_and_one_wake_up() -> None:
    clock = CountingClock()
    limiter = Limiter("500/s", clock=clock)
    for _ in range(500):
        await limiter.acquire("k")
    before = clock.timers
    await asyncio.gather(*(limiter.acquire("k").__aenter__() for _ in range(50)))
    assert clock.timers - before <= 50
    assert limiter.statistics().admitted == 550


async def test_02_five_thousand_waiters_are_woken_once_each() -> None:
    clock = FakeClock()
    limiter = Limiter("1000/s", clock=clock)
    steps = 0

    class Counted:
        """A coroutine of which every step is counted."""

        def __await__(self):  # type: ignore[no-untyped-def]
            nonlocal steps
            waiting = limiter.acquire("k").__await__()
            while True:
                steps += 1
                try:
                    yielded = next(waiting)
                except StopIteration:
                    return
                yield yielded

    async def wait() -> None:
        await Counted()

    tasks = [asyncio.create_task(wait()) for _ in range(5000)]
    await clock.advance(10)
    await asyncio.gather(*tasks)
    assert steps <= 2 * 5000


async def test_03_never_over_in_any_window() -> None:
    clock = FakeClock()
    limiter = Limiter("200/s", clock=clock)
    callers = Callers(limiter, clock)
    for who in range(800):
        callers.call(who)
    await clock.advance(10)
    assert len(callers.admitted) == 800
    assert worst(callers.times(), 1.0) == 200
    assert callers.times()[-1] == pytest.approx(3.0, abs=0.03)


@pytest.mark.parametrize("seed", range(5))
async def test_03_never_over_under_hostile_arrivals(seed: int) -> None:
    chance = random.Random(seed)
    clock = FakeClock(start=chance.random() * 1e6)
    limiter = Limiter("40/s", "60/2s", sub_windows=chance.choice([8, 32, None]), clock=clock)
    callers = Callers(limiter, clock)
    for who in range(120):
        for _ in range(chance.choice([1, 1, 5, 40])):
            callers.call(who, max_wait=chance.choice([None, 0, 0.5, 3]))
        await clock.advance(chance.choice([0.0, 0.001, 0.01, 0.94, 0.05, 1.0, 2.0]))
    await clock.advance(2000)
    await callers.end()
    assert worst(callers.times(), 1.0) <= 40
    assert worst(callers.times(), 2.0) <= 60


async def test_04_a_limit_of_one() -> None:
    clock = FakeClock()
    limiter = Limiter("1/s", clock=clock)
    assert limiter.try_acquire()
    for _ in range(99):
        clock.jump(0.01)
        assert not limiter.try_acquire()
    clock.jump(0.01)
    assert limiter.try_acquire()


async def test_05_update_reaches_the_next_decision_and_those_who_wait() -> None:
    clock = FakeClock()
    limiter = Limiter("1/min", clock=clock)
    callers = Callers(limiter, clock)
    for who in range(5):
        callers.call(who)
    await clock.advance(10)
    assert callers.who() == [0]
    limiter.update("3/min")
    await clock.settle()
    assert callers.who() == [0, 1, 2], "raised, they wake early"
    limiter.update("1/min")
    await clock.advance(50)
    assert callers.who() == [0, 1, 2], "lowered, they wait longer: two of 10 s are in the window"
    await clock.advance(10)
    assert callers.who() == [0, 1, 2, 3]
    limiter.update("100/s")
    await clock.settle()
    assert callers.who() == [0, 1, 2, 3, 4]
    assert limiter.peek().limit == 100


@pytest.mark.parametrize("cost", [-1, -0.5, math.nan, math.inf, -math.inf])
async def test_06_a_cost_that_is_no_amount_is_refused_before_any_change(cost: float) -> None:
    limiter = Limiter("3/h")
    assert limiter.try_acquire()
    with pytest.raises(ValueError, match="cost must be a finite number from 0 up, not"):
        await limiter.acquire(cost=cost)
    with pytest.raises(ValueError, match="cost must be"):
        limiter.try_acquire(cost=cost)
    assert limiter.peek().remaining == 2


async def test_07_a_cost_above_the_limit_fails_at_once_and_changes_nothing() -> None:
    clock = FakeClock()
    limiter = Limiter("10/s", "20/min", clock=clock)
    with pytest.raises(CostTooHigh) as caught:
        await limiter.acquire("k", 11)
    assert caught.value.retry_after is None
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, RateLimited)
    assert "cost 11 for 'k' is above the limit of 10 in 1 s and can never pass" in str(caught.value)
    assert limiter.peek("k").remaining == 10
    assert not limiter.try_acquire("k", 11)
    assert limiter.try_acquire("k", 10)


async def test_08_woken_at_the_first_possible_instant() -> None:
    clock = FakeClock()
    limiter = Limiter("2/s", clock=clock)
    callers = Callers(limiter, clock)
    callers.call("a")
    await clock.advance(0.5)
    callers.call("b")
    await clock.advance(0.25)
    callers.call("c")
    callers.call("d")
    await clock.advance(5)
    assert callers.times() == [0.0, 0.5, 1.0, 1.5]


async def test_09_drained_idle_and_then_a_burst() -> None:
    clock = FakeClock()
    limiter = Limiter("2/s", clock=clock)
    callers = Callers(limiter, clock)
    for _ in range(3):
        for who in range(6):
            callers.call(who)
        await clock.advance(1000)
    assert len(callers.admitted) == 18


@pytest.mark.parametrize("share", [0.1, 0.5, 0.999999])
async def test_10_a_timer_that_fires_early_is_set_again(share: float) -> None:
    clock = HastyClock(share)
    limiter = Limiter("5/s", clock=clock)
    callers = Callers(limiter, clock)
    for who in range(20):
        callers.call(who)
    await clock.advance(10)
    assert len(callers.admitted) == 20
    assert worst(callers.times(), 1.0) == 5
    assert clock.timers < 2000


async def test_11_keys_are_separate_with_the_shortest_set_up() -> None:
    limiter = Limiter("1/h")
    assert limiter.try_acquire("a")
    assert limiter.try_acquire("b")
    assert not limiter.try_acquire("a")
    assert limiter.try_acquire(("user", 42))
    assert limiter.try_acquire(42)


async def test_12_no_loop_is_blocked_while_five_thousand_wait() -> None:
    limiter = Limiter("5000/500ms")
    gaps: list[float] = []

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.005)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    for _ in range(5000):
        await limiter.acquire("k")
    tasks = [asyncio.create_task(limiter.acquire("k").__aenter__()) for _ in range(5000)]
    await asyncio.sleep(0)
    assert limiter.statistics().waiting == 5000
    gc.collect()
    gc.disable()  # a collection of the test's own ten thousand objects is not the limiter's
    ticker = asyncio.create_task(tick())
    try:
        await asyncio.gather(*tasks)
    finally:
        gc.enable()
        ticker.cancel()
    # All five thousand become due in one instant; still the loop gets its turns.
    gaps.sort()
    assert gaps[len(gaps) * 9 // 10] < 0.02, f"gaps: {gaps[-5:]}"


async def test_13_who_is_woken_and_finds_the_place_taken_waits_on_in_order() -> None:
    clock = FakeClock()
    limiter = Limiter("2/s", "3/2s", clock=clock)
    callers = Callers(limiter, clock)
    for who in range(8):
        callers.call(who)
    for step in range(100):
        await clock.advance(0.1)
        limiter.try_acquire()  # a thief at every tick: it never gets ahead of those who wait
        if step % 7 == 0:
            limiter.update("2/s", "3/2s")
    assert callers.who() == list(range(8))


@pytest.mark.parametrize("two", [False, True])
async def test_14_max_wait_bounds_the_whole(two: bool) -> None:
    clock = FakeClock()
    limiter = Limiter("1/s", "100/min", clock=clock) if two else Limiter("1/s", clock=clock)
    await limiter.acquire("k", max_wait=0)
    with pytest.raises(RateLimited) as caught:
        await limiter.acquire("k", max_wait=0)
    assert caught.value.retry_after == 1.0
    assert clock.time() == 0.0
    callers = Callers(limiter, clock)
    callers.call("first", "k", max_wait=1.0)
    await clock.settle()
    begun = clock.time()
    with pytest.raises(RateLimited) as caught:
        await limiter.acquire("k", max_wait=1.5)  # one is before it: 2 s
    assert clock.time() == begun, "it slept although it knew"
    assert caught.value.retry_after == 2.0
    assert caught.value.reason == "timeout"
    callers.call("second", "k", max_wait=2.0)
    await clock.advance(5)
    assert callers.who() == ["first", "second"]


async def test_14_a_deadline_that_can_no_longer_be_met_ends_the_wait_at_once() -> None:
    clock = FakeClock()
    limiter = Limiter("2/s", clock=clock)
    callers = Callers(limiter, clock)
    for who in range(4):
        callers.call(who, max_wait=1.2)
    await clock.settle()
    limiter.update("1/s")
    await clock.settle()
    assert clock.time() == 0.0
    assert callers.tasks[3].done()
    assert not callers.tasks[2].done()
    await clock.advance(3)
    ends = await callers.end()
    assert [type(end) for end in ends] == [type(None), type(None), type(None), RateLimited]


async def test_15_waiting_on_one_key_delays_no_other() -> None:
    limiter = Limiter("1/h")
    await limiter.acquire("a")
    tasks = [asyncio.create_task(limiter.acquire("a").__aenter__()) for _ in range(1000)]
    await asyncio.sleep(0)
    begun = time.perf_counter()
    assert limiter.try_acquire("b")
    assert time.perf_counter() - begun < 0.005
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert limiter.statistics().waiting == 0


async def test_16_two_limits_are_charged_both_or_none() -> None:
    clock = FakeClock()
    limiter = Limiter("1/s", "5/min", clock=clock)
    for _ in range(100):
        limiter.try_acquire("k")
    assert limiter.statistics().admitted == 1
    for _ in range(4):
        clock.jump(1)
        assert limiter.try_acquire("k"), "a refusal by one limit was charged to the other"
    clock.jump(1)
    assert not limiter.try_acquire("k")
    permit = await Limiter("1/s", "5/min", clock=clock).acquire("k")
    permit.cancel()
    assert permit.remaining == 1


async def test_17_idle_keys_are_freed_without_a_call() -> None:
    clock = FakeClock()
    limiter = Limiter("5/min", clock=clock)
    for key in range(100_000):
        assert limiter.try_acquire(key)
    assert len(limiter) == 100_000
    await clock.advance(59)
    assert len(limiter) == 100_000
    await clock.advance(1.001)
    assert len(limiter) == 0


def test_18_bounding_the_keys_never_un_limits() -> None:
    clock = FakeClock()
    limiter = Limiter("3/min", max_keys=100, clock=clock)
    assert [limiter.try_acquire("mine") for _ in range(4)] == [True, True, True, False]
    passed = sum(limiter.try_acquire(f"spray{n}") for n in range(10_000))
    assert passed == 99 + 3
    assert not limiter.try_acquire("mine")
    assert len(limiter) == 100
    clock.jump(60)
    assert limiter.try_acquire("mine")
    assert limiter.try_acquire("newcomer"), "never a full lock-out"


async def test_19_a_clock_set_back() -> None:
    clock = FakeClock(start=1_000_000)
    limiter = Limiter("2/s", burst=1, clock=clock)
    windowed = Limiter("2/s", clock=clock)
    for each in (limiter, windowed):
        while each.try_acquire():
            pass
    clock.set_by(-3600)
    for each in (limiter, windowed):
        assert not each.try_acquire(), "refilled"
        assert 0 < (each.peek().retry_after or 0) <= 1.0
        begun = clock.time()
        task = asyncio.create_task(each.acquire().__aenter__())
        await clock.advance(1.0)
        assert task.done(), "blocked"
        assert clock.time() == begun + 1.0


async def test_20_time_that_stands_still_in_tests() -> None:
    clock = FakeClock(autojump=True)
    limiter = Limiter("1/h", clock=clock)
    begun = time.monotonic()
    for _ in range(10):
        async with limiter.acquire():
            pass
    assert clock.time() == 9 * 3600
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    "options", [{}, {"burst": 2}, {"sub_windows": None}, {"sub_windows": 4, "burst": 7}]
)
@pytest.mark.parametrize("seed", range(4))
def test_21_retry_after_is_exact(options: dict[str, float | None], seed: int) -> None:
    chance = random.Random(seed)
    clock = FakeClock(start=chance.random() * 1e5)
    limiter = Limiter("7/s", "60/20s", clock=clock, **options)  # type: ignore[arg-type]
    for _ in range(300):
        cost = chance.choice([1, 1, 1, 2])
        if limiter.try_acquire("k", cost):
            clock.jump(chance.random() * 0.05)
            continue
        with pytest.raises(RateLimited) as caught:
            limiter.acquire("k", cost, max_wait=0).__await__().send(None)
        retry_after = caught.value.retry_after
        assert retry_after is not None
        assert retry_after > 0
        assert retry_after == limiter.peek("k", cost).retry_after
        clock.jump(retry_after * 0.95)
        if retry_after > 1e-9:  # below, 5 % less is the same instant for a clock
            assert not limiter.try_acquire("k", cost), "the wait was too long"
        again = limiter.peek("k", cost).retry_after or 0
        clock.jump(again)
        assert limiter.try_acquire("k", cost), "slept in vain"


async def test_22_four_a_day_while_eviction_runs_as_often_as_it_can() -> None:
    clock = FakeClock()
    limiter = Limiter("4/day", max_keys=1, clock=clock)
    for n in range(1000):
        limiter.try_acquire("k")
        limiter._store.evict(clock.time(), 1)
        clock.jump(60)
        if n % 100 == 0:
            limiter.try_acquire(f"other{n}")
    assert limiter.statistics().admitted <= 4 + 4
    assert not limiter.try_acquire("k")


async def test_queue_full_is_told_at_once() -> None:
    clock = FakeClock()
    limiter = Limiter("1/s", max_waiters=2, clock=clock)
    callers = Callers(limiter, clock)
    for who in range(5):
        callers.call(who, key=who % 2)
    await clock.advance(10)
    ends = await callers.end()
    assert [type(end) for end in ends].count(QueueFull) == 1
    assert limiter.statistics().rejected["queue_full"] == 1
