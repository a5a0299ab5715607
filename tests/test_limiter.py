"""The public face, call by call."""

import asyncio
import gc
import pickle
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from fractions import Fraction
from math import inf

import pytest

import aiolimit
from aiolimit import (
    UNLIMITED,
    CostTooHigh,
    Limiter,
    Overloaded,
    QueueFull,
    Rate,
    RateLimited,
)
from aiolimit.testing import FakeClock
from tests.support import Callers, worst


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


# --- passing -------------------------------------------------------------------------------


async def test_three_ways_to_pass(clock: FakeClock) -> None:
    limiter = Limiter("10/s", clock=clock)
    async with limiter.acquire("k") as permit:
        assert (permit.key, permit.cost, permit.waited) == ("k", 1, 0.0)
        assert (permit.limit, permit.remaining) == (10, 9)
        assert limiter.statistics().in_flight == 1
    permit = await limiter.acquire("k", cost=3)
    assert (permit.cost, permit.remaining) == (3, 6)
    assert limiter.try_acquire("k", 6)
    assert not limiter.try_acquire("k")
    statistics = limiter.statistics()
    assert (statistics.admitted, statistics.completed, statistics.in_flight) == (3, 1, 0)
    assert statistics.rejected["quota"] == 1


@pytest.mark.parametrize("rates", [("100/s",), ("20/s",), ("100/s", "300/min"), ("1000/s",)])
async def test_the_fast_lane_and_the_long_way_decide_alike(rates: tuple[str, ...]) -> None:
    fast_clock, slow_clock = FakeClock(), FakeClock()
    fast = Limiter(*rates, clock=fast_clock)
    slow = Limiter(*rates, clock=slow_clock)
    for step in range(3000):
        a = fast.try_acquire("k")
        limit = tuple(Rate.parse(rate).limit for rate in rates)
        b = slow.try_acquire("k", 1, limit=limit)
        assert a == b
        if step % 3 == 0 and fast.peek("k").remaining >= 1:
            async with fast.acquire("k"):  # the lane of `async with`
                pass
            await slow.acquire("k", limit=limit, max_wait=0)
        for each in (fast_clock, slow_clock):
            each.jump((step % 7) * 0.0013)
        assert fast.peek("k") == slow.peek("k")


async def test_the_object_does_nothing_until_it_is_awaited(clock: FakeClock) -> None:
    limiter = Limiter("1/s", clock=clock)
    for _ in range(5):
        limiter.acquire("k")
    assert len(limiter) == 0
    assert limiter.statistics().admitted == 0


def test_in_development_mode_a_dropped_permit_is_told_of() -> None:
    source = (
        "import asyncio\n"
        "from aiolimit import Limiter\n"
        "limiter = Limiter('5/s', name='api')\n"
        "async def main():\n"
        "    limiter.acquire('forgotten')\n"
        "    limiter.acquire('too', cost=2)\n"
        "    async with limiter.acquire('entered'): pass\n"
        "    await limiter.acquire('awaited', cost=2)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-X", "dev", "-c", source]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert said.count("RuntimeWarning: <Permit") == 2
    assert "<Permit of api for 'forgotten': cost 1, not granted> was never awaited" in said
    plain = subprocess.run(command[:1] + command[3:], capture_output=True, text=True, check=True)
    assert plain.stderr == ""


async def test_a_permit_is_asked_for_once(clock: FakeClock) -> None:
    limiter = Limiter("100/s", clock=clock)
    for _ in range(2):  # the long way first, then the fast lane
        permit = limiter.acquire("k")
        await permit
        with pytest.raises(RuntimeError, match="was asked for before; acquire a new one"):
            await permit
        with pytest.raises(RuntimeError, match="asked for before"):
            async with permit:
                pass
    assert limiter.statistics().admitted == 2


async def test_a_cost_of_nothing_passes_at_once(clock: FakeClock) -> None:
    limiter = Limiter("1/s", clock=clock)
    await limiter.acquire("k")
    waiting = asyncio.create_task(limiter.acquire("k").__aenter__())
    await clock.settle()
    permit = await limiter.acquire("k", 0)
    assert permit.cost == 0
    assert limiter.try_acquire("k", 0)
    assert limiter.statistics().admitted == 3
    permit.adjust(1)  # its true cost turned out to be something after all
    assert not waiting.done()
    await clock.advance(1.0)
    assert waiting.done()


