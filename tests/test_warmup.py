"""Warm-up: the ramp by itself, and a limiter that warms, on the fake clock."""

import asyncio
import pickle
from math import ceil, floor, inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiolimit import UNLIMITED, CostTooHigh, Limiter, Rate, RateLimited, WarmUp
from aiolimit.testing import FakeClock
from aiolimit.warmup import Ramp, bent
from tests.support import Callers

# --- the ramp ------------------------------------------------------------------------------------


@given(st.floats(0.001, 1e9), st.floats(0, 1), st.floats(0, 1), st.floats(0.001, 1))
def test_the_ramp_is_monotone_and_never_above_the_limit(
    limit: float, one: float, other: float, start: float
) -> None:
    low, high = sorted((one, other))
    assert 0 < bent(limit, low, start) <= bent(limit, high, start) <= limit
    assert bent(limit, high, start) >= min(1, limit)
    assert bent(limit, 1, start) == limit


def test_what_a_limit_is_bent_to() -> None:
    assert [bent(100, w, 0.6) for w in (0, 0.25, 0.5, 0.999, 1)] == [60, 70, 80, 99, 100]
    assert [bent(1, w, 0.6) for w in (0, 1)] == [1, 1]
    assert [bent(2, w, 0.6) for w in (0, 0.9, 1)] == [1, 1, 2]
    assert bent(0, 0, 0.6) == 0
    assert bent(0.25, 0, 0.6) == 0.25
    assert bent(2.5, 1, 0.6) == 2.5


@given(
    st.lists(st.floats(0, 200), max_size=30),
    st.floats(0.01, 0.99),
    st.floats(0.1, 100),
    st.floats(0.01, 100),
    st.floats(0, 100),
)
def test_warmth_of_any_traffic(
    gaps: list[float], start: float, over: float, idle_after: float, cool_down: float
) -> None:
    timing = WarmUp(start, over, idle_after=idle_after, cool_down=cool_down).timing(1.0)
    ramp, now, expected, paced = Ramp(0.0), 0.0, 0.0, 0.0
    for gap in gaps:
        gap = idle_after + 1e-3 if abs(gap - idle_after) < 1e-3 else gap
        now += gap
        seen = ramp.warmth_at(now, timing)
        assert ramp.attempt(now, timing) == seen
        if gap <= idle_after + 2e-6:
            expected = min(1.0, expected + gap / over)
        elif cool_down:
            expected = max(0.0, expected - (gap - idle_after) / cool_down)
        else:
            expected = 0.0
        assert seen == pytest.approx(expected, abs=1e-6)
        assert ramp.paced >= paced  # an even pace never runs back
        paced = ramp.paced
    gap = min(over, idle_after) * 0.999
    for _ in range(ceil(over / gap) + 1):  # never stuck
        now += gap
        ramp.attempt(now, timing)
    assert ramp.warmth == 1.0


@given(st.floats(0, 1), st.floats(0.01, 1), st.floats(0.1, 100), st.floats(0, 300))
def test_the_paced_time_is_the_integral(
    warmth: float, start: float, over: float, gap: float
) -> None:
    timing = WarmUp(start, over, idle_after=1000).timing(1.0)
    ramp = Ramp(0.0)
    ramp.warmth = warmth
    steps = 400
    area = sum(
        start + (1 - start) * min(1.0, warmth + (n + 0.5) * gap / steps / over)
        for n in range(steps)
    )
    paced = ramp.paced_at(gap, timing)
    assert paced == pytest.approx(area * gap / steps, rel=1e-3, abs=1e-9)
    assert ramp.wait_for_pace(paced, 0.0, timing) == pytest.approx(gap, rel=1e-6, abs=1e-9)


