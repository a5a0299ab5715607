"""What a server says of a key: holds, ceilings, and how those who waited leave."""

import asyncio
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiolimit import Limiter, RateLimited, WarmUp
from aiolimit.restriction import RESUME, Restriction
from aiolimit.testing import FakeClock
from tests.support import Callers

times = st.integers(0, 200).map(lambda quarter: quarter / 4)
costs = st.integers(1, 8)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("hold"), times, times),
            st.tuples(st.just("ceiling"), times, costs),
            st.tuples(st.just("refilled"), times, costs),
            st.tuples(st.just("ask"), times, costs),
        ),
        max_size=40,
    )
)
def test_against_the_definition(steps: list[tuple[str, float, float]]) -> None:
    """Nothing passes in a hold; a ceiling is kept until it ends; a wait is exact, alone."""
    one, now = Restriction(), 0.0
    holds: list[tuple[float, float]] = []
    ceilings: dict[str, tuple[float, float, float, float]] = {}
    passed: list[tuple[float, float]] = []
    for what, seconds, number in steps:
        now += seconds / 10
        if what == "hold":
            one.hold(now, now + number, 10.0)
            holds.append((now, now + number))
        elif what in ("ceiling", "refilled"):
            refill = 0.25 if what == "refilled" else 0.0
            one.ceiling("x", number, now, now + seconds, refill)
            ceilings["x"] = number, now, now + seconds, refill
        else:
            wait = one.wait(number, now, 2.0)
            assert wait >= 0
            if wait:
                assert one.wait(number, now + wait * 0.95 - 1e-9, 2.0) > 0
                assert one.wait(number, now + wait, 2.0) == 0
                continue
            assert not any(begin <= now < end for begin, end in holds)
            one.take(number, now, 2.0)
            passed.append((now, number))
            for left, since, until, refill in ceilings.values():
                in_it = [Fraction(cost) for at, cost in passed if since <= at < until]
                back = Fraction(refill) * (Fraction(now) - Fraction(since))
                assert now >= until or sum(in_it) <= left + back
    assert one.wait(8, one.over_at(), 2.0) == 0 or one.over_at() == float("-inf")


def test_a_hold_is_only_ever_extended() -> None:
    one = Restriction()
    one.hold(0, 30, 1)
    one.hold(1, 5, 1)
    one.hold(2, 2, 1)
    assert one.wait(1, 2, 1.0) == 28
    one.hold(2, 40, 1)
    assert one.wait(1, 2, 1.0) == 38
    assert one.left(2) == 0


def test_names_from_outside_are_bounded() -> None:
    one = Restriction()
    for number in range(1000):
        one.ceiling(f"made up {number}", 5, 0, 10 + number)
    assert one.left(9) == 5
    one.ceiling("later", 3, 5000, 6000)
    assert one.left(5000) == 3
    assert one.over_at() == 6000


async def test_those_who_waited_leave_in_order_and_at_the_pace_of_the_limit() -> None:
    clock = FakeClock(autojump=True)
    limiter = Limiter("10/s", clock=clock)
    callers = Callers(limiter, clock)
    limiter.hold("api", seconds=5)
    for who in range(30):
        callers.call(who, "api")
    await asyncio.gather(*callers.tasks)
    assert callers.who() == list(range(30))
    assert callers.times() == pytest.approx([5 + 0.1 * who for who in range(30)])
    # Once it is over, a whole window may be spent at once again.
    await clock.sleep(RESUME)
    begun = clock.time()
    await asyncio.gather(*(limiter.acquire("api") for _ in range(10)))
    assert clock.time() == begun


async def test_a_hold_reaches_those_who_wait_already_and_no_other_key() -> None:
    clock = FakeClock()
    limiter = Limiter("2/s", clock=clock)
    callers = Callers(limiter, clock)
    for who in range(4):
        callers.call(who, "a")
    late = callers.call("late", "a", max_wait=2.5)
    await clock.advance(0)
    limiter.hold("a", seconds=10)
    with pytest.raises(RateLimited) as caught:
        await late
    assert caught.value.retry_after == pytest.approx(11)
    callers.call("b", "b")
    await clock.advance(9.9)
    assert callers.who() == [0, 1, "b"]
    await clock.advance(0.2)
    assert callers.who() == [0, 1, "b", 2]
    await clock.advance(0.5)
    assert callers.who() == [0, 1, "b", 2, 3]
    await clock.advance(200)
    assert len(limiter) == 0
    assert limiter._admission.restrictions is not None
    assert not limiter._admission.restrictions.by_key, "what is over is forgotten by itself"


async def test_a_call_that_cannot_wait_fails_at_once_and_says_until_when() -> None:
    clock = FakeClock()
    limiter = Limiter("100/s", name="api", clock=clock)
    limiter.hold("a", seconds=20_000)
    with pytest.raises(RateLimited) as caught:
        await limiter.acquire("a", max_wait=60)
    assert caught.value.retry_after == 20_000
    assert not limiter.try_acquire("a")
    assert limiter.peek("a").retry_after == 20_000
    assert limiter.peek("a").remaining == 0
    assert "'a' is held back from outside, so a new call passes in 20000 s" in str(
        limiter.explain("a")
    )
    limiter.reset("a")
    assert limiter.try_acquire("a")


