"""Corners in which something was wrong once, each with the right value."""

import asyncio
import copy
import random

import pytest

from aiolimit import UNLIMITED, CostTooHigh, Limiter, Rate, RateLimited
from aiolimit.testing import FakeClock
from tests.support import Callers


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def passing(limiter: Limiter, key: object = "k") -> int:
    """How many calls of cost 1 pass now."""
    return sum(limiter.try_acquire(key) for _ in range(1000))


# --- settling under a burst, several rates, and rates that change --------------------------


async def test_adjust_upwards_is_waited_out_by_the_pacer_too(clock: FakeClock) -> None:
    limiter = Limiter("10/s", burst=5, clock=clock)
    permit = await limiter.acquire("k", 5)
    permit.adjust(6)
    assert passing(limiter) == 0
    assert limiter.peek("k").retry_after == pytest.approx(0.2)


async def test_cancel_frees_nothing_in_the_pacer_that_has_drained(clock: FakeClock) -> None:
    limiter = Limiter("10/s", burst=5, clock=clock)
    first = await limiter.acquire("k", 5)
    clock.jump(0.5)
    await limiter.acquire("k", 5)
    first.cancel()
    assert passing(limiter) == 0


async def test_a_partly_unlimited_permit_after_its_rates_have_changed(clock: FakeClock) -> None:
    for changed in (("100/min", "10/s"), ("10/s",)):
        limiter = Limiter("10/s", "100/min", clock=clock)
        permit = await limiter.acquire("k", 5, limit=(UNLIMITED, 100))
        assert passing(limiter) == 10
        limiter.update(*changed)
        permit.cancel()
        assert passing(limiter) == 0
        assert permit.limit in (10, 100), "it can still be asked"


async def test_two_rates_of_one_period_become_one(clock: FakeClock) -> None:
    limiter = Limiter("10/s", "20/s", clock=clock)
    await limiter.acquire("k", 10, limit=(10, UNLIMITED))
    limiter.update("10/s")
    assert passing(limiter) == 0


async def test_settling_keeps_within_max_keys(clock: FakeClock) -> None:
    limiter = Limiter("10/s", max_keys=1, clock=clock)
    permits = [await limiter.acquire(n, 0) for n in range(20)]
    permits += [await limiter.acquire(n, limit=UNLIMITED) for n in range(20, 40)]
    for permit in permits:
        permit.adjust(1)
    assert len(limiter) == 1


# --- waiting -------------------------------------------------------------------------------


class Detached:
    """A key whose text cannot be had."""

    def __repr__(self) -> str:
        raise RuntimeError("detached")


async def test_a_key_that_cannot_be_shown_stops_nothing(clock: FakeClock) -> None:
    key = Detached()
    limiter = Limiter("5/s", clock=clock)
    callers = Callers(limiter, clock)
    permit = await limiter.acquire(key, 5)
    callers.call("bounded", key, max_wait=1.2)
    callers.call("too high", key, cost=5)
    callers.call("last", key)
    await clock.advance(0.5)
    limiter.update("4/s")
    permit.adjust(9)
    await clock.advance(5)
    ends = await callers.end()
    assert isinstance(ends[0], RateLimited)
    assert "Detached object at" in str(ends[0])
    assert isinstance(ends[1], CostTooHigh)
    assert callers.who() == ["last"]
    assert "Detached object at" in repr(permit) + str(limiter.explain(key))


async def test_granted_changed_and_cancelled_in_one_tick(clock: FakeClock) -> None:
    limiter = Limiter("1/s", clock=clock)
    assert limiter.try_acquire("k")
    first = asyncio.create_task(limiter.acquire("k", limit=1).__aenter__())
    second = asyncio.create_task(limiter.acquire("k").__aenter__())
    await clock.settle()
    clock.jump(1.0)
    limiter.update("1/s", "10/min")
    first.cancel()
    await clock.settle()
    assert first.cancelled()
    assert second.done()
    assert limiter.statistics().cancelled == 1