@given(st.integers(1, 10**6), st.floats(0.01, 0.99), st.floats(0.1, 100), st.floats(0, 1))
def test_a_level_is_reached_when_it_was_said_to_be(
    limit: int, start: float, over: float, warmth: float
) -> None:
    timing = WarmUp(start, over, idle_after=1000).timing(1.0)
    ramp = Ramp(0.0)
    ramp.warmth = warmth
    now_at = bent(limit, warmth, start)
    for level in {now_at, (now_at + limit) // 2, limit}:
        wait = ramp.wait_for_limit(level, limit, 0.0, timing)
        assert bent(limit, ramp.warmth_at(wait, timing), start) >= level
        if wait > 1e-3:
            assert bent(limit, ramp.warmth_at(wait * (1 - 1e-6) - 1e-9, timing), start) <= level


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"start": 0}, ValueError, "start must be above 0 and at most 1, not 0"),
        ({"start": 1.01}, ValueError, "not 1.01"),
        ({"start": nan}, ValueError, "not nan"),
        ({"start": True}, TypeError, "start must be a number, not True"),
        ({"start": "0.6"}, TypeError, "start must be a number, not '0.6'"),
        ({"over": -1}, ValueError, "over must be a finite number of seconds from 0 up, not -1"),
        ({"over": inf}, ValueError, "not inf"),
        ({"windows": -2}, ValueError, "windows must be a finite number of periods"),
        ({"over": 10, "windows": 3}, ValueError, "over=10 (seconds) or windows=3"),
        ({"idle_after": -1}, ValueError, "idle_after must be"),
        ({"cool_down": -0.5}, ValueError, "cool_down must be"),
        ({"reset": "soft"}, ValueError, "reset must be 'gradual' or 'hard', not 'soft'"),
        ({"pace": "yes"}, TypeError, "pace must be True, False or None, not 'yes'"),
        ({"per_key": 1}, TypeError, "per_key must be True or False, not 1"),
    ],
)
def test_bad_options(options: dict[str, object], error: type[Exception], says: str) -> None:
    with pytest.raises(error) as raised:
        WarmUp(**options)  # type: ignore[arg-type]
    assert says in str(raised.value)


def test_a_limiter_takes_only_a_warm_up() -> None:
    with pytest.raises(TypeError, match="warm_up must be a WarmUp or None, not 10"):
        Limiter("10/s", warm_up=10)  # type: ignore[arg-type]


def test_what_is_left_out_depends_on_the_period() -> None:
    assert WarmUp().timing(1.0) == (0.6, 10.0, 60.0, 10.0)
    assert WarmUp().timing(60.0) == (0.6, 10.0, 120.0, 10.0)
    assert WarmUp(windows=3).timing(60.0) == (0.6, 180.0, 120.0, 180.0)
    assert WarmUp(reset="hard", cool_down=5).timing(1.0) == (0.6, 10.0, 60.0, 0.0)
    assert WarmUp() == pickle.loads(pickle.dumps(WarmUp()))


# --- a limiter that warms ------------------------------------------------------------------------


def steady(limiter: Limiter, clock: FakeClock, seconds: float, gap: float = 0.001) -> list[float]:
    """Try every `gap` seconds for so long; when it passed."""
    passed = []
    for _ in range(round(seconds / gap)):
        if limiter.try_acquire():
            passed.append(clock.time())
        clock.jump(gap)
    return passed


def by_second(times: list[float], seconds: int) -> list[int]:
    return [sum(second <= at < second + 1 for at in times) for second in range(seconds)]


def passes_now(limiter: Limiter) -> int:
    """How much passes in this instant."""
    count = 0
    while limiter.try_acquire():
        count += 1
    return count


@pytest.mark.parametrize("limit", [10, 100, 400])
def test_admissions_follow_the_ramp(limit: int) -> None:
    clock = FakeClock()
    limiter = Limiter(f"{limit}/s", warm_up=WarmUp(over=10), sub_windows=None, clock=clock)
    seconds = by_second(steady(limiter, clock, 13), 13)
    for second, count in enumerate(seconds):
        low = limit * (0.6 + 0.4 * min(1, second / 10))
        high = limit * (0.6 + 0.4 * min(1, (second + 1) / 10))
        slack = max(1, 0.01 * limit)
        assert low - slack <= count <= min(limit, high) + slack
    assert seconds == sorted(seconds)
    assert seconds[-2:] == [limit, limit]


def test_never_over_the_limit_while_it_warms() -> None:
    clock = FakeClock()
    limiter = Limiter("50/s", warm_up=WarmUp(over=2), clock=clock)
    times = steady(limiter, clock, 5)
    for at in times:
        assert sum(at - 1 < other <= at for other in times) <= 50


def test_full_after_over() -> None:
    clock = FakeClock()
    limiter = Limiter("100/s", warm_up=WarmUp(over=10), clock=clock)
    limiter.try_acquire()
    clock.jump(10)
    assert passes_now(limiter) == 100