@pytest.mark.parametrize("warm_up", [None, WarmUp(0.5, over=1, pace=False)])
async def test_what_a_server_says_is_left_is_not_exceeded(warm_up: WarmUp | None) -> None:
    clock = FakeClock()
    limiter = Limiter("100/min", clock=clock, warm_up=warm_up)
    limiter.restrict("a", remaining=3, seconds=20)
    assert [limiter.try_acquire("a") for _ in range(5)] == [True] * 3 + [False] * 2
    assert limiter.peek("a").remaining == 0
    assert limiter.peek("a").retry_after == 20
    assert limiter.try_acquire("b", 20)
    # It knows better now; and it never lets more pass than is configured.
    limiter.restrict("a", remaining=500, seconds=20)
    clock.jump(2)
    passed = sum(limiter.try_acquire("a") for _ in range(200))
    assert passed == 97


async def test_what_comes_back_evenly_passes_meanwhile() -> None:
    clock = FakeClock(autojump=True)
    limiter = Limiter("100/min", clock=clock)
    limiter.restrict("a", remaining=1, seconds=50, refill=0.5)
    callers = Callers(limiter, clock)
    for who in range(4):
        callers.call(who, "a")
    await asyncio.gather(*callers.tasks)
    assert callers.times() == [0, 2, 4, 6]
    assert limiter.peek("a", cost=3).retry_after == 6


async def test_more_left_wakes_those_who_wait() -> None:
    clock = FakeClock()
    limiter = Limiter("100/min", clock=clock)
    limiter.restrict("a", remaining=0, seconds=50, name="burst")
    callers = Callers(limiter, clock)
    for who in range(3):
        callers.call(who, "a")
    await clock.advance(1)
    assert callers.who() == []
    limiter.restrict("a", remaining=2, seconds=50, name="burst")
    await clock.settle()
    assert callers.who() == [0, 1]
    await clock.advance(50)
    assert callers.who() == [0, 1, 2]


async def test_what_is_given_back_is_given_back_to_the_ceiling_too() -> None:
    clock = FakeClock()
    limiter = Limiter("100/min", clock=clock)
    limiter.restrict("a", remaining=5, seconds=50)
    permit = await limiter.acquire("a", cost=5)
    assert not limiter.try_acquire("a")
    permit.adjust(2)
    assert limiter.peek("a").remaining == 3
    permit.cancel()
    assert limiter.peek("a").remaining == 5


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "5", True])
def test_bad_input(seconds: float) -> None:
    limiter = Limiter("1/s")
    with pytest.raises((ValueError, TypeError), match="seconds"):
        limiter.hold("a", seconds=seconds)
    with pytest.raises((ValueError, TypeError), match="seconds"):
        limiter.restrict("a", remaining=1, seconds=seconds)
    with pytest.raises((ValueError, TypeError), match="refill"):
        limiter.restrict("a", remaining=1, seconds=1, refill=seconds)
    with pytest.raises((ValueError, TypeError), match="remaining"):
        limiter.restrict("a", remaining=seconds, seconds=1)
    assert limiter.try_acquire("a")


def test_a_hold_outlives_its_window_and_the_overflow() -> None:
    clock = FakeClock()
    limiter = Limiter("10/s", max_keys=1, clock=clock)
    limiter.hold("a", seconds=60)
    assert limiter.try_acquire("b")
    assert not limiter.try_acquire("a")
    clock.jump(5)  # its window, if it had one, is idle by now
    for key in ("c", "d", "e"):
        limiter.try_acquire(key)
    assert not limiter.try_acquire("a")
    limiter.hold("in the overflow", seconds=60)
    assert limiter.try_acquire("f"), "another key is not held for it"
    clock.jump(55.1)
    assert limiter.try_acquire("a")


def test_a_later_shorter_hold_does_not_end_the_spreading() -> None:
    clock = FakeClock()
    limiter = Limiter("10/s", clock=clock)
    limiter.hold("a", seconds=60)
    clock.jump(60)
    limiter.hold("a", seconds=0.01)
    clock.jump(1.01)
    assert sum(limiter.try_acquire("a") for _ in range(10)) == 1
    one = Restriction()
    one.hold(0, 10, 60)
    one.take(50, 10, 100 / 60)
    before = one.wait(1, 10, 100 / 60)
    one.hold(10, 10.001, 60)
    assert one.wait(1, 10, 100 / 60) == before == 30


async def test_one_who_is_cancelled_at_its_turn_hands_it_on() -> None:
    clock = FakeClock()
    limiter = Limiter("10/10s", clock=clock)
    limiter.hold("a", seconds=10)
    callers = Callers(limiter, clock)
    tasks = [callers.call(who, "a") for who in range(3)]
    await clock.settle()
    clock.jump(10)
    tasks[0].cancel()
    await clock.advance(0)
    assert callers.times() == [10]
    assert callers.who() == [1]


def test_of_many_names_the_tightest_are_kept() -> None:
    one = Restriction()
    one.ceiling("tight", 1, 0, 5)
    for number in range(40):
        one.ceiling(f"generous {number}", 100 + number, 0, 1000)
    assert one.left(1) == 1


def test_when_there_is_more() -> None:
    clock = FakeClock()
    limiter = Limiter("1/s", clock=clock)
    assert limiter.try_acquire("a")
    limiter.hold("a", seconds=60)
    assert limiter.peek("a").more_after == 60