async def test_a_key_with_waiters_is_not_forgotten(clock: FakeClock) -> None:
    limiter = Limiter("1/s", max_keys=1, clock=clock)
    callers = Callers(limiter, clock)
    assert limiter.try_acquire("mine")
    for who in range(3):
        callers.call(who, "mine")
    for spray in range(400):
        callers.call("spray", spray, max_wait=0)
        await clock.advance(0.01)
    assert [at for at, who, _, _ in callers.admitted if who != "spray"] == [1.0, 2.0, 3.0]
    await callers.end()


async def test_just_in_time_is_in_time(clock: FakeClock) -> None:
    limiter = Limiter("2/s", clock=clock)
    clock.jump(0.3)
    callers = Callers(limiter, clock)
    for who in range(5):
        callers.call(who, max_wait=2.0)  # the fifth needs two whole periods
    await clock.advance(3)
    assert callers.who() == [0, 1, 2, 3, 4]
    chance = random.Random(7)
    for _ in range(300):
        limiter.reset()
        callers = Callers(limiter, clock)
        clock.jump(chance.random())
        await limiter.acquire(cost=2)
        clock.jump(chance.random())
        callers.call("ahead")
        await clock.settle()
        with pytest.raises(RateLimited) as caught:
            await limiter.acquire(max_wait=0)
        callers.call("just", max_wait=caught.value.retry_after)
        await clock.settle()
        callers.tasks[0].cancel()
        await clock.advance(2)
        assert callers.who() == ["just"]


async def test_a_low_limit_of_its_own_is_not_applied_to_those_ahead(clock: FakeClock) -> None:
    limiter = Limiter("100/s", clock=clock)
    await limiter.acquire("k", 100)
    callers = Callers(limiter, clock)
    for who in range(50):
        callers.call(who, "k")
    callers.call("low", "k", max_wait=5, limit=1)
    await clock.advance(2)
    assert callers.admitted[-1][:2] == (2.0, "low")


async def test_a_coroutine_closed_while_its_loop_is_paused() -> None:
    def main() -> None:
        limiter = Limiter("1/h")
        loop = asyncio.new_event_loop()
        loop.run_until_complete(limiter.acquire("k", max_wait=0).__aenter__())
        waiting = limiter.acquire("k").__aenter__()
        task = loop.create_task(waiting)
        loop.run_until_complete(asyncio.sleep(0))
        waiting.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        assert limiter.statistics().waiting == 0
        assert limiter.try_acquire("k", limit=2), "an empty queue was left behind"
        loop.close()

    await asyncio.to_thread(main)


async def test_raising_the_cost_tells_those_behind_at_once(clock: FakeClock) -> None:
    limiter = Limiter("10/s", clock=clock)
    permit = await limiter.acquire(cost=10)
    first = asyncio.create_task(limiter.acquire(cost=5).__aenter__())
    second = asyncio.create_task(limiter.acquire(cost=5, max_wait=1.0).__aenter__())
    await clock.advance(0.5)
    permit.adjust(25)
    await clock.settle()
    assert isinstance(second.exception(), RateLimited)
    assert clock.time() == 0.5
    first.cancel()


# --- numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize("sub_windows", [None, 32])
def test_retry_after_is_exact_with_fractions(clock: FakeClock, sub_windows: int | None) -> None:
    chance = random.Random(3)
    refused = 0
    for _ in range(300):
        limiter = Limiter("1/s", "3/2s", clock=clock, sub_windows=sub_windows)
        for _ in range(12):
            cost = chance.choice([0.1, 0.2, 0.3, 0.7])
            if not limiter.try_acquire("k", cost):
                refused += 1
                retry_after = limiter.peek("k", cost).retry_after or 0
                assert retry_after > 0
                clock.jump(retry_after * 0.95)
                assert not limiter.try_acquire("k", cost), "the wait was too long"
                clock.jump(limiter.peek("k", cost).retry_after or 0)
                assert limiter.try_acquire("k", cost), "slept in vain"
            clock.jump(chance.choice([0.0, 0.25, 0.1]))
    assert refused > 300