def test_cold_it_lets_the_start_through() -> None:
    for start, expected in ((0.5, 50), (0.6, 60), (0.7, 70), (1, 100), (0.001, 1)):
        limiter = Limiter("100/s", warm_up=WarmUp(start), clock=FakeClock())
        assert passes_now(limiter) == expected


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("start", [0.01, 0.5, 0.6, 0.7, 1])
def test_small_limits_are_not_blocked(limit: int, start: float) -> None:
    clock = FakeClock()
    limiter = Limiter(f"{limit}/s", warm_up=WarmUp(start, 10), clock=clock)
    assert limiter.try_acquire()
    steady(limiter, clock, 11, 0.1)
    clock.jump(1)
    assert passes_now(limiter) == limit


async def test_a_cost_of_the_whole_limit_waits_for_the_ramp() -> None:
    clock = FakeClock(autojump=True)
    limiter = Limiter("10/s", warm_up=WarmUp(over=10), clock=clock)
    async with limiter.acquire(cost=10):
        assert clock.time() == pytest.approx(10)


async def test_a_cost_above_the_limit_never_passes() -> None:
    limiter = Limiter("10/s", warm_up=WarmUp(), clock=FakeClock())
    with pytest.raises(CostTooHigh):
        await limiter.acquire(cost=11)


async def test_a_waiter_wakes_by_the_ramp_before_anything_expires() -> None:
    clock = FakeClock()
    limiter = Limiter("100/h", warm_up=WarmUp(over=100, pace=False), clock=clock)
    assert passes_now(limiter) == 60
    callers = Callers(limiter, clock)
    for who in range(5):
        callers.call(who)
    await clock.advance(20)
    # 61 of 100 is reached at 2.5 s, 62 at 5 s, and so on: g = 0.6 + 0.4 t / 100.
    assert callers.times() == [pytest.approx(2.5 * n) for n in range(1, 6)]
    assert callers.who() == [0, 1, 2, 3, 4]


async def test_a_refused_caller_comes_back_at_the_exact_time() -> None:
    clock = FakeClock()
    limiter = Limiter("100/h", warm_up=WarmUp(over=100, pace=False), clock=clock)
    passes_now(limiter)
    with pytest.raises(RateLimited) as refused:
        await limiter.acquire(max_wait=0)
    assert refused.value.retry_after == pytest.approx(2.5)
    assert refused.value.limit == 60
    assert limiter.peek().retry_after == refused.value.retry_after
    clock.jump(2.4)
    assert not limiter.try_acquire()
    clock.jump(0.1000001)
    assert limiter.try_acquire()


async def test_sleeping_retry_after_is_enough() -> None:
    clock = FakeClock()
    limiter = Limiter("20/s", "60/min", warm_up=WarmUp(0.3, over=40, pace=False), clock=clock)
    for _ in range(200):
        with pytest.raises(RateLimited) as refused:
            while True:
                await limiter.acquire(max_wait=0)
        assert refused.value.retry_after is not None
        clock.jump(refused.value.retry_after + 1e-9)
        assert limiter.try_acquire()


def warm(limiter: Limiter, clock: FakeClock) -> None:
    for _ in range(40):
        limiter.try_acquire()
        clock.jump(0.25)
    limiter.try_acquire()


@pytest.mark.parametrize(("d", "expected"), [(0, 100), (2.5, 90), (5, 80), (10, 60), (1e6, 60)])
def test_a_gap_loses_exactly_what_it_is_too_long(d: float, expected: int) -> None:
    clock = FakeClock()
    limiter = Limiter("100/s", warm_up=WarmUp(over=10, idle_after=30), clock=clock)
    warm(limiter, clock)
    clock.jump(30 + d)
    assert passes_now(limiter) == expected


def test_a_gap_is_measured_from_the_last_attempt_of_the_fast_lane() -> None:
    clock = FakeClock()
    limiter = Limiter("100/s", warm_up=WarmUp(over=10, idle_after=30), clock=clock)

    async def enter() -> None:
        async with limiter.acquire():
            pass

    warm(limiter, clock)
    asyncio.run(enter())
    for _ in range(3):  # within the span of one entry of the window: nothing old is looked at
        clock.jump(0.01)
        asyncio.run(enter())
    clock.jump(35)
    assert passes_now(limiter) == 80


