"""One call under several limiters: all or nothing, in line everywhere, and never over any limit."""

import asyncio
import random
from collections.abc import Hashable

import pytest

from aiolimit import CostTooHigh, Limiter, Permit, QueueFull, RateLimited, WarmUp
from aiolimit.joint import acquire_together
from aiolimit.testing import FakeClock
from tests.oracle import ExactLog


async def together(*permits: Permit) -> tuple[Permit, ...]:
    await acquire_together(permits)
    return permits


async def test_it_passes_at_once_where_all_have_room() -> None:
    clock = FakeClock()
    one, other = Limiter("2/min", clock=clock), Limiter("100/min", clock=clock)
    first, second = await together(one.acquire("k"), other.acquire("k", cost=60))
    assert (first.waited, second.waited, second.cost) == (0, 0, 60)
    assert (one.peek("k").remaining, other.peek("k").remaining) == (1, 40)
    second.adjust(10)
    assert other.peek("k").remaining == 90
    first.cancel()
    assert one.peek("k").remaining == 2


async def test_all_or_nothing_at_once() -> None:
    clock = FakeClock()
    one, other = Limiter("2/min", clock=clock), Limiter("1/min", name="other", clock=clock)
    await other.acquire("k")
    with pytest.raises(RateLimited, match="other"):
        await together(one.acquire("k", max_wait=0), other.acquire("k", max_wait=0))
    with pytest.raises(CostTooHigh):
        await together(one.acquire("k"), other.acquire("k", cost=2))
    assert one.peek("k").remaining == 2
    assert one.statistics().admitted == 0


async def test_it_is_charged_when_it_goes_and_not_before() -> None:
    clock = FakeClock(autojump=True)
    one, other = Limiter("1/s", clock=clock), Limiter("1/10s", clock=clock)
    await other.acquire("k")
    permits = await together(one.acquire("k"), other.acquire("k"))
    assert clock.time() == 10
    assert [permit.waited for permit in permits] == [10, 10]
    assert one.peek("k").retry_after == 1


async def test_who_comes_later_waits_behind_it_in_every_line() -> None:
    clock = FakeClock(autojump=True)
    one, other = Limiter("1/s", clock=clock), Limiter("1/10s", clock=clock)
    went: list[str] = []

    async def call(who: str, *permits: Permit) -> None:
        await together(*permits)
        went.append(f"{who} {clock.time():g}")

    await other.acquire("k")
    await asyncio.gather(
        call("both", one.acquire("k"), other.acquire("k")),
        call("one", one.acquire("k")),
        call("other", other.acquire("k")),
        call("elsewhere", one.acquire("x"), other.acquire("x")),
    )
    assert went == ["elsewhere 0", "both 10", "one 11", "other 20"]


async def test_opposite_orders_do_not_wait_for_each_other() -> None:
    clock = FakeClock(autojump=True)
    one, other = Limiter("1/50ms", clock=clock), Limiter("1/50ms", clock=clock)
    calls = []
    for number in range(40):
        pair = [one.acquire("k"), other.acquire("k")]
        calls.append(together(*(pair if number % 2 else reversed(pair))))
        calls.append(together(one.acquire("k")))
    async with asyncio.timeout(20):
        await asyncio.gather(*calls)
    assert clock.time() == pytest.approx(79 * 0.05)


async def test_a_deadline_holds_for_the_whole() -> None:
    clock = FakeClock()
    one, other = Limiter("1/s", clock=clock), Limiter("1/10s", name="other", clock=clock)
    await other.acquire("k")
    with pytest.raises(RateLimited) as caught:
        await together(one.acquire("k", max_wait=5), other.acquire("k", max_wait=5))
    assert caught.value.retry_after == 10
    waiting = asyncio.create_task(together(one.acquire("k", max_wait=15), other.acquire("k")))
    await clock.settle()
    with pytest.raises(RateLimited) as caught:  # behind one who waits for something else
        await together(one.acquire("k", max_wait=0.5), other.acquire("k", max_wait=0.5))
    other.hold("k", seconds=60)
    await clock.advance(15)
    with pytest.raises(RateLimited):
        await waiting
    assert one.statistics().waiting == other.statistics().waiting == 0
    assert one.try_acquire("k")


