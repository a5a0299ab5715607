"""Shadow mode: what a limiter would do is counted as it would be, and nobody is refused."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiolimit import Limiter, LoadController, RateLimited, Statistics, WarmUp
from aiolimit.http.asgi import RateLimitMiddleware
from aiolimit.joint import acquire_together
from aiolimit.testing import FakeClock
from aiolimit.window import Window

#: A call: seconds after the one before, key, cost, max_wait.
Call = tuple[float, str, float, float | None]


async def arrive(calls: Sequence[Call], *, shadow: bool, **options: object) -> Statistics:
    """Calls that come whatever becomes of those before them; the counts when all is over."""
    clock = FakeClock()
    limiter = Limiter(
        "4/s", clock=clock, shadow=shadow, name="tried", **options  # type: ignore[arg-type]
    )  # fmt: skip
    tasks = []

    async def call(key: str, cost: float, max_wait: float | None) -> None:
        begun = clock.time()
        try:
            async with limiter.acquire(key, cost, max_wait):
                pass
        except RateLimited:
            assert not shadow, "nobody is refused in shadow"
        assert not shadow or clock.time() == begun, "nobody waits in shadow"

    for gap, key, cost, max_wait in calls:
        await clock.advance(gap)
        tasks.append(asyncio.create_task(call(key, cost, max_wait)))
        await clock.settle()
    await clock.advance(600)
    await asyncio.gather(*tasks)
    return limiter.statistics()


CALLS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.05, 0.125, 0.5, 1.0]),
        st.sampled_from(["a", "b"]),
        st.sampled_from([1, 1, 1, 2, 3, 5, 0]),
        st.sampled_from([0, 0, 0.25, 1.0, None]),
    ),
    max_size=40,
)


@given(
    calls=CALLS,
    burst=st.sampled_from([None, None, 2]),
    most=st.sampled_from([None, None, 2]),
    warm_up=st.sampled_from([None, WarmUp(start=0.5, over=4)]),
)
@settings(deadline=None, max_examples=200)
def test_a_shadow_counts_what_a_limiter_that_bites_counts(
    calls: list[Call], burst: float | None, most: int | None, warm_up: WarmUp | None
) -> None:
    async def compare() -> None:
        options = {"burst": burst, "max_waiters": most, "warm_up": warm_up}
        real = await arrive(calls, shadow=False, **options)
        shadow = await arrive(calls, shadow=True, **options)
        assert shadow.shadow_rejected == real.rejected
        assert sum(shadow.rejected.values()) == sum(real.shadow_rejected.values()) == 0
        assert shadow.admitted == len(calls) == real.admitted + sum(real.rejected.values())
        assert shadow.near_limit == real.near_limit
        assert shadow.waiting == real.waiting == 0
        assert shadow.cost_admitted == sum(cost for _, _, cost, _ in calls)

    asyncio.run(compare())


async def test_a_call_that_would_be_refused_is_charged_nothing() -> None:
    limiter = Limiter("2/min", max_wait=0, shadow=True, clock=FakeClock())
    for _ in range(5):
        async with limiter.acquire("a"):
            pass
    assert limiter.statistics().admitted == 5
    assert limiter.statistics().shadow_rejected["quota"] == 3
    limiter.update("3/min")
    assert limiter.peek("a").remaining == 1
    assert limiter.try_acquire("a")
    assert limiter.try_acquire("a")
    assert limiter.try_acquire("a", cost=50)
    rejected = limiter.statistics().shadow_rejected
    assert (rejected["quota"], rejected["cost_too_high"]) == (4, 1)


async def test_what_is_refused_in_shadow_has_nothing_to_give_back() -> None:
    limiter = Limiter("10/min", max_wait=0, shadow=True, clock=FakeClock())
    first = await limiter.acquire("a", cost=8)
    second = await limiter.acquire("a", cost=5)
    second.adjust(9)
    second.cancel()
    second.cancel()
    assert limiter.peek("a").remaining == 2
    first.adjust(3)
    assert limiter.peek("a").remaining == 7
    statistics = limiter.statistics()
    assert (statistics.cost_admitted, statistics.cost_returned) == (17, 14)


async def test_who_would_wait_is_charged_when_its_turn_would_be() -> None:
    clock = FakeClock()
    limiter = Limiter("2/s", shadow=True, clock=clock)
    permits = [await limiter.acquire("a") for _ in range(5)]
    assert limiter.statistics().waiting == 3
    assert [permit.waited for permit in permits] == [0] * 5
    await clock.advance(1)
    assert limiter.statistics().waiting == 1
    await clock.advance(1)
    assert limiter.statistics().waiting == 0
    assert limiter.peek("a").remaining == 1
    assert limiter.statistics().shadow_rejected == limiter.statistics().rejected


async def test_the_true_cost_of_one_that_would_wait_is_charged_when_its_turn_would_be() -> None:
    clock = FakeClock()
    limiter = Limiter("10/s", shadow=True, clock=clock)
    await limiter.acquire("a", cost=10)
    more = await limiter.acquire("a", cost=2)
    gone = await limiter.acquire("a", cost=3)
    more.adjust(6)
    gone.cancel()
    assert limiter.peek("a").remaining == 0
    await clock.advance(1)
    await clock.settle()
    assert limiter.peek("a").remaining == 4
    more.adjust(1)
    assert limiter.peek("a").remaining == 9
    statistics = limiter.statistics()
    assert statistics.cost_admitted - statistics.cost_returned == 11


async def test_the_cost_may_be_told_in_the_tick_of_the_turn() -> None:
    clock = FakeClock()
    limiter = Limiter("1/s", shadow=True, clock=clock)
    first, second = await limiter.acquire("a"), await limiter.acquire("a")
    second.adjust(3)
    first.cancel()  # the turn of the second comes now
    second.cancel()
    await clock.settle()
    assert second.cost == 0
    assert limiter.peek("a").remaining == 1
    statistics = limiter.statistics()
    assert (statistics.cost_admitted, statistics.cost_returned) == (4, 4)


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["acquire", "adjust", "advance", "settle"]),
            st.integers(0, 5),
            st.integers(0, 4),
        ),
        max_size=40,
    )
)
@settings(deadline=None, max_examples=300)
def test_whenever_the_true_cost_is_told_it_is_what_is_charged(
    steps: list[tuple[str, int, int]],
) -> None:
    async def main() -> None:
        clock = FakeClock()
        limiter = Limiter("4/h", shadow=True, clock=clock)
        permits = []
        for what, which, much in steps:
            if what == "acquire":
                permits.append(await limiter.acquire("a", cost=min(much, 4)))
            elif what == "adjust" and permits:
                permits[which % len(permits)].adjust(much)
            elif what == "advance":
                await clock.advance(much)
            else:
                await clock.settle()
        await clock.settle()
        costs = sum(permit.cost for permit in permits)
        statistics = limiter.statistics()
        assert statistics.cost_admitted - statistics.cost_returned == costs
        # Within the hour nothing has left: what is charged is what those cost who had their turn.
        pending = [getattr(permit, "_verdict", None) is not None for permit in permits]
        charged = sum(
            permit.cost for permit, waits in zip(permits, pending, strict=True) if not waits
        )
        entry = limiter._store.entries.get("a")
        assert (0 if entry is None else cast(Window, entry).total) == charged
        assert statistics.waiting == sum(pending)

    asyncio.run(main())


async def test_places_are_bounded_as_callers_keep_coming() -> None:
    limiter = Limiter("1/h", shadow=True, clock=FakeClock())
    for _ in range(10_101):
        assert await limiter.acquire("everybody")
    statistics = limiter.statistics()
    assert statistics.admitted == 10_101
    assert statistics.waiting == 10_000
    assert statistics.shadow_rejected["queue_full"] == 100
    few = Limiter("1/h", shadow=True, max_waiters=3, clock=FakeClock())
    for _ in range(10):
        await few.acquire("everybody")
    assert few.statistics().shadow_rejected["queue_full"] == 6


async def test_in_shadow_everybody_passes_together_too() -> None:
    clock = FakeClock()
    bites, tried = Limiter("2/s", clock=clock), Limiter("1/min", clock=clock, shadow=True)
    for _ in range(2):
        await acquire_together([bites.acquire("a"), tried.acquire("a", max_wait=0)])
    assert tried.statistics().shadow_rejected["quota"] == 1
    with pytest.raises(RateLimited):
        await acquire_together([bites.acquire("a", max_wait=0), tried.acquire("a")])
    assert tried.statistics().admitted == 2
    for bad, error in (
        (tried.acquire("a", cost=-1), ValueError),
        (tried.acquire([]), TypeError),  # type: ignore[arg-type]
        (await tried.acquire("a"), RuntimeError),
    ):
        await clock.advance(5)
        with pytest.raises(error):
            await acquire_together([bites.acquire("a", max_wait=0), bad])
        assert bites.peek("a").remaining == 2, "an error charges nobody"
    # What would be too dear is counted once, and not at all where another limiter refuses.
    await acquire_together([bites.acquire("a"), tried.acquire("a", cost=9)])
    await bites.acquire("a")
    with pytest.raises(RateLimited):
        await acquire_together([bites.acquire("a", max_wait=0), tried.acquire("a", cost=9)])
    assert tried.statistics().shadow_rejected["cost_too_high"] == 1


async def test_the_load_controller_is_told_of_no_refusal() -> None:
    clock = FakeClock()
    controller = LoadController(clock=clock, without={"gc"})
    limiter = Limiter("1000/s", load=controller, shadow=True, max_wait=0, clock=clock)
    async with controller:
        permits = [limiter.acquire("a") for _ in range(30)]
        for permit in permits:
            await permit.__aenter__()
        statistics = limiter.statistics()
        assert statistics.in_flight == controller.in_flight == 30
        assert statistics.shadow_rejected["overload"] == 10
        assert controller.gate.refused == 0
        # Nobody waits to see whether it would get in after all; who would wait for ever would.
        for max_wait, more in ((0.3, 1), (None, 0)):
            before = limiter.statistics().shadow_rejected["overload"]
            permits.append(limiter.acquire("a", max_wait=max_wait))
            await permits[-1].__aenter__()
            assert limiter.statistics().shadow_rejected["overload"] == before + more
        for permit in permits:
            permit.__aexit__(None, None, None)
        assert controller.in_flight == 0
        assert "in shadow: it refuses nobody" in str(limiter.explain("a"))


def test_three_loops_in_a_row_each_leaving_one_behind_that_would_wait() -> None:
    limiter = Limiter("1/h", shadow=True)

    async def main() -> None:
        for _ in range(2):
            async with limiter.acquire("a"):
                pass

    for _ in range(3):
        asyncio.run(main())
    statistics = limiter.statistics()
    assert (statistics.admitted, statistics.cancelled, statistics.waiting) == (6, 0, 2)


async def test_a_middleware_in_shadow_says_nothing_of_limits() -> None:
    started = []

    async def app(scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b""})  # type: ignore[operator]

    async def send(message: dict[str, object]) -> None:
        if message["type"] == "http.response.start":
            started.append((message["status"], message["headers"]))

    limiter = Limiter("2/min", shadow=True)
    wrapped = RateLimitMiddleware(app, limiter=limiter)
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("1.2.3.4", 5)}
    for _ in range(4):
        await wrapped(dict(scope), None, send)  # type: ignore[arg-type]
    assert started == [(200, [])] * 4
    assert limiter.statistics().shadow_rejected["quota"] == 2


def test_shadow_is_true_or_false() -> None:
    with pytest.raises(TypeError, match="shadow must be True or False, not 'yes'"):
        Limiter("1/s", shadow="yes")  # type: ignore[arg-type]
    assert not Limiter("1/s").shadow
