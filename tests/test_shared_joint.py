"""Calls under several limiters at once that share their counts over a store."""

import asyncio
import random
from collections.abc import Hashable, Iterator

import pytest

from aiolimit import Limiter, RateLimited, StoreError, StoreUnavailable
from aiolimit.errors import Source
from aiolimit.joint import acquire_together
from aiolimit.redis import RedisStore
from aiolimit.shared.sharing import Policy
from aiolimit.testing import FakeClock
from tests.engines import engine
from tests.oracle import ExactLog
from tests.over_a_store import Stores

Parts = list[tuple[int, Hashable, float]]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with engine() as one:
        yield one.url


@pytest.mark.parametrize("seed", range(10))
async def test_never_over_and_nothing_lost_whatever_comes(url: str, seed: int) -> None:
    """Random calls and cancellations, against logs that keep everything.

    All times are sixty-fourths of a second: whole microseconds, and exact floats.
    """
    chance = random.Random(seed)
    clock = FakeClock()
    stores = Stores()
    stores.url = url
    limits = (chance.randint(1, 5), 1.0), (chance.randint(5, 20), 2.0), (chance.randint(2, 9), 0.5)
    limiters = [
        stores.limiter(f"{limit}/{int(period * 1000)}ms", clock=clock, sub_windows=None)
        for limit, period in limits
    ]
    went: list[tuple[float, Parts]] = []

    async def call(parts: Parts, bound: float | None) -> None:
        await acquire_together(
            [limiters[at].acquire(key, cost, max_wait=bound) for at, key, cost in parts]
        )
        went.append((clock.time(), parts))

    tasks: list[asyncio.Task[None]] = []
    for _ in range(60):
        which = chance.sample(range(3), chance.randint(1, 3))
        key = chance.choice("ab")
        parts: Parts = [(at, key, chance.randint(1, 3) if at == 1 else 1) for at in which]
        tasks.append(asyncio.create_task(call(parts, chance.choice([None, None, 0, 0.75, 3]))))
        if chance.random() < 0.3:
            await clock.advance(chance.choice([0, 6, 16, 32]) / 64)
        if chance.random() < 0.2:
            chance.choice(tasks).cancel()
    await clock.advance(200)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        assert outcome is None or isinstance(outcome, RateLimited | asyncio.CancelledError)
    for at, (limiter, (limit, period)) in enumerate(zip(limiters, limits, strict=True)):
        assert limiter.statistics().waiting == 0
        for key in "ab":
            log = ExactLog(period)
            for when, its_parts in went:
                for number, its_key, cost in its_parts:
                    if (number, its_key) == (at, key):
                        log.admit(when, cost)
            assert log.worst() <= limit
    assert len(went) == outcomes.count(None)
    await stores.close()


@pytest.mark.parametrize("policy", ["local", "open", "closed", "raise"])
async def test_over_stores_that_do_not_answer(policy: Policy) -> None:
    with engine() as server:
        async with (
            RedisStore(server.url, on_store_error=policy) as here,
            RedisStore(server.url, on_store_error=policy) as there,
        ):
            one, other = Limiter("5/min", store=here), Limiter("9/min", name="b", store=there)

            async def together() -> set[Source]:
                permits = [one.acquire("k", max_wait=1), other.acquire("k", max_wait=1)]
                async with asyncio.timeout(5):
                    await acquire_together(permits)
                return {permit.source for permit in permits}

            assert await together() == {"store"}
            server.kill()
            for _ in range(4):
                if policy in ("local", "open"):
                    assert await together() == {policy}
                else:
                    with pytest.raises(StoreError if policy == "raise" else StoreUnavailable):
                        await together()
            if policy == "local":
                with pytest.raises(RateLimited) as refused:
                    await together()
                assert refused.value.limiter == "default"
            server.start()
            async with asyncio.timeout(5):
                while not (one._admission.is_store_up() and other._admission.is_store_up()):
                    await asyncio.sleep(0.02)
            if policy == "local":
                while one._admission.sharing.is_busy() or other._admission.sharing.is_busy():  # type: ignore[attr-defined]
                    await asyncio.sleep(0.02)
                assert (await one.peek_async("k")).remaining == 0
                assert (await other.peek_async("k")).remaining == 4