async def test_max_waiters_and_a_change_of_limits() -> None:
    clock = FakeClock()
    one = Limiter("10/s", clock=clock)
    other = Limiter("5/10s", max_waiters=1, clock=clock)
    await other.acquire("k", cost=5)
    waiting = asyncio.create_task(together(one.acquire("k"), other.acquire("k", cost=5)))
    await clock.settle()
    with pytest.raises(QueueFull):
        await together(one.acquire("k"), other.acquire("k"))
    other.update("4/10s")
    with pytest.raises(CostTooHigh):
        await waiting
    assert one.statistics().waiting == other.statistics().waiting == 0
    waiting = asyncio.create_task(together(one.acquire("k"), other.acquire("k", cost=4)))
    await clock.settle()
    other.update("400/10s")
    await clock.settle()
    assert waiting.done()


async def test_what_costs_nothing_is_waited_for_by_nobody() -> None:
    clock = FakeClock(autojump=True)
    one, other = Limiter("1/s", clock=clock), Limiter("1/h", clock=clock)
    await other.acquire("k")
    await one.acquire("k")
    _, free = await together(one.acquire("k"), other.acquire("k", cost=0))
    assert clock.time() == 1
    assert free.cost == 0


@pytest.mark.parametrize("seed", range(30))
async def test_never_over_and_nothing_lost_whatever_comes(seed: int) -> None:
    """Random calls and cancellations, against logs that keep everything."""
    chance = random.Random(seed)
    clock = FakeClock()
    limiters = [
        Limiter(f"{chance.randint(1, 5)}/s", clock=clock, sub_windows=None),
        Limiter(f"{chance.randint(5, 20)}/2s", clock=clock, sub_windows=None),
        Limiter(f"{chance.randint(2, 9)}/500ms", clock=clock, sub_windows=None),
    ]
    went: list[tuple[float, list[tuple[int, Hashable, float]]]] = []

    async def call(parts: list[tuple[int, Hashable, float]], bound: float | None) -> None:
        await acquire_together(
            [limiters[at].acquire(key, cost, max_wait=bound) for at, key, cost in parts]
        )
        went.append((clock.time(), parts))

    tasks: list[asyncio.Task[None]] = []
    for _ in range(60):
        which = chance.sample(range(3), chance.randint(1, 3))
        key = chance.choice("ab")
        parts: list[tuple[int, Hashable, float]] = [
            (at, key, chance.randint(1, 3) if at == 1 else 1) for at in which
        ]
        tasks.append(asyncio.create_task(call(parts, chance.choice([None, None, 0, 0.7, 3]))))
        if chance.random() < 0.3:
            await clock.advance(chance.choice([0, 0.1, 0.25, 0.5]))
        if chance.random() < 0.2:
            chance.choice(tasks).cancel()
    await clock.advance(200)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        assert outcome is None or isinstance(outcome, RateLimited | asyncio.CancelledError)
    for at, (limiter, period) in enumerate(zip(limiters, (1, 2, 0.5), strict=True)):
        assert limiter.statistics().waiting == 0
        assert len(limiter) == 0
        for key in "ab":
            log = ExactLog(period)
            for when, parts in went:
                for number, its_key, cost in parts:
                    if (number, its_key) == (at, key):
                        log.admit(when, cost)
            assert log.worst() <= limiter._store.rates[0].limit
    assert len(went) == outcomes.count(None)


# Found by looking for trouble ---------------------------------------------------------------------


async def test_it_is_refused_for_the_limiter_that_it_waits_for_longest() -> None:
    clock = FakeClock()
    one = Limiter("100/s", name="quick", max_wait=1, clock=clock)
    other = Limiter("1/min", name="slow", clock=clock)
    await other.acquire("k")
    with pytest.raises(RateLimited, match="slow") as caught:
        await together(one.acquire("k"), other.acquire("k"))
    assert (clock.time(), caught.value.retry_after) == (0, 60)