def test_a_refused_attempt_is_traffic() -> None:
    clock = FakeClock()
    limiter = Limiter("100/s", warm_up=WarmUp(over=10, idle_after=30), clock=clock)
    warm(limiter, clock)
    passes_now(limiter)
    clock.jump(20)
    passes_now(limiter)
    assert not limiter.try_acquire()
    clock.jump(25)  # 45 s after the last that passed before
    assert passes_now(limiter) == 100
    clock.jump(35)
    assert passes_now(limiter) == 80


def test_what_costs_nothing_is_traffic_too() -> None:
    clock = FakeClock()
    limiter = Limiter("100/s", warm_up=WarmUp(over=10), clock=clock)
    for _ in range(101):
        limiter.try_acquire(cost=0)
        limiter.try_acquire(limit=UNLIMITED)
        clock.jump(0.1)
    assert passes_now(limiter) == 100


def test_a_sawtooth_of_gaps_stays_warm() -> None:
    clock = FakeClock()
    limiter = Limiter("100/s", warm_up=WarmUp(over=10, idle_after=30), clock=clock)
    warm(limiter, clock)
    for _ in range(20):
        clock.jump(32)
        steady(limiter, clock, 2.1, 0.1)
        clock.jump(1.0)
        assert passes_now(limiter) == 100


def test_hard_reset_is_cold_at_once() -> None:
    clock = FakeClock()
    limiter = Limiter("100/s", warm_up=WarmUp(idle_after=30, reset="hard"), clock=clock)
    warm(limiter, clock)
    clock.jump(30)
    assert passes_now(limiter) == 100
    clock.jump(30.001)
    assert passes_now(limiter) == 60


def test_an_hour_before_the_first_call_does_not_warm() -> None:
    clock = FakeClock()
    limiter = Limiter("100/s", warm_up=WarmUp(), clock=clock)
    clock.jump(3600)
    limiter.peek()
    clock.jump(3600)
    assert passes_now(limiter) == 60


async def test_a_refusal_or_a_waiter_that_gave_up_keeps_nothing_warm() -> None:
    clock = FakeClock()
    warm_up = WarmUp(over=10, idle_after=60, cool_down=10, pace=False)
    limiter = Limiter("60/h", warm_up=warm_up, clock=clock)
    for _ in range(60):
        limiter.try_acquire()
        clock.jump(1)
    assert not limiter.try_acquire(cost=60)
    clock.jump(65)
    assert limiter.statistics().warmth == pytest.approx(0.5)
    waiter = Callers(limiter, clock).call("gives up", cost=60)
    await clock.advance(1000)
    assert limiter.statistics().warmth == 1  # somebody waits
    waiter.cancel()
    await clock.settle()
    clock.jump(64)
    assert limiter.statistics().warmth == pytest.approx(0.6)


async def test_waiting_is_activity() -> None:
    clock = FakeClock(autojump=True)
    warm_up = WarmUp(over=100, idle_after=1, pace=False)
    limiter = Limiter("10/h", warm_up=warm_up, clock=clock)
    passes_now(limiter)
    for n in range(1, 5):  # 7, 8, 9, 10 of 10: each 25 s later, though idle_after is 1 s
        await limiter.acquire()
        assert clock.time() == pytest.approx(25 * n)


def test_guava_3552() -> None:
    # One try each 120 ms at 10/s: there, it never became warm.
    clock = FakeClock()
    limiter = Limiter("10/s", warm_up=WarmUp(over=5), clock=clock)
    for _ in range(100):
        passed = limiter.try_acquire()
        assert passed or clock.time() < 5
        clock.jump(0.12)


@pytest.mark.parametrize("warm_up", [WarmUp(over=0), WarmUp(windows=0)])
def test_guava_2730(warm_up: WarmUp) -> None:
    # No time to warm up in is no warm-up, and never no limit.
    assert passes_now(Limiter("10/s", warm_up=warm_up, clock=FakeClock())) == 10


def test_what_is_in_the_window_stays_in_it() -> None:
    clock = FakeClock()
    warm_up = WarmUp(over=10, idle_after=1, cool_down=1, pace=False)
    limiter = Limiter("100/min", warm_up=warm_up, clock=clock)
    for _ in range(21):
        limiter.try_acquire()
        clock.jump(0.5)
    assert passes_now(limiter) == 79
    clock.jump(30)
    assert not limiter.try_acquire()  # cold: 60, and 100 are in there
    assert limiter.peek().remaining == 0


