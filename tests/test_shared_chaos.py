"""Everything at once: callers, operators and faults in a random order, against a real engine.

What is asserted is what holds whatever happens: nobody waits for longer than they said, nobody
meets an error that is not theirs, and nothing goes wrong where nobody looks.
"""

import asyncio
import random
import time
from collections import Counter
from typing import Any

import pytest

from aiolimit import UNLIMITED, Limiter, Permit, RateLimited, StoreError, WarmUp
from aiolimit.redis import RedisStore
from tests.engines import Engine, engine

RATES = [
    ("20/s",),
    ("20/s", "100/10s"),
    ("50/10s",),
    ("5/s", "30/s"),
    ("100/min", "10/s"),
    ("30/2s",),
]
SECONDS = 3.0
CALLERS = 15
PATIENCE = 5.0  # seconds more than a caller's own bound, on a busy machine


class Chaos:
    """One limiter, its callers, and what happens to it."""

    def __init__(self, seed: int, server: Engine) -> None:
        self.random = random.Random(seed)
        self.server = server
        self.rates = self.random.choice(RATES)
        self.end = time.monotonic() + SECONDS
        self.is_frozen = self.is_dead = False
        self.seen: Counter[str] = Counter()

    def options(self) -> dict[str, Any]:
        choices: dict[str, Any] = {
            "warm_up": WarmUp(0.5),
            "burst": self.random.choice([2, 5]),
            "shadow": True,
            "max_keys": 3,
            "max_waiters": 5,
        }
        return {name: one for name, one in choices.items() if self.random.random() < 0.3}

    def store(self) -> RedisStore:
        choose = self.random.choice
        return RedisStore(
            self.server.url,
            timeout=0.3,
            on_store_error=choose(["local", "local", "open", "closed", "raise"]),
            processes=choose([None, 1, 3]),
            lease=choose([None, None, 0.05, 0.3]),
        )

    def own_limit(self) -> Any:
        if self.random.random() < 0.8:
            return None
        own = tuple(self.random.choice([3, 10, UNLIMITED]) for _ in self.rates)
        return own if len(own) > 1 else self.random.choice([3, 10])

    async def call(self, limiter: Limiter) -> Permit | None:
        what, key = self.random.random(), self.random.choice("abcd")
        cost = self.random.choice([0, 1, 1, 1, 1.5, 2, 5])
        bound = self.random.choice([0.0, 0.05, 0.3, 1.0])
        patience = bound / 3 if what < 0.2 else bound + PATIENCE
        async with asyncio.timeout(patience):  # and no task, in which the rates could be others
            if what < 0.7:
                return await limiter.acquire(key, cost, bound, self.own_limit())
            if what < 0.8:
                await limiter.try_acquire_async(key, limit=self.own_limit())
            elif what < 0.9:
                assert (await limiter.peek_async(key)).remaining >= 0
            else:
                assert limiter.explain(key)
        return None

    async def caller(self, limiter: Limiter) -> None:
        held: list[Permit] = []
        while time.monotonic() < self.end:
            begun = time.monotonic()
            try:
                permit = await self.call(limiter)
                if permit is not None:
                    held.append(permit)
                    self.seen[permit.source] += 1
            except RateLimited as error:
                self.seen[error.reason] += 1
            except StoreError:
                self.seen["raise"] += 1
            except TimeoutError:
                assert time.monotonic() - begun < PATIENCE, "it has waited for longer than it said"
            if held and self.random.random() < 0.3:
                permit = held.pop(self.random.randrange(len(held)))
                permit.adjust(self.random.choice([0, 0, 1, 2, 7]))
            await asyncio.sleep(self.random.random() * 0.02)

    async def operator(self, limiter: Limiter) -> None:
        while time.monotonic() < self.end:
            await asyncio.sleep(self.random.random() * 0.4)
            what = self.random.random()
            if what < 0.4:
                self.rates = self.random.choice(RATES)
                limiter.update(*self.rates)
            elif what < 0.5:
                try:
                    await asyncio.wait_for(limiter.reset_async(self.random.choice(["a", None])), 5)
                except StoreError:
                    self.seen["not reset"] += 1
            else:
                await asyncio.to_thread(self.fault, what)
        await asyncio.to_thread(self.repair)

    def fault(self, what: float) -> None:
        if self.is_frozen or self.is_dead:
            self.repair()
        elif what < 0.65:
            self.server.freeze()
            self.is_frozen = True
        elif what < 0.8:
            self.server.kill()
            self.is_dead = True
        else:
            with self.server.client() as client:
                client.flushall()

    def repair(self) -> None:
        if self.is_frozen:
            self.server.thaw()
        if self.is_dead:
            self.server.start()
        self.is_frozen = self.is_dead = False


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_whatever_happens_callers_have_their_answers(seed: int) -> None:
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unseen.append(context))
    with engine() as server:
        chaos = Chaos(seed, server)
        async with chaos.store() as store:
            limiter = Limiter(*chaos.rates, store=store, **chaos.options())
            callers = (chaos.caller(limiter) for _ in range(CALLERS))
            async with asyncio.timeout(SECONDS + 4 * PATIENCE):
                await asyncio.gather(chaos.operator(limiter), *callers)
            assert limiter.shadow or not limiter.statistics().waiting
    assert not unseen
    assert chaos.seen.total() > 100
