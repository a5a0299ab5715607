"""What is peculiar to limiters that share their counts: names, credit, leases, what is told."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from enum import Enum, StrEnum
from typing import Any
from uuid import UUID

import httpx2
import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from aiolimit import (
    UNLIMITED,
    Limiter,
    LoadController,
    QueueFull,
    RateLimited,
    StoreUnavailable,
    WarmUp,
    metrics,
)
from aiolimit.http.asgi import RateLimitMiddleware
from aiolimit.queue import Waiter
from aiolimit.redis import RedisStore
from aiolimit.shared.names import Names, text_of
from aiolimit.shared.sender import Sender
from aiolimit.testing import FakeClock
from tests.engines import Engine, engine
from tests.support import Callers, worst


@pytest.fixture(scope="module")
def valkey() -> Iterator[Engine]:
    with engine() as one:
        yield one


@pytest.fixture
async def store(valkey: Engine) -> AsyncIterator[RedisStore]:
    with valkey.client() as client:
        client.flushall()
    async with RedisStore(valkey.url, timeout=5) as made:
        yield made


def sender_of(limiter: Limiter, key: str = "k") -> Sender:
    shared: Any = limiter._admission
    sender: Sender = shared.sharing.sender(key)
    return sender


# --- names ---------------------------------------------------------------------------------


class Colour(Enum):
    RED = 1


class Word(StrEnum):
    ANN = "ann"


class Named:
    def __repr__(self) -> str:
        return "Named()"


KEYS: list[Any] = [
    "", "~", "a", "~a", "1", 1, 1.5, "1.5", None, "None", ("a", 1), ("a", "1"), "('a', 1)", b"a",
    "b'a'", "a}b", "a{b", "a%7Db", "%", Colour.RED, UUID(int=7), Named(), frozenset((1, 2)),
    "a:s:32", "x" * 300, "x" * 301, "\ud800", (("a",), "b"), ("a", ("b",)), float("inf"), 1e300,
]  # fmt: skip


def test_no_key_has_the_name_of_another() -> None:
    names = Names("aiolimit:", "search")
    made = [names.of(key) for key in KEYS]
    assert len(set(made)) == len(KEYS)
    for name in made:
        assert name.startswith(b"aiolimit:search:{")
        inside = name.removeprefix(b"aiolimit:search:{").removesuffix(b"}")
        assert inside, "what is between the braces decides the slot"
        assert b"{" not in inside
        assert b"}" not in inside
        assert len(inside) <= 200


def test_keys_that_are_equal_have_one_name() -> None:
    assert text_of(1) == text_of(1.0) == text_of(True)
    assert text_of("ann") == text_of(Word.ANN)
    assert text_of((1, "a")) == text_of((True, Word.ANN.replace("nn", "")))


def test_a_key_that_others_could_not_name_is_refused() -> None:
    with pytest.raises(TypeError, match="a key that processes share"):
        text_of(object())
    with pytest.raises(TypeError, match="a key that processes share"):
        text_of(("a", object()))


def test_limiters_do_not_share_with_others() -> None:
    made = {Names("p:", name).of("k") for name in ("a", "a:{k}", "a%", "a:", "*")}
    assert len(made) == 5


async def test_a_key_that_has_no_name_is_told_to_its_caller(store: RedisStore) -> None:
    limiter = Limiter("10/s", store=store)
    with pytest.raises(TypeError, match="a key that processes share"):
        await limiter.acquire(object())
    await limiter.acquire("k")
    assert limiter.statistics().waiting == 0


# --- what answers at once, and what does not -----------------------------------------------


async def test_what_cannot_be_told_at_once_says_what_can(store: RedisStore) -> None:
    limiter = Limiter("10/s", store=store)
    for name in ("try_acquire", "peek", "reset"):
        with pytest.raises(RuntimeError, match=rf"await {name}_async\(...\)"):
            getattr(limiter, name)("k")
    assert await limiter.try_acquire_async("k", 3)
    assert (await limiter.peek_async("k")).remaining == 7
    await limiter.reset_async("k")
    assert (await limiter.peek_async("k")).remaining == 10


async def test_the_awaited_forms_work_without_a_store() -> None:
    limiter = Limiter("10/s")
    assert await limiter.try_acquire_async("k", 10)
    assert not await limiter.try_acquire_async("k")
    assert (await limiter.peek_async("k")).remaining == 0
    await limiter.reset_async()
    assert (await limiter.peek_async("k")).remaining == 10
    assert limiter.statistics().rejected["quota"] == 1


async def test_outside_of_a_loop_it_says_so(valkey: Engine) -> None:
    limiter = Limiter("10/s", store=RedisStore(valkey.url))
    assert "10/s configured" in str(limiter.explain("k"))

    def in_a_thread() -> None:
        permit = limiter.acquire("k")
        permit.__await__().send(None)

    with pytest.raises(RuntimeError, match="call it from `async def`"):
        await asyncio.to_thread(in_a_thread)


async def test_reset_of_all_forgets_all_of_this_limiter(store: RedisStore) -> None:
    limiter = Limiter("10/s", "20/min", burst=10, name="odd *[name]?", store=store)
    other = Limiter("10/s", name="other", store=store)
    for key in ("a", "b", "{x}", "*"):
        await limiter.acquire(key, 10)
        await other.acquire(key, 10)
    await limiter.reset_async()
    for key in ("a", "b", "{x}", "*"):
        assert (await limiter.peek_async(key)).remaining == 10
        assert (await other.peek_async(key)).remaining == 0


async def test_a_reset_reaches_other_processes(valkey: Engine, store: RedisStore) -> None:
    async with RedisStore(valkey.url) as there:
        here, other = Limiter("2/h", store=store), Limiter("2/h", store=there)
        await here.acquire("k", 2)
        assert not await other.try_acquire_async("k")
        waiting = asyncio.create_task(other.acquire("k").__aenter__())
        await here.reset_async("k")
        await asyncio.wait_for(waiting, 5)


# --- asking --------------------------------------------------------------------------------


async def test_what_is_asked_in_one_tick_goes_out_together(store: RedisStore) -> None:
    limiter = Limiter("1000/s", store=store)
    await limiter.acquire("k")
    sender = sender_of(limiter)
    before = sender.batches, sender.calls
    await asyncio.gather(*(limiter.acquire(f"key {number}") for number in range(50)))
    assert sender.batches - before[0] <= 2
    assert 50 <= sender.calls - before[1] <= 52
    before = sender.batches, sender.calls
    await asyncio.gather(*(limiter.acquire("hot") for _ in range(500)))
    assert sender.calls - before[1] <= 4, "those who want the same key are one question"


async def test_a_key_that_is_known_to_be_full_is_not_asked_about(store: RedisStore) -> None:
    limiter = Limiter("5/h", store=store)
    await limiter.acquire("k", 5)
    assert not await limiter.try_acquire_async("k")
    sender = sender_of(limiter)
    calls = sender.calls
    refused = [not await limiter.try_acquire_async("k") for _ in range(100)]
    assert all(refused)
    assert sender.calls - calls <= 2
    assert await limiter.try_acquire_async("k", limit=6), "a higher limit is worked out here"


async def test_who_has_only_asked_does_not_count_as_waiting(store: RedisStore) -> None:
    limiter = Limiter("3/h", max_waiters=0, store=store)
    outcomes = await asyncio.gather(
        *(limiter.acquire("k") for _ in range(5)), return_exceptions=True
    )
    assert [type(one) for one in outcomes[3:]] == [QueueFull, QueueFull]
    assert sum(isinstance(one, Exception) for one in outcomes) == 2
    assert limiter.statistics().waiting == 0


async def test_all_rates_of_a_key_are_one_call(store: RedisStore) -> None:
    limiter = Limiter("10/s", "20/min", "30/h", burst=5, store=store)
    await limiter.acquire("k")
    sender = sender_of(limiter)
    calls = sender.calls
    await limiter.acquire("k", 4)
    assert sender.calls - calls <= 2  # one may be a process that tells that it lives
    assert not await limiter.try_acquire_async("k", 2), "the burst is spent"


@pytest.mark.parametrize("when", ["before it is sent", "on its way"])
async def test_credit_of_who_is_gone_goes_to_the_next_or_back(store: RedisStore, when: str) -> None:
    clock = FakeClock()
    limiter = Limiter("3/h", store=store, clock=clock)
    tasks = [asyncio.create_task(limiter.acquire("k").__aenter__()) for _ in range(4)]
    await asyncio.sleep(0)
    if when == "on its way":
        while not sender_of(limiter)._tasks:
            await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[1].cancel()
    await clock.settle()
    assert [task.done() for task in tasks] == [True] * 4
    assert limiter.statistics().cancelled == 2
    assert (await limiter.peek_async("k")).remaining == 1
    for _ in range(3):
        task = asyncio.create_task(limiter.acquire("k").__aenter__())
        await asyncio.sleep(0)
        task.cancel()
        await clock.settle()
    assert (await limiter.peek_async("k")).remaining == 1, "what nobody took has gone back"


async def test_a_waiter_is_let_in_the_moment_there_is_room(store: RedisStore) -> None:
    clock = FakeClock()
    limiter = Limiter("2/s", "3/10s", store=store, clock=clock)
    callers = Callers(limiter, clock)
    for who in range(7):
        callers.call(who, "k")
    await clock.advance(25)
    assert callers.times() == [0.0, 0.0, 1.0, 10.0, 10.0, 11.0, 20.0]
    assert callers.who() == list(range(7))


async def test_what_is_charged_moves_to_new_periods(store: RedisStore) -> None:
    clock = FakeClock()
    limiter = Limiter("10/s", store=store, clock=clock)
    await limiter.acquire("k", 10)
    limiter.update("10/4s")
    await clock.advance(2)
    assert not await limiter.try_acquire_async("k"), "it had left the old period, not the new one"
    await clock.advance(2)
    assert await limiter.try_acquire_async("k", 10)


async def test_with_warm_up_and_a_store(store: RedisStore) -> None:
    clock = FakeClock()
    limiter = Limiter("10/s", warm_up=WarmUp(start=0.5, over=10), store=store, clock=clock)
    passed = [await limiter.try_acquire_async("k") for _ in range(12)]
    assert sum(passed) == 5
    callers = Callers(limiter, clock)
    for who in range(200):
        callers.call(who, "k")
    await clock.advance(12)
    times = [round(at * 1e6) for at in callers.times()]  # as the engine's clock ticks
    assert worst(times, 1_000_000) == 10
    assert callers.who() == sorted(callers.who(), key=int)  # type: ignore[arg-type]


async def test_with_load_control_and_a_store(store: RedisStore) -> None:
    async with LoadController() as load:
        limiter = Limiter("100/s", load=load, store=store)
        async with limiter.acquire("k") as permit:
            assert permit.source == "store"
            assert load.report(limiter._time()).in_flight == 1
        assert load.report(limiter._time()).in_flight == 0


async def test_an_idle_process_forgets_the_keys(store: RedisStore) -> None:
    clock = FakeClock()
    limiter = Limiter("10/s", store=store, clock=clock)
    for number in range(50):
        await limiter.acquire(number)
    assert len(limiter) == 50
    await clock.advance(5)
    assert len(limiter) == 0
    shared: Any = limiter._admission
    assert shared.shared.local.keys() == []


# --- leases --------------------------------------------------------------------------------


async def test_a_lease_is_spent_without_asking_and_goes_back(store: RedisStore) -> None:
    store.lease = 0.1
    clock = FakeClock()
    limiter = Limiter("1000/s", store=store, clock=clock)
    await limiter.acquire("k")
    sender = sender_of(limiter)
    await clock.settle()
    calls = sender.calls
    for _ in range(99):
        await limiter.acquire("k")
    assert sender.calls - calls <= 2
    assert limiter.statistics().admitted == 100
    shared: Any = limiter._admission
    assert shared.shared.credits.of("k").credit == 1
    await clock.advance(0.2)  # more than a tenth of the window
    assert shared.shared.credits.of("k") is None
    assert (await limiter.peek_async("k")).remaining == 900


async def test_a_lease_goes_back_when_the_store_is_closed(
    valkey: Engine, store: RedisStore
) -> None:
    async with RedisStore(valkey.url, lease=0.5) as leasing:
        limiter = Limiter("100/h", store=leasing)
        await limiter.acquire("k")
        other = Limiter("100/h", store=store)
        assert (await other.peek_async("k")).remaining == 49
    assert (await other.peek_async("k")).remaining == 99


async def test_a_small_limit_is_not_leased(store: RedisStore) -> None:
    store.lease = 0.1
    limiter = Limiter("10/s", store=store)
    await limiter.acquire("k")
    assert (await limiter.peek_async("k")).remaining == 9


# --- what is told --------------------------------------------------------------------------


async def test_a_service_tells_what_is_left_in_the_store(store: RedisStore) -> None:
    app = Starlette(routes=[Route("/", lambda _request: PlainTextResponse("well"))])
    limited = RateLimitMiddleware(app, limiter=Limiter("3/min", name="web", store=store))
    transport = httpx2.ASGITransport(limited)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        answers = [await client.get("/") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    told = [answer.headers["ratelimit"] for answer in answers]
    assert told[0].startswith('"web";r=2;t=')
    assert told[2].startswith('"web";r=0;t=')
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 60


async def test_a_service_answers_503_where_nobody_can_tell(valkey: Engine) -> None:
    app = Starlette(routes=[Route("/", lambda _request: PlainTextResponse("well"))])
    gone = RedisStore("redis://127.0.0.1:1", on_store_error="closed")
    limiter = Limiter("3/min", name="web", store=gone)
    limited = RateLimitMiddleware(app, limiter=limiter)
    transport = httpx2.ASGITransport(limited)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.get("/")
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["type"].endswith("temporary-reduced-capacity")
    with pytest.raises(StoreUnavailable) as caught:
        await limiter.acquire("k")
    assert caught.value.source == "closed"
    assert limiter.statistics().rejected["store_unavailable"] == 2
    await gone.aclose()


async def test_metrics_count_decisions_by_their_source(store: RedisStore) -> None:
    limiter = Limiter("3/h", name="told", store=store)
    alone = Limiter("3/h", name="alone")
    registry = CollectorRegistry()
    metrics.register(limiter, alone, registry=registry)
    for _ in range(5):
        await limiter.try_acquire_async("k")
        alone.try_acquire("k")

    def value(limiter: str, source: str) -> float | None:
        labels = {"limiter": limiter, "source": source}
        return registry.get_sample_value("aiolimit_decisions_total", labels)

    assert (value("told", "store"), value("told", "local")) == (5, 0)
    assert value("alone", "local") == 5
    assert registry.get_sample_value("aiolimit_store_up", {"limiter": "told"}) == 1


async def test_an_error_says_where_it_comes_from(store: RedisStore) -> None:
    limiter = Limiter("1/h", store=store)
    await limiter.acquire("k")
    with pytest.raises(RateLimited) as caught:
        await limiter.acquire("k", max_wait=0)
    assert caught.value.source == "store"
    assert caught.value.reason == "quota"
    assert caught.value.retry_after == pytest.approx(3600, abs=10)
    with pytest.raises(RateLimited) as alone:
        one = Limiter("1/h")
        await one.acquire("k")
        await one.acquire("k", max_wait=0)
    assert alone.value.source == "local"


async def test_who_is_near_a_limit_is_counted(store: RedisStore) -> None:
    limiter, alone = Limiter("100/h", "500/d", store=store), Limiter("100/h", "500/d")
    for cost in (1, 79, 1, 3):
        await limiter.acquire("k", cost)
        await alone.acquire("k", cost)
    assert limiter.statistics().near_limit == alone.statistics().near_limit == 2
    await asyncio.gather(*(limiter.acquire("k") for _ in range(10)))
    await asyncio.gather(*(limiter.acquire("many") for _ in range(95)))
    assert limiter.statistics().near_limit == 2 + 10 + 15, "each caller of one call"


async def test_a_key_that_somebody_always_asks_for_leaves_nothing_behind(
    store: RedisStore,
) -> None:
    limiter = Limiter("1000000/h", store=store)

    async def ask() -> None:
        for _ in range(20):
            await limiter.acquire("k")

    callers = [asyncio.create_task(ask()) for _ in range(600)]  # more than go in one tick
    while limiter.statistics().admitted < 8000:
        await asyncio.sleep(0)
    gc.collect()
    assert sum(type(one) is Waiter for one in gc.get_objects()) <= 600
    await asyncio.gather(*callers)


async def test_while_one_batch_is_answered_the_engine_has_another(store: RedisStore) -> None:
    limiter = Limiter("1000000/h", store=store)
    await limiter.acquire("k")
    sender = sender_of(limiter)
    before = sender.batches, sender.calls
    calls = [asyncio.create_task(limiter.acquire(str(key)).__aenter__()) for key in range(300)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (sender.batches - before[0], sender.calls - before[1]) == (2, 256)
    await asyncio.gather(*calls)
    assert (sender.batches - before[0], sender.calls - before[1]) == (3, 300)


# --- other rates meanwhile -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("10/s", "20/min"), ("10/s",)),
        (("10/s",), ("10/s", "20/min")),
        (("10/s",), ("10/min",)),
        (("10/s",), ("20/s",)),
    ],
)
async def test_other_rates_while_an_answer_is_on_its_way(
    store: RedisStore, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    limiter = Limiter(*before, store=store)
    sender = sender_of(limiter)
    await limiter.acquire("k")
    batches = sender.batches
    calls = [asyncio.create_task(limiter.acquire("k").__aenter__()) for _ in range(3)]
    while sender.batches == batches:
        await asyncio.sleep(0)
    limiter.update(*after)
    permits = await asyncio.wait_for(asyncio.gather(*calls), 5)
    left = 20 if after == ("20/s",) else 10
    assert (await limiter.peek_async("k")).remaining == left - 4
    permits[0].cancel()
    permits[1].adjust(3)
    assert (await limiter.peek_async("k")).remaining == left - 5


async def test_one_rate_less_while_an_answer_about_the_other_is_on_its_way(
    store: RedisStore,
) -> None:
    limiter = Limiter("10/s", "20/min", store=store)
    sender = sender_of(limiter)
    await limiter.acquire("k")
    batches = sender.batches
    call = asyncio.create_task(limiter.acquire("k", limit=(5, UNLIMITED)).__aenter__())
    while sender.batches == batches:
        await asyncio.sleep(0)
    limiter.update("20/min")
    await asyncio.wait_for(call, 5)
    assert (await limiter.peek_async("k")).remaining == 18, "it is asked about once more"


async def test_other_rates_while_a_key_is_looked_at(store: RedisStore) -> None:
    limiter = Limiter("10/s", store=store)
    await limiter.acquire("k")
    looking = [asyncio.create_task(limiter.peek_async("k", limit=one)) for one in (None, 5)]
    await asyncio.sleep(0)
    limiter.update("10/s", "20/min")
    assert [(await one).remaining for one in looking] == [9, 9]


async def test_other_rates_while_credit_is_held_ahead(valkey: Engine) -> None:
    async with RedisStore(valkey.url, prefix="ahead:", timeout=5, lease=0.5) as store:
        limiter = Limiter("20/min", store=store, clock=FakeClock())
        await limiter.acquire("k")
        limiter.update("20/min", "30/h")
        await limiter.acquire("k")
        limiter.update("30/h")
        async with asyncio.timeout(5):
            await limiter.acquire("k")
            while (await limiter.peek_async("k")).remaining < 27 - 15:
                await asyncio.sleep(0.01)


async def passed(limiter: Limiter, most: int, key: str = "k") -> int:
    return sum([await limiter.try_acquire_async(key) for _ in range(most)])


@pytest.mark.parametrize(
    "steps",
    [
        [("10/min", 5), ("10/30s", 9), ("10/min", 9)],
        [("10/min", 9), ("10/30s", 0), ("10/40s", 9)],
        [("10/min", 5), ("10/30s", 3), ("10/40s", 9), ("10/min", 9), ("10/30s", 9)],
        [("10/min", 5), ("20/h", 9), ("10/min", 9)],
    ],
)
async def test_periods_that_change_again_and_again(
    store: RedisStore, steps: list[tuple[str, int]]
) -> None:
    """As in one process, whoever asks first for the key: nothing that counts is forgotten."""
    clock = FakeClock()
    limiter = Limiter(steps[0][0], store=store, clock=clock)
    alone = Limiter(steps[0][0], clock=clock)
    for rate, calls in steps:
        limiter.update(rate)
        alone.update(rate)
        for _ in range(calls):
            assert await limiter.try_acquire_async("k") == alone.try_acquire("k"), rate
    await clock.advance(45)
    assert await passed(limiter, 20) == sum(alone.try_acquire("k") for _ in range(20))


async def test_what_is_given_back_after_other_periods(store: RedisStore) -> None:
    limiter = Limiter("10/min", store=store, clock=FakeClock())
    first = [await limiter.acquire("k") for _ in range(5)]
    limiter.update("10/30s")
    second = [await limiter.acquire("k") for _ in range(5)]
    limiter.update("10/min")
    first[0].cancel()
    second[0].cancel()
    assert (await limiter.peek_async("k")).remaining == 2


async def test_reset_forgets_other_periods_too(store: RedisStore) -> None:
    limiter = Limiter("10/min", store=store)
    await limiter.acquire("k", 10)
    limiter.update("10/h")
    await limiter.reset_async("k")
    assert (await limiter.peek_async("k")).remaining == 10


async def test_a_look_without_a_limit_forgets_nothing(store: RedisStore) -> None:
    limiter = Limiter("10/min", store=store)
    await limiter.acquire("k", 9)
    await limiter.peek_async("k", limit=UNLIMITED)
    assert "1 of 10 left" in str(limiter.explain("k"))


async def test_leases_that_nobody_spent_are_near_nothing(valkey: Engine) -> None:
    async with RedisStore(valkey.url, prefix="near:", timeout=5, lease=0.3) as store:
        limiter = Limiter("100/h", store=store, clock=FakeClock())
        for _ in range(31):
            await limiter.acquire("k", max_wait=0)
        near = limiter.statistics().near_limit
        assert near <= 31
        await limiter.acquire("other", 79)
        assert limiter.statistics().near_limit == near