def test_numbers_that_no_float_holds() -> None:
    limiter = Limiter("5/s")
    with pytest.raises(ValueError, match="cost must be a finite number, not one of 1000000"):
        limiter.try_acquire(cost=10**400)
    with pytest.raises(ValueError, match="limit must be a finite number"):
        Rate(10**400)
    assert limiter.peek(cost=1e308, limit=1e-300).retry_after is None


async def test_giving_back_again_and_again_leaves_nothing_behind(clock: FakeClock) -> None:
    limiter = Limiter("10/d", clock=clock)
    kept = await limiter.acquire("k")
    for _ in range(500):
        clock.jump(1)
        one, two, three = [await limiter.acquire("k") for _ in range(3)]
        two.cancel()
        one.cancel()
        three.cancel()
    window = limiter._store.entries["k"]
    assert len(window.older or ()) <= 4  # type: ignore[union-attr]
    kept.cancel()
    assert limiter.peek("k").remaining == 10


# --- errors, keys and sweeping -------------------------------------------------------------


async def test_an_error_with_a_note_can_be_copied(clock: FakeClock) -> None:
    limiter = Limiter("1/s", clock=clock)
    await limiter.acquire()
    with pytest.raises(RateLimited) as caught:
        await limiter.acquire(max_wait=0)
    caught.value.add_note("while fetching")
    assert copy.copy(caught.value).retry_after == 1.0


class Moody:
    """A key that cannot be hashed any more, one day."""

    broken = False

    def __hash__(self) -> int:
        if self.broken:
            raise RuntimeError("broken")
        return 1


async def test_a_key_that_breaks_does_not_end_the_forgetting(clock: FakeClock) -> None:
    limiter = Limiter("5/s", clock=clock)
    moody = Moody()
    for key in (moody, "a", "b"):
        limiter.try_acquire(key)
    moody.broken = True
    with pytest.raises(RuntimeError, match="broken"):
        await clock.advance(1.0)
    moody.broken = False
    await clock.advance(2.0)
    assert len(limiter) == 0


async def test_shorter_periods_are_swept_in_their_own_time(clock: FakeClock) -> None:
    limiter = Limiter("10/d", clock=clock)
    for key in range(100):
        limiter.try_acquire(key)
    limiter.update("10/s")
    await clock.advance(2.5)
    assert len(limiter) == 0


def test_a_second_loop_sweeps_what_the_first_has_left() -> None:
    limiter = Limiter("5/100ms")

    async def first() -> None:
        for key in range(100):
            await limiter.acquire(key)

    async def second() -> None:
        await limiter.acquire(1)
        await asyncio.sleep(0.3)

    asyncio.run(first())
    assert len(limiter) == 100
    asyncio.run(second())
    assert len(limiter) == 0


async def test_autojump_does_not_move_to_a_timer_that_was_cancelled() -> None:
    clock = FakeClock(autojump=True)
    task = asyncio.create_task(clock.sleep(3600))
    await asyncio.sleep(0)
    task.cancel()
    await clock.sleep(5)
    assert clock.time() == 5


# --- a second round ------------------------------------------------------------------------


async def test_cancelling_several_at_one_instant(clock: FakeClock) -> None:
    limiter = Limiter("100/s", clock=clock)
    for _ in range(5):
        (await limiter.acquire("k")).cancel()
    assert limiter.peek("k").remaining == 100
    single = Limiter("1/s", clock=clock)
    await single.acquire("k")
    callers = Callers(single, clock)
    for who in "abc":
        callers.call(who, "k")
    await clock.settle()
    clock.jump(1.0)
    callers.tasks[0].cancel()
    await asyncio.sleep(0)
    callers.tasks[1].cancel()
    await clock.settle()
    assert callers.who() == ["c"]