def test_a_long_window_is_paced_while_it_warms() -> None:
    clock = FakeClock()
    limiter = Limiter("600/min", warm_up=WarmUp(over=20), clock=clock)
    assert passes_now(limiter) == 1
    times = steady(limiter, clock, 20)
    for second, count in enumerate(by_second(times, 20)):
        assert count == pytest.approx(10 * (0.6 + 0.4 * (second + 0.5) / 20), abs=1)
    assert passes_now(limiter) > 400  # warm: the window may be spent at once


def test_pacing_can_be_had_or_left_out() -> None:
    assert passes_now(Limiter("600/min", warm_up=WarmUp(pace=False), clock=FakeClock())) == 360
    assert passes_now(Limiter("100/s", warm_up=WarmUp(pace=True), clock=FakeClock())) == 3


async def test_paced_waiters_go_in_order_at_the_pace() -> None:
    clock = FakeClock()
    limiter = Limiter("60/min", warm_up=WarmUp(over=1000), clock=clock)
    callers = Callers(limiter, clock)
    for who, cost in enumerate((1, 5, 1, 1)):
        callers.call(who, cost=cost)
    await clock.advance(30)
    assert callers.who() == [0, 1, 2, 3]
    # At 0.6/s: the 5 go when nothing is ahead; they are followed by a wait of 5 / 0.6.
    assert callers.times() == [pytest.approx(at, rel=0.01) for at in (0, 1 / 0.6, 6 / 0.6, 7 / 0.6)]


async def test_the_longest_wait_for_the_pace_is_the_end_of_the_ramp() -> None:
    clock = FakeClock(autojump=True)
    limiter = Limiter("60/h", warm_up=WarmUp(over=10), clock=clock)
    await limiter.acquire()
    await limiter.acquire()
    assert clock.time() == pytest.approx(10)


async def test_what_is_given_back_is_given_back_to_the_pace() -> None:
    clock = FakeClock()
    limiter = Limiter("60/min", warm_up=WarmUp(over=1000), clock=clock)
    permit = await limiter.acquire()
    assert not limiter.try_acquire()
    permit.cancel()
    assert limiter.try_acquire()


def test_each_key_by_itself() -> None:
    clock = FakeClock()
    limiter = Limiter("100/s", warm_up=WarmUp(per_key=True), clock=clock)
    for _ in range(101):
        limiter.try_acquire("warm")
        clock.jump(0.1)
    clock.jump(1)
    assert limiter.peek("warm").limit == 100
    assert limiter.peek("cold").limit == 60
    assert limiter.statistics().warmth is None


def test_by_default_the_process_warms() -> None:
    clock = FakeClock()
    limiter = Limiter("100/s", warm_up=WarmUp(), clock=clock)
    for _ in range(101):
        limiter.try_acquire("warm")
        clock.jump(0.1)
    assert limiter.peek("new").limit == 100
    assert limiter.statistics().warmth == 1.0


@pytest.mark.parametrize(
    "options", [{"cool_down": 0}, {"reset": "hard"}, {"idle_after": 4, "cool_down": 4}]
)
async def test_the_ramp_of_a_key_that_is_waited_for_is_kept(options: dict[str, Any]) -> None:
    clock = FakeClock()
    warm_up = WarmUp(over=10, per_key=True, **{"idle_after": 1, **options})
    limiter = Limiter("2/s", warm_up=warm_up, clock=clock)
    callers = Callers(limiter, clock)
    callers.call("waits", "host", cost=2)
    await clock.advance(60)
    assert callers.times() == [pytest.approx(10)]


async def test_a_wait_too_short_to_move_the_clock_is_none() -> None:
    for gaps in ((0.347, 0.255, 0.346), (0.1, 1 / 3, 0.3137), (1.1, 0.07, 0.9)):
        for rate in ("10/5s", "100/min", "20/3s"):
            clock = FakeClock()
            limiter = Limiter(rate, warm_up=WarmUp(), clock=clock)
            callers = Callers(limiter, clock)
            for gap in gaps:
                callers.call(gap)
                await clock.advance(gap)
            await clock.advance(60)
            assert len(callers.admitted) == 3
    clock = FakeClock()
    limiter = Limiter(Rate(2.5, 1), warm_up=WarmUp(), clock=clock)
    limiter.try_acquire()
    clock.jump(0.37)
    callers = Callers(limiter, clock)
    callers.call("all of it", cost=2.5)
    await clock.advance(20)
    assert callers.times() == [pytest.approx(10)]