async def test_plain_callers_behind_it_know_how_long_it_takes() -> None:
    clock = FakeClock()
    one, other = Limiter("100/s", clock=clock), Limiter("1/20s", clock=clock)
    await other.acquire("k")
    first = asyncio.create_task(together(one.acquire("k"), other.acquire("k")))
    await clock.settle()
    for bound in (0, 3):
        with pytest.raises(RateLimited) as caught:
            await one.acquire("k", max_wait=bound)
        assert caught.value.retry_after == 20
        assert clock.time() == 0
    assert one.explain("k").retry_after == 20
    other.update("1/2s")
    behind = asyncio.create_task(one.acquire("k", max_wait=3).__aenter__())
    await clock.advance(2)
    await asyncio.gather(first, behind)


async def test_a_line_that_is_empty_holds_up_nobody() -> None:
    clock = FakeClock()
    one, other = Limiter("1/10s", clock=clock), Limiter("100/s", clock=clock)
    await one.acquire("k")
    first = asyncio.create_task(together(one.acquire("k"), other.acquire("k")))
    await clock.settle()
    one.reset()
    assert other.try_acquire("k")
    await other.acquire("k", max_wait=0)
    await first


async def test_it_counts_among_the_waiters_of_each() -> None:
    clock = FakeClock()
    one, other = Limiter("100/s", max_waiters=0, clock=clock), Limiter("1/10s", clock=clock)
    await other.acquire("k")
    with pytest.raises(QueueFull):
        await together(one.acquire("k"), other.acquire("k"))
    assert one.statistics().waiting == other.statistics().waiting == 0


async def test_with_ramps_for_more_keys_than_are_kept_apart() -> None:
    clock = FakeClock()
    warm_up = WarmUp(start=0.2, over=5, per_key=True)
    one = Limiter("5/500ms", warm_up=warm_up, max_keys=1, clock=clock)
    other = Limiter("100/s", clock=clock)
    await one.acquire("another")
    await clock.advance(10)
    task = asyncio.create_task(together(one.acquire("k", 2), other.acquire("k")))
    await clock.advance(30)
    await task


async def test_a_key_that_breaks_in_the_middle_leaves_no_place_behind() -> None:
    class Odd:
        broken = 0

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            Odd.broken -= 1
            if Odd.broken == 0:
                raise ValueError("odd")
            return isinstance(other, Odd)

    for at in range(1, 40):
        clock = FakeClock()
        one, other = Limiter("1/s", clock=clock), Limiter("1/2s", clock=clock)
        Odd.broken = 0
        await other.acquire(Odd())
        Odd.broken = at
        task = asyncio.create_task(together(one.acquire(Odd()), other.acquire(Odd())))
        await asyncio.sleep(0)
        try:
            await clock.advance(3)
        except ValueError:
            await clock.advance(3)
        Odd.broken = 0
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        assert outcome is not None
        await clock.advance(10)
        assert one.statistics().waiting == other.statistics().waiting == 0, at
        assert one.try_acquire(Odd())
        assert other.try_acquire(Odd())


async def test_thousands_that_go_at_once_do_not_stop_the_loop() -> None:
    one, other = Limiter("1/h"), Limiter("1000000/s")
    await one.acquire("k")
    calls = [
        asyncio.create_task(together(one.acquire("k"), other.acquire("k"))) for _ in range(3000)
    ]
    while one.statistics().waiting < 3000:
        await asyncio.sleep(0)
    one.update("1000000/h")
    most, rounds = 0, 0
    while not all(task.done() for task in calls):
        before = one.statistics().waiting
        await asyncio.sleep(0)
        most, rounds = max(most, before - one.statistics().waiting), rounds + 1
    assert most <= 2 * 256
    assert rounds < 100