async def test_after_the_newest_was_given_back_the_one_before_it_counts(clock: FakeClock) -> None:
    limiter = Limiter("10/s", clock=clock)
    await limiter.acquire("k")
    clock.jump(0.5)
    (await limiter.acquire("k")).cancel()
    assert limiter.peek("k").reset_after == 0.5


async def test_a_review_refuses_nobody_who_would_pass(clock: FakeClock) -> None:
    limiter = Limiter("100/s", clock=clock)
    await limiter.acquire("k", 100)
    callers = Callers(limiter, clock)
    for who in range(50):
        callers.call(who, "k")
    callers.call("low", "k", max_wait=5, limit=1)
    await clock.settle()
    limiter.update("100/s")
    await clock.advance(3)
    assert callers.admitted[-1][:2] == (2.0, "low")


async def test_a_review_leaves_out_who_was_cancelled(clock: FakeClock) -> None:
    limiter = Limiter("10/s", clock=clock)
    await limiter.acquire("k", 10)
    callers = Callers(limiter, clock)
    large = callers.call("large", "k", cost=10)
    callers.call("bounded", "k", cost=5, max_wait=2)
    await clock.settle()
    large.cancel()
    limiter.update("10/1500ms")
    await clock.advance(5)
    assert callers.admitted == [(1.5, "bounded", "k", 5)]


async def test_a_generous_limit_in_the_middle_of_a_queue(clock: FakeClock) -> None:
    limiter = Limiter("10/s", clock=clock)
    await limiter.acquire("k", 10)
    callers = Callers(limiter, clock)
    callers.call("first", "k")
    for who in range(50):
        callers.call(who, "k", limit=1000)
    callers.call("last", "k")
    await clock.settle()
    callers.call("bounded", "k", max_wait=3)
    await clock.advance(3)
    assert callers.admitted[-1][:2] == (2.0, "bounded")


async def test_settling_goes_to_where_each_part_was_charged(clock: FakeClock) -> None:
    limiter = Limiter("10/s", max_keys=1, sub_windows=None, clock=clock)
    assert limiter.try_acquire("a")
    assert limiter.try_acquire("x")
    clock.jump(0.5)
    permit = await limiter.acquire("a", 8)
    clock.jump(0.2)
    assert limiter.try_acquire("x", 9)
    clock.jump(0.81)
    assert limiter.try_acquire("b")  # "a" was idle, and "b" has its place
    permit.adjust(9)
    permit.cancel()
    assert passing(limiter, "x") <= 1


async def test_a_charge_goes_to_the_window_that_the_key_has_now(clock: FakeClock) -> None:
    limiter = Limiter("10/s", max_keys=1, clock=clock)
    assert limiter.try_acquire("a")
    clock.jump(0.5)
    permit = await limiter.acquire("b")  # in the overflow
    clock.jump(0.6)
    assert limiter.try_acquire("b")  # has a window of its own
    permit.adjust(20)
    assert passing(limiter, "b") == 0


async def test_cancelled_and_refused_in_one_tick_counts_once(clock: FakeClock) -> None:
    limiter = Limiter("1/s", clock=clock)
    await limiter.acquire("k")
    waiting = [
        asyncio.create_task(limiter.acquire("k", max_wait=bound).__aenter__())
        for bound in (None, 5)
    ]
    await clock.settle()
    waiting[1].cancel()
    limiter.update("1/h")
    await clock.settle()
    statistics = limiter.statistics()
    assert (statistics.cancelled, sum(statistics.rejected.values())) == (1, 0)
    waiting[0].cancel()


async def test_what_was_charged_is_judged_by_the_grant_not_by_the_request(
    clock: FakeClock,
) -> None:
    limiter = Limiter("10/s", "20/min", clock=clock)
    await limiter.acquire("k", 20, limit=(UNLIMITED, 20))

    async def use() -> None:
        (await limiter.acquire("k", 5, limit=(UNLIMITED, 20))).cancel()

    task = asyncio.create_task(use())
    await clock.settle()
    limiter.update("10/2s", "20/min")
    await clock.advance(61)
    assert task.done()
    assert limiter.peek("k", limit=(UNLIMITED, 20)).remaining == 20