async def test_order_per_key_and_a_large_cost_is_not_overtaken(clock: FakeClock) -> None:
    limiter = Limiter("10/s", clock=clock)
    callers = Callers(limiter, clock)
    for who, cost in enumerate([6, 10, 1, 1, 5, 10]):
        callers.call(who, cost=cost)
    callers.call("other", key="other")
    await clock.advance(0.5)
    assert callers.who() == [0, "other"]
    assert not limiter.try_acquire(cost=1), "a newcomer never overtakes"
    await clock.advance(10)
    assert callers.who() == [0, "other", 1, 2, 3, 4, 5]


async def test_burst_paces_at_the_lowest_rate(clock: FakeClock) -> None:
    limiter = Limiter("16/s", "60/30s", burst=3, clock=clock)
    callers = Callers(limiter, clock)
    for who in range(10):
        callers.call(who)
    await clock.advance(10)
    assert callers.times() == [0.0, 0.0, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
    with pytest.raises(CostTooHigh, match="above the burst of 3"):
        await limiter.acquire(cost=4)
    assert limiter.explain("").binding == "nothing"


async def test_a_burst_is_still_never_over_its_window(clock: FakeClock) -> None:
    limiter = Limiter("8/s", burst=8, clock=clock)
    callers = Callers(limiter, clock)
    for who in range(40):
        callers.call(who)
    await clock.advance(60)
    assert worst(callers.times(), 1.0) == 8


# --- the limit of a call -------------------------------------------------------------------


async def test_the_limit_of_a_call(clock: FakeClock) -> None:
    limiter = Limiter("5/min", clock=clock)
    assert [limiter.try_acquire("k", limit=3) for _ in range(5)] == [True] * 3 + [False] * 2
    assert limiter.try_acquire("k"), "the limiter's own limit is higher"
    assert limiter.peek("k", limit=9).remaining == 5
    permit = await limiter.acquire("k", limit=9)
    assert (permit.limit, permit.remaining) == (9, 4)


async def test_unlimited_passes_and_is_charged_nothing(clock: FakeClock) -> None:
    limiter = Limiter("1/min", clock=clock)
    await limiter.acquire("k")
    waiting = asyncio.create_task(limiter.acquire("k").__aenter__())
    await clock.settle()
    for _ in range(100):
        permit = await limiter.acquire("k", limit=UNLIMITED)
    assert permit.limit is UNLIMITED
    assert permit.remaining == inf
    permit.adjust(50)
    permit.cancel()
    quota = limiter.peek("k", limit=UNLIMITED)
    assert (quota.limit, quota.remaining, quota.retry_after) == (UNLIMITED, inf, 0.0)
    assert limiter.peek("k").reset_after == 60
    waiting.cancel()


async def test_a_limit_of_nothing_denies(clock: FakeClock) -> None:
    for limiter in (Limiter("5/min", clock=clock), Limiter("50/min", clock=clock)):
        for cost in (1, 0):
            with pytest.raises(CostTooHigh, match="can never pass") as caught:
                await limiter.acquire("k", cost, limit=0)
            assert caught.value.retry_after is None
            assert caught.value.limit == 0
        assert not limiter.try_acquire("k", limit=0)
        assert limiter.peek("k", limit=0).retry_after is None
    closed = Limiter("0/s", clock=clock)
    assert not closed.try_acquire()
    with pytest.raises(CostTooHigh):
        await closed.acquire()
    closed.update("1/s")
    assert closed.try_acquire()


async def test_a_tuple_of_limits_for_several_rates(clock: FakeClock) -> None:
    limiter = Limiter("2/s", "4/min", clock=clock)
    assert [limiter.try_acquire("k", limit=(UNLIMITED, 4)) for _ in range(5)] == [True] * 4 + [
        False
    ]
    assert limiter.peek("k").rate == Rate(4, per=60)
    assert limiter.try_acquire("other", limit=(1, 1))
    assert not limiter.try_acquire("other", limit=(1, 1))
    for wrong in (3, (3,), (1, 2, 3)):
        with pytest.raises(ValueError, match=r"one number for each of the 2 rates of 'default'"):
            limiter.try_acquire("k", limit=wrong)


async def test_waiters_keep_the_limit_they_came_with(clock: FakeClock) -> None:
    limiter = Limiter("1/s", clock=clock)
    callers = Callers(limiter, clock)
    callers.call("a")
    callers.call("b", limit=1)
    callers.call("c", limit=3)
    await clock.advance(0.5)
    assert callers.who() == ["a"], "c has room, and does not overtake b"
    await clock.advance(0.5)
    assert callers.who() == ["a", "b", "c"]


# --- max_wait and max_waiters --------------------------------------------------------------


async def test_max_wait_of_the_limiter_and_of_the_call(clock: FakeClock) -> None:
    limiter = Limiter("1/s", max_wait=0, clock=clock)
    await limiter.acquire()
    with pytest.raises(RateLimited):
        await limiter.acquire()
    waiting = asyncio.create_task(limiter.acquire(max_wait=None).__aenter__())
    await clock.advance(1)
    permit = await waiting
    assert permit.waited == 1.0
    assert repr(permit) == "<Permit of default for '': cost 1, waited 1 s>"


async def test_max_wait_is_met_to_the_instant(clock: FakeClock) -> None:
    limiter = Limiter("1/s", clock=clock)
    await limiter.acquire()
    just = asyncio.create_task(limiter.acquire(max_wait=1.0).__aenter__())
    await clock.advance(1.0)
    assert just.done()
    assert not just.exception()


async def test_a_deadline_missed_because_others_were_charged_more(clock: FakeClock) -> None:
    limiter = Limiter("10/s", clock=clock)
    permit = await limiter.acquire(cost=10)
    waiting = asyncio.create_task(limiter.acquire(cost=5, max_wait=1.5).__aenter__())
    behind = asyncio.create_task(limiter.acquire(cost=5, max_wait=1.8).__aenter__())
    endless = asyncio.create_task(limiter.acquire(cost=1).__aenter__())
    await clock.advance(0.9)
    permit.adjust(20)
    await clock.advance(0.1)
    assert isinstance(waiting.exception(), RateLimited), "known at 1.0: ten more until 1.9"
    assert waiting.exception().reason == "timeout"  # type: ignore[union-attr]
    assert not endless.done()
    await clock.advance(1.0)
    assert isinstance(behind.exception(), RateLimited)
    assert endless.done()
    assert limiter.statistics().rejected["timeout"] == 2


async def test_a_deadline_in_the_middle_of_a_queue(clock: FakeClock) -> None:
    limiter = Limiter("1/s", clock=clock)
    callers = Callers(limiter, clock)
    for who in range(3):
        callers.call(who)
    callers.call("late", max_wait=3.5)
    callers.call("last")
    await clock.settle()
    limiter.update("1/2s")
    await clock.settle()
    assert callers.tasks[3].done(), "it would be let in at 6 s"
    await clock.advance(20)
    assert callers.who() == [0, 1, 2, "last"]


async def test_max_waiters(clock: FakeClock) -> None:
    limiter = Limiter("1/s", name="api", max_waiters=1, clock=clock)
    await limiter.acquire("k")
    waiting = asyncio.create_task(limiter.acquire("k").__aenter__())
    await clock.settle()
    with pytest.raises(
        QueueFull, match="api: max_waiters=1 wait already; retry after 2 s"
    ) as caught:
        await limiter.acquire("k")
    assert caught.value.retry_after == 2.0
    await clock.advance(1)
    assert waiting.done()
    with pytest.raises(QueueFull):
        none = Limiter("1/s", max_waiters=0, clock=clock)
        await none.acquire()
        await none.acquire()


# --- settling ------------------------------------------------------------------------------


async def test_adjust_less_lets_those_who_wait_go(clock: FakeClock) -> None:
    limiter = Limiter("10/s", clock=clock)
    permit = await limiter.acquire("k", 10)
    waiting = asyncio.create_task(limiter.acquire("k", 4).__aenter__())
    await clock.advance(0.5)
    permit.adjust(7)
    await clock.settle()
    assert not waiting.done()
    permit.adjust(6)
    await clock.settle()
    assert waiting.done()
    assert permit.cost == 6


async def test_adjust_more_is_charged_now_and_waited_out(clock: FakeClock) -> None:
    limiter = Limiter("10/s", clock=clock)
    permit = await limiter.acquire("k", 1)
    clock.jump(0.5)
    permit.adjust(25)
    quota = limiter.peek("k")
    assert quota.remaining == 0
    assert quota.retry_after == 1.0
    permit.adjust(13)  # the latest charge goes back first
    assert limiter.peek("k", limit=20).remaining == 7
    clock.jump(0.5)
    assert limiter.peek("k", limit=20).remaining == 8, "the first one has left"
    permit.cancel()
    permit.cancel()
    assert permit.cost == 0
    assert limiter.peek("k").remaining == 10


async def test_adjust_after_it_has_left_the_window(clock: FakeClock) -> None:
    limiter = Limiter("10/s", clock=clock)
    permit = await limiter.acquire("k", 5)
    clock.jump(1.0)
    assert limiter.try_acquire("k", 8)
    permit.adjust(0)
    assert limiter.peek("k").remaining == 2


async def test_adjust_before_it_is_granted(clock: FakeClock) -> None:
    limiter = Limiter("1/s", clock=clock)
    permit = limiter.acquire("k")
    with pytest.raises(RuntimeError, match="is not granted: await or enter it first"):
        permit.adjust(2)
    await limiter.acquire("k")
    waiting = asyncio.create_task(permit.__aenter__())
    await clock.settle()
    with pytest.raises(RuntimeError, match="is not granted"):
        permit.cancel()
    waiting.cancel()


async def test_adjust_under_several_rates_a_burst_and_the_overflow(clock: FakeClock) -> None:
    limiter = Limiter("10/s", "20/min", burst=5, max_keys=1, clock=clock)
    for key in ("own", "shared"):
        permit = await limiter.acquire(key, 5)
        assert limiter.peek(key).remaining == 0
        permit.adjust(2)
        assert limiter.peek(key).remaining == 3
        permit.adjust(15)
        assert limiter.peek(key).remaining == 0
        permit.cancel()
        assert limiter.peek(key).remaining == 5
    limiter.update("10/s")
    permit.adjust(1)
    permit.cancel()


# --- looking -------------------------------------------------------------------------------


async def test_peek_changes_nothing(clock: FakeClock) -> None:
    limiter = Limiter("2/s", "3/min", max_keys=10, clock=clock)
    quota = limiter.peek("never seen")
    assert (quota.limit, quota.remaining, quota.retry_after, quota.reset_after) == (2, 2, 0, 0)
    assert len(limiter) == 0
    await limiter.acquire("k", 2)
    clock.jump(0.25)
    quota = limiter.peek("k")
    assert (quota.rate, quota.remaining) == (Rate(2), 0)
    assert (quota.retry_after, quota.reset_after) == (0.75, 0.75)
    clock.jump(0.75)
    quota = limiter.peek("k")
    assert (quota.rate, quota.limit, quota.remaining) == (Rate(3, per=60), 3, 1)
    assert limiter.peek("k", 2).retry_after == 59.0
    assert limiter.peek("k", 4).retry_after is None


async def test_statistics(clock: FakeClock) -> None:
    limiter = Limiter("2/s", max_waiters=1, clock=clock)
    waiting = []
    for _ in range(4):
        waiting.append(asyncio.create_task(limiter.acquire("k").__aenter__()))
        await clock.settle()
    limiter.try_acquire("k")
    with pytest.raises(RateLimited):
        await limiter.acquire("k", max_wait=0.1)
    with pytest.raises(CostTooHigh):
        await limiter.acquire("k", 3)
    statistics = limiter.statistics()
    assert statistics.waiting == 1
    assert statistics.in_flight == 2
    assert statistics.keys == 1
    assert statistics.rejected == {
        "quota": 1,
        "timeout": 1,
        "queue_full": 1,
        "cost_too_high": 1,
        "overload": 0,
    }
    assert isinstance(waiting[3].exception(), QueueFull)
    waiting[2].cancel()
    await clock.advance(5)
    statistics = limiter.statistics()
    assert (statistics.cancelled, statistics.waiting) == (1, 0)
    assert (statistics.keys, statistics.evicted) == (0, 1)
    with pytest.raises(AttributeError):
        statistics.admitted = 5  # type: ignore[misc]


async def test_explain_says_it_in_words(clock: FakeClock) -> None:
    limiter = Limiter("2/s", "50/min", name="search", clock=clock)
    assert str(limiter.explain("user:42")) == (
        "search: 2/s and 50/min configured; 2 of 2 left of 2/s for 'user:42', so a call passes."
    )
    await limiter.acquire("user:42", 2)
    clock.jump(0.58)
    explanation = limiter.explain("user:42")
    assert explanation.binding == "quota"
    assert str(explanation) == (
        "search: 2/s and 50/min configured; 0 of 2 left of 2/s for 'user:42', "
        "so a new call passes in 0.42 s."
    )
    tasks = [asyncio.create_task(limiter.acquire("user:42").__aenter__()) for _ in range(3)]
    await clock.settle()
    explanation = limiter.explain("user:42")
    assert (explanation.binding, explanation.waiting) == ("queue", 3)
    assert explanation.retry_after == pytest.approx(1.42)
    assert "3 callers wait for 'user:42', so a new call passes in 1.42 s, behind them." in str(
        explanation
    )
    for task in tasks:
        task.cancel()
    paced = Limiter("2/s", burst=1, clock=clock)
    await paced.acquire()
    assert str(paced.explain()) == (
        "default: 2/s configured, burst 1; '' is ahead of its even pace, so a new call passes "
        "in 0.5 s."
    )
    assert paced.explain().binding == "pace"
    assert (
        str(Limiter("0/s", clock=clock).explain()) == "default: 0/s configured; no call can pass."
    )


async def test_repr_and_len(clock: FakeClock) -> None:
    limiter = Limiter("100/s", Rate(2000, per=60), name="search", clock=clock)
    assert limiter, "a limiter without keys is a limiter all the same"
    await limiter.acquire("a")
    assert len(limiter) == 1
    assert repr(limiter) == "<Limiter search: 100/s and 2000/min, 1 keys, 0 waiting>"
    assert repr(limiter.acquire("a")) == "<Permit of search for 'a': cost 1, not granted>"


# --- changing ------------------------------------------------------------------------------


async def test_update_with_another_number_of_rates(clock: FakeClock) -> None:
    limiter = Limiter("1/s", clock=clock)
    callers = Callers(limiter, clock)
    for who in range(4):
        callers.call(who, limit=1)
    await clock.settle()
    limiter.update("2/s", "3/min")
    await clock.settle()
    assert callers.who() == [0, 1], "under the new rates, and what was charged stays charged"
    await clock.advance(1)
    assert callers.who() == [0, 1, 2]
    await clock.advance(60)
    assert callers.who() == [0, 1, 2, 3]


async def test_update_fails_at_once_who_can_never_pass(clock: FakeClock) -> None:
    limiter = Limiter("10/s", clock=clock)
    callers = Callers(limiter, clock)
    for who, cost in enumerate([10, 3, 8, 3]):
        callers.call(who, cost=cost)
    await clock.settle()
    limiter.update("5/s")
    await clock.settle()
    assert isinstance(callers.tasks[2].exception(), CostTooHigh)
    await clock.advance(10)
    assert callers.who() == [0, 1, 3]


async def test_a_bad_update_changes_nothing(clock: FakeClock) -> None:
    limiter = Limiter("1/s", clock=clock)
    for bad, error in (((), ValueError), (("1/s", "x"), ValueError), ((5,), TypeError)):
        with pytest.raises(error):
            limiter.update(*bad)
    assert "1/s," in repr(limiter)


async def test_reset(clock: FakeClock) -> None:
    limiter = Limiter("1/h", clock=clock)
    callers = Callers(limiter, clock)
    for key in ("a", "a", "b", "b"):
        callers.call(key, key=key)
    await clock.settle()
    limiter.reset("a")
    await clock.settle()
    assert callers.who() == ["a", "b", "a"]
    limiter.reset()
    await clock.settle()
    assert callers.who() == ["a", "b", "a", "b"]
    limiter.reset("never seen")


# --- the decorator -------------------------------------------------------------------------


async def test_limited(clock: FakeClock) -> None:
    limiter = Limiter("10/s", clock=clock)

    @limiter.limited(key=lambda user, *, size: user, cost=lambda user, *, size: size, max_wait=0)
    async def fetch(user: str, *, size: int) -> str:
        """Fetches."""
        assert limiter.statistics().in_flight == 1
        return f"{user}:{size}"

    assert await fetch("a", size=8) == "a:8"
    assert fetch.__doc__ == "Fetches."
    with pytest.raises(RateLimited):
        await fetch("a", size=3)
    assert await fetch("b", size=3) == "b:3"

    @limiter.limited(key="fixed")
    async def plain() -> int:
        return 1

    assert await plain() == 1
    assert limiter.peek("fixed").remaining == 9

    def not_async() -> None: ...

    with pytest.raises(TypeError, match=r"limited\(\) decorates async functions, not <function"):
        limiter.limited()(not_async)  # type: ignore[arg-type]


# --- errors --------------------------------------------------------------------------------


async def test_what_an_error_tells(clock: FakeClock) -> None:
    limiter = Limiter("3/s", "10/min", name="search", clock=clock)
    await limiter.acquire("user:42", 2)
    clock.jump(0.75)
    with pytest.raises(RateLimited) as caught:
        await limiter.acquire("user:42", 2, max_wait=0)
    error = caught.value
    assert str(error) == (
        "search: no room for cost 2 for 'user:42': 1 of 3 left; retry after 0.25 s"
    )
    assert (error.limiter, error.key, error.rate) == ("search", "user:42", Rate(3))
    assert (error.limit, error.remaining, error.reason) == (3, 1, "quota")
    assert (error.retry_after, error.reset_after) == (0.25, 0.25)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is RateLimited
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


def test_the_errors_are_one_family() -> None:
    for error in (QueueFull, Overloaded, CostTooHigh):
        assert issubclass(error, RateLimited)
    assert issubclass(CostTooHigh, ValueError)


# --- bad input -----------------------------------------------------------------------------

BAD_OPTIONS: list[tuple[dict[str, object], type[Exception], str]] = [
    ({"name": ""}, TypeError, "name must be text that is not empty, not ''"),
    ({"name": 5}, TypeError, "not 5"),
    ({"sub_windows": 0}, ValueError, "sub_windows must be 1 or more, or None, not 0"),
    ({"sub_windows": 2.5}, TypeError, "sub_windows must be a whole number or None, not 2.5"),
    ({"sub_windows": True}, TypeError, "not True"),
    ({"burst": 0}, ValueError, "burst must be 1 or more, or None, not 0"),
    ({"burst": inf}, ValueError, "burst must be a finite number from 0 up, not inf"),
    ({"burst": "2"}, TypeError, "burst must be a number, not '2'"),
    ({"max_wait": -1}, ValueError, "max_wait must be a finite number of seconds from 0 up"),
    ({"max_wait": inf}, ValueError, "or None to wait as long as it takes, not inf"),
    ({"max_wait": "1"}, TypeError, "max_wait must be a number, not '1'"),
    ({"max_waiters": -1}, ValueError, "max_waiters must be 0 or more, or None, not -1"),
    ({"max_keys": 0}, ValueError, "max_keys must be 1 or more, or None, not 0"),
    ({"clock": 5}, TypeError, "clock must have the methods time and call_later, not 5"),
    ({"brust": 5}, TypeError, "brust"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_OPTIONS)
def test_options_are_checked_at_construction(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        Limiter("1/s", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rates", "error"), [((), ValueError), ((5,), TypeError), (("x",), ValueError)]
)
def test_rates_are_checked_at_construction(
    rates: tuple[object, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        Limiter(*rates)  # type: ignore[arg-type]


BAD_CALLS: list[tuple[dict[str, object], type[Exception], str]] = [
    ({"cost": True}, TypeError, "cost must be a number, not True"),
    ({"cost": "1"}, TypeError, "cost must be a number, not '1'"),
    ({"cost": None}, TypeError, "not None"),
    ({"cost": 1j}, TypeError, "not 1j"),
    ({"limit": -1}, ValueError, "limit must be a finite number from 0 up, not -1"),
    ({"limit": inf}, ValueError, "no limit is spelled UNLIMITED"),
    ({"limit": "5"}, TypeError, "limit must be a number, not '5'"),
    ({"limit": False}, TypeError, "limit must be a number, not False"),
    ({"max_wait": -0.1}, ValueError, "not -0.1"),
    ({"max_wait": True}, TypeError, "not True"),
    ({"key": []}, TypeError, "unhashable"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD_CALLS)
@pytest.mark.parametrize("rate", ["5/s", "500/s"])
async def test_arguments_are_checked_before_anything_changes(
    rate: str, call: dict[str, object], error: type[Exception], message: str
) -> None:
    limiter = Limiter(rate)
    before = limiter.statistics()
    with pytest.raises(error, match=re.escape(message)):
        await limiter.acquire(**call)  # type: ignore[arg-type]
    if "max_wait" not in call:
        with pytest.raises(error, match=re.escape(message)):
            limiter.try_acquire(**call)  # type: ignore[arg-type]
        with pytest.raises(error, match=re.escape(message)):
            limiter.peek(**call)  # type: ignore[arg-type]
    assert limiter.statistics() == before


async def test_numbers_of_other_kinds_are_numbers() -> None:
    limiter = Limiter(Rate(Fraction(10)))  # type: ignore[arg-type]
    assert limiter.try_acquire(cost=Fraction(1, 2))  # type: ignore[arg-type]
    assert limiter.try_acquire(cost=1.0)
    assert limiter.peek().remaining == 8.5


# --- loops and threads ---------------------------------------------------------------------


def in_a_thread(function: Callable[[], object]) -> object:
    result: list[object] = []

    def run() -> None:
        try:
            result.append(function())
        except Exception as error:  # noqa: BLE001 (handed to the test)
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    return result[0]


async def test_two_loops_at_once_are_told_so() -> None:
    limiter = Limiter("1/h", name="shared")
    await limiter.acquire("k")
    waiting = asyncio.create_task(limiter.acquire("k").__aenter__())
    await asyncio.sleep(0)

    async def elsewhere() -> None:
        await limiter.acquire("other")

    def acquire() -> None:
        asyncio.run(elsewhere())

    for use in (acquire, lambda: limiter.try_acquire("x"), lambda: limiter.update("2/h")):
        error = in_a_thread(use)
        assert isinstance(error, RuntimeError)
        assert "limiter 'shared' is in use on another event loop" in str(error)
    assert not waiting.done()
    assert limiter.statistics().waiting == 1
    waiting.cancel()


def test_a_loop_that_is_only_paused() -> None:
    limiter = Limiter("1/h", name="moved")
    paused = asyncio.new_event_loop()

    async def wait() -> None:
        await limiter.acquire("k")
        await limiter.acquire("k")

    task = paused.create_task(wait())
    paused.run_until_complete(asyncio.sleep(0))
    assert not limiter.try_acquire("k")
    with pytest.raises(RuntimeError, match="callers wait for limiter 'moved' on an event loop"):
        limiter.update("2/h")

    async def elsewhere() -> None:
        limiter.reset()
        await limiter.acquire("k")

    asyncio.run(elsewhere())
    with pytest.raises(RuntimeError, match="limiter 'moved' was taken to another event loop"):
        paused.run_until_complete(task)
    paused.close()
    assert limiter.statistics().waiting == 0


def test_without_a_loop_idle_keys_go_as_others_come() -> None:
    clock = FakeClock()
    limiter = Limiter("50/s", clock=clock)
    for n in range(2000):
        limiter.try_acquire(n)
        clock.jump(0.01)
    assert len(limiter) < 400


def test_keys_are_forgotten_on_the_second_loop_too() -> None:
    limiter = Limiter("2/50ms")

    async def main() -> None:
        for key in range(100):
            await limiter.acquire(key)
        await asyncio.sleep(0.2)
        assert len(limiter) == 0

    for _ in range(2):
        asyncio.run(main())


async def test_a_limiter_nobody_uses_is_collected() -> None:
    limiter = Limiter("5/h")
    await limiter.acquire("k")
    gone = weakref.ref(limiter)
    del limiter
    gc.collect()
    assert gone() is None


async def test_waiting_leaves_no_work_for_the_garbage_collector() -> None:
    limiter = Limiter("1/s", clock=FakeClock(autojump=True))
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            await limiter.acquire("k", max_wait=10)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_the_public_names() -> None:
    for name in aiolimit.__all__:
        assert getattr(aiolimit, name).__doc__


async def test_a_permit_that_was_not_awaited_is_not_taken_for_an_answer() -> None:
    limiter = Limiter("2/s")
    with pytest.raises(TypeError, match="not granted>: await or enter it, or use try_acquire"):
        if limiter.acquire("k"):
            pass
    assert await limiter.acquire("k")


def test_the_decorator_without_parentheses() -> None:
    limiter = Limiter("2/s")

    async def fetch() -> None: ...

    with pytest.raises(TypeError, match=r"write @limiter.limited\(\) with parentheses"):
        limiter.limited(fetch)
    with pytest.raises(ValueError, match="max_wait must be a finite number of seconds"):
        limiter.limited(max_wait=-1)