def test_past_max_keys_it_tells_of_the_shared_ramp() -> None:
    limiter = Limiter("60/min", warm_up=WarmUp(), max_keys=1, clock=FakeClock())
    limiter.try_acquire("a")
    limiter.try_acquire("b")
    assert not limiter.try_acquire("c")
    assert limiter.peek("c").retry_after != 0


async def test_keys_that_warmed_are_forgotten_in_time() -> None:
    clock = FakeClock()
    limiter = Limiter("5/s", warm_up=WarmUp(per_key=True, idle_after=20), clock=clock)
    for key in range(2000):
        limiter.try_acquire(key)
    ramps = limiter._admission.ramps
    assert ramps is not None
    assert len(ramps._keys) == 2000
    await clock.advance(19)
    assert len(limiter) == 0
    assert len(ramps._keys) == 2000
    await clock.advance(60)
    assert len(ramps._keys) == 0


def test_a_spray_of_keys_cannot_grow_the_ramps() -> None:
    clock = FakeClock()
    limiter = Limiter("5/s", warm_up=WarmUp(per_key=True), max_keys=10, clock=clock)
    for key in range(1000):
        limiter.try_acquire(key)
        clock.jump(0.5)
    ramps = limiter._admission.ramps
    assert ramps is not None
    assert len(ramps._keys) <= 10


def test_limits_of_a_call_warm_too() -> None:
    limiter = Limiter("10/s", warm_up=WarmUp(), clock=FakeClock())
    passed = 0
    while limiter.try_acquire(limit=1000):
        passed += 1
    assert passed == 600
    assert not limiter.try_acquire(limit=0)
    assert limiter.try_acquire(limit=UNLIMITED)


def test_new_rates_warm_on() -> None:
    clock = FakeClock()
    limiter = Limiter("100/s", warm_up=WarmUp(over=10), clock=clock)
    steady(limiter, clock, 5, 0.05)
    limiter.update("1000/s")
    clock.jump(1)
    assert passes_now(limiter) == 840


async def test_what_a_cold_limiter_says() -> None:
    clock = FakeClock()
    limiter = Limiter("100/s", name="search", warm_up=WarmUp(), clock=clock)
    cold = limiter.explain("a")
    assert cold.warmth == 0
    assert cold.limit == 60
    assert str(cold) == (
        "search: 100/s configured; 0 % warm, so 60 of 100/s now; 60 of 60 left of 100/s for 'a', "
        "so a call passes."
    )
    for _ in range(60):
        limiter.try_acquire("a")
    full = limiter.explain("a")
    assert full.binding == "warm_up"
    assert "0 of 60 left of 100/s for 'a' while it warms, so a new call passes in 0.25 s" in str(
        full
    )
    clock.jump(10)
    assert "configured; warm; 100 of 100 left" in str(limiter.explain("a"))


@given(
    st.integers(1, 40),
    st.floats(0.05, 1),
    st.floats(0.1, 20),
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 4)), min_size=1, max_size=60),
    st.sampled_from([0.5, 1.0, 5.0]),
)
def test_any_traffic_is_under_the_ramp_and_ends_at_the_limit(
    limit: int, start: float, over: float, traffic: list[tuple[float, int]], period: float
) -> None:
    clock = FakeClock()
    limiter = Limiter(
        f"{limit}/{round(period * 1000)}ms",
        warm_up=WarmUp(start, over, idle_after=30),
        sub_windows=None,
        clock=clock,
    )
    admitted: list[tuple[float, int]] = []
    first = None
    for gap, cost in traffic:
        clock.jump(gap)
        now = clock.time()
        first = now if first is None else first
        used = sum(one for at, one in admitted if now - period < at)
        share = start + (1 - start) * min(1.0, (now - first) / over)
        most = min(limit, max(1, floor(limit * share * (1 + 1e-8) + 1e-9)))
        if cost <= limit and limiter.try_acquire(cost=cost):
            assert used + cost <= most
            admitted.append((now, cost))
    for _ in range(200):  # whatever came before, it becomes warm
        clock.jump(over / 100)
        limiter.try_acquire(cost=0)
    clock.jump(period)
    assert limiter.try_acquire(cost=limit)