async def test_periods_changed_and_changed_back_are_not_the_same(clock: FakeClock) -> None:
    limiter = Limiter("10/s", "100/min", clock=clock)
    permit = await limiter.acquire("k", 5, limit=(10, UNLIMITED))
    clock.jump(0.1)
    await limiter.acquire("k", 5)
    limiter.update("100/min")
    assert limiter.try_acquire("k", 5)
    limiter.update("10/s", "100/min")
    permit.cancel()
    assert passing(limiter) == 0


async def test_a_lowered_pace_gives_back_no_more_than_is_left(clock: FakeClock) -> None:
    limiter = Limiter("100/s", burst=5, clock=clock)
    first = await limiter.acquire("k", 5)
    clock.jump(0.05)
    await limiter.acquire("k", 5)
    limiter.update("10/s")
    first.cancel()
    assert passing(limiter) == 0


async def test_a_key_that_breaks_in_a_timer_hangs_nobody(clock: FakeClock) -> None:
    moody = Moody()
    limiter = Limiter("1/s", "60/min", clock=clock)
    await limiter.acquire(moody)
    waiting = [asyncio.create_task(limiter.acquire(moody).__aenter__()) for _ in range(2)]
    await clock.settle()
    moody.broken = True
    with pytest.raises(RuntimeError, match="broken"):
        await clock.advance(1.0)
    moody.broken = False
    await clock.advance(5)
    assert all(task.done() for task in waiting)


def test_periods_changed_between_two_runs_of_a_loop(clock: FakeClock) -> None:
    limiter = Limiter("10/d", clock=clock)
    loop = asyncio.new_event_loop()

    async def first() -> None:
        for key in range(100):
            limiter.try_acquire(key)

    async def second() -> None:
        limiter.try_acquire("new")
        await clock.advance(3)

    loop.run_until_complete(first())
    limiter.update("10/s")
    loop.run_until_complete(second())
    assert len(limiter) == 0
    loop.close()


def test_a_queue_of_a_loop_that_was_closed(clock: FakeClock) -> None:
    limiter = Limiter("1/s", clock=clock)
    loop = asyncio.new_event_loop()

    async def leave() -> None:
        limiter.try_acquire("k")
        task = asyncio.create_task(limiter.acquire("k").__aenter__())
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    loop.run_until_complete(leave())
    loop.close()
    asyncio.run(clock.advance(5))
    assert all(timer.callback is None for _, _, timer in clock._timers), "it goes on for nobody"
    assert limiter.try_acquire("k")
    assert limiter.statistics().waiting == 0


async def test_a_refused_permit_is_spent() -> None:
    limiter = Limiter("1/h", max_wait=0)
    await limiter.acquire()
    permit = limiter.acquire()
    with pytest.raises(RateLimited):
        await permit
    with pytest.raises(RuntimeError, match="asked for before"):
        await permit


async def test_nothing_is_given_back_to_a_window_that_was_made_later(clock: FakeClock) -> None:
    limiter = Limiter("3/s", max_keys=1, clock=clock)
    assert limiter.try_acquire("a")
    permit = await limiter.acquire("b", 3)  # in the overflow
    clock.jump(1.0)
    assert limiter.try_acquire("a")  # the overflow is empty, and is made anew for the next
    assert limiter.try_acquire("c", 3)
    permit.cancel()
    assert passing(limiter, "c") == 0


async def test_a_review_that_fails_all_leaves_no_queue(clock: FakeClock) -> None:
    limiter = Limiter("10/s", clock=clock)
    permit = await limiter.acquire("k", 10)
    waiting = asyncio.create_task(limiter.acquire("k", max_wait=1.2).__aenter__())
    await clock.advance(0.5)
    permit.adjust(30)
    await clock.settle()
    assert isinstance(waiting.exception(), RateLimited)
    assert not limiter._queues.by_key
