"""What a limiter does while its engine is slow, gone or out of its mind. Every fault is real."""

import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, cast

import pytest
import redis

from aiolimit import Limiter, Permit, RateLimited
from aiolimit.clock import LoopClock
from aiolimit.errors import Source, StoreError, StoreUnavailable
from aiolimit.rate import Rate
from aiolimit.redis import RedisStore
from aiolimit.shared.admission import SharedAdmission
from aiolimit.shared.breaker import Breaker
from aiolimit.shared.local import LocalShare
from aiolimit.shared.script import _ENTRY, _STATE, Call, Shape
from aiolimit.shared.sender import Batch, Sender
from aiolimit.shared.sharing import Policy
from tests.engines import Engine, engine, redis_server
from tests.support import worst

TIMEOUT = 0.2  # seconds that the engine has
PATIENT = 2.0  # the same where nobody waits for it: a busy machine is not to be taken for a fault
SLACK = 0.15  # seconds that a busy machine may take to get round to something
#: Of a second: the engine tells the time by a clock that is slewed, in whole microseconds.
ALMOST = 0.999


@pytest.fixture
def server() -> Iterator[Engine]:
    with engine() as one:
        yield one


class Stores:
    """Makes limiters, each with a store of its own, as a process of its own would have it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.open: list[RedisStore] = []

    def limiter(
        self,
        *rates: str,
        policy: Policy = "local",
        processes: int | None = None,
        timeout: float = TIMEOUT,
        **options: Any,
    ) -> Limiter:
        store = RedisStore(self.url, timeout=timeout, on_store_error=policy, processes=processes)
        self.open.append(store)
        return Limiter(*rates, store=store, **options)

    async def connected(self, *rates: str, **options: Any) -> Limiter:
        """One that the engine has answered: what comes first takes longest."""
        made = self.limiter(*rates, **options)
        async with asyncio.timeout(10):
            while await outcome(made.acquire("first", max_wait=0)) != "store":
                await asyncio.sleep(0.05)
        return made


@pytest.fixture
async def stores(server: Engine) -> AsyncIterator[Stores]:
    made = Stores(server.url)
    yield made
    async with asyncio.timeout(5):  # whatever state the engine was left in
        for store in made.open:
            await store.aclose()


@pytest.fixture(autouse=True)
def nothing_crashes(
    caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> Iterator[None]:
    """What is raised where nobody sees it, the loop logs."""
    yield
    crashed = [record for record in caplog.get_records("call") if record.name == "asyncio"]
    assert not crashed, [(record.getMessage(), record.exc_info) for record in crashed]


def told(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    """Lines of the log that say so."""
    records = [record for record in caplog.records if record.name == "aiolimit"]
    return [line for record in records if text in (line := record.getMessage())]


OPENED, CLOSED = "is not asked for now", "answers again"


def shared(limiter: Limiter) -> SharedAdmission:
    return cast(SharedAdmission, limiter._admission)


def sender(limiter: Limiter) -> Sender:
    return shared(limiter).sharing.sender("")


def is_open(limiter: Limiter) -> bool:
    return sender(limiter).breaker.is_open


def is_settled(limiter: Limiter) -> bool:
    """Whether the engine answers, and has been told everything."""
    return not is_open(limiter) and not shared(limiter).sharing.is_busy()


async def until(condition: Callable[[], object], seconds: float = 15) -> None:
    """Wait for it, not for a time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.005)


async def until_open(*limiters: Limiter) -> None:
    """Ask for what nobody else wants until the breaker has opened."""

    async def ask(limiter: Limiter) -> None:
        while not is_open(limiter):
            with contextlib.suppress(RateLimited, StoreError):
                await limiter.acquire("nobody's", max_wait=0)

    async with asyncio.timeout(10):
        await asyncio.gather(*map(ask, limiters))


async def until_settled(*limiters: Limiter) -> None:
    await until(lambda: all(map(is_settled, limiters)))


async def left(stores: Stores, *rates: str, key: str, name: str = "default") -> float:
    """What the engine says is left, to one that knows nothing itself."""
    return (await stores.limiter(*rates, name=name, timeout=PATIENT).peek_async(key)).remaining


def engine_time() -> float:
    """What is taken from the engine's time to have this process's."""
    return time.time() - time.monotonic()


def when(permit: Permit) -> float:
    """When it was charged: by the engine's clock where the engine did it."""
    engines = getattr(permit._at, "engine", None)
    assert permit._at is not None
    return permit._at if engines is None else engines / 1e6 - engine_time()


# --- an engine that goes, and comes back ---------------------------------------------------


class Asked:
    """One call that may not wait, and what became of it."""

    def __init__(self, began: float, permit: Permit | None) -> None:
        self.began, self.took = began, time.monotonic() - began
        self.permit = permit
        self.source: Source | None = None if permit is None else permit.source
        self.at = 0.0 if permit is None else when(permit)


@pytest.mark.parametrize(("binary", "how"), [("valkey", "kill"), ("redis", "freeze")])
async def test_two_processes_go_on_with_a_half_each_while_the_engine_is_away(
    binary: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    with engine(redis_server() if binary == "redis" else None) as server:
        stores = Stores(server.url)
        limiters = [stores.limiter("50/s", name="api") for _ in range(2)]
        asked: list[list[Asked]] = [[], []]
        stops = asyncio.Event()

        async def call(limiter: Limiter, calls: list[Asked]) -> None:
            while not stops.is_set():
                began = time.monotonic()
                permit = None
                with contextlib.suppress(RateLimited):  # and nothing else
                    permit = await limiter.acquire("k", max_wait=0)
                calls.append(Asked(began, permit))
                await asyncio.sleep(0.004)

        def refused_since(limiter_at: int, start: float) -> bool:
            last = asked[limiter_at][-1]
            return last.began > start and last.permit is None

        tasks = [
            asyncio.create_task(call(limiter, calls))
            for limiter, calls in zip(limiters, asked, strict=True)
            for _ in range(4)
        ]
        await until(lambda: all(shared(one).sharing.processes == 2 for one in limiters))
        # Both have heard that the limit is used up: what one was granted in the instant before,
        # the other could not know.
        start = time.monotonic()
        await until(lambda: refused_since(0, start) and refused_since(1, start))
        down = time.monotonic()
        server.kill() if how == "kill" else server.freeze()
        await until(lambda: all(map(is_open, limiters)))
        opened = time.monotonic()
        await asyncio.sleep(1.1)  # a window of the outage, to look at
        up = time.monotonic()
        if how == "kill":
            await asyncio.to_thread(server.start)
        else:
            server.thaw()
        await until(lambda: not any(map(is_open, limiters)))
        back = time.monotonic()
        await asyncio.sleep(1.1)  # and one afterwards
        stops.set()
        await asyncio.gather(*tasks)
        for store in stores.open:
            await store.aclose()

    for calls in asked:
        local = [one.at for one in calls if one.source == "local"]
        assert 25 <= len(local)
        assert worst(local, ALMOST) <= 25
        assert {one.source for one in calls if one.permit and one.at < down} == {"store"}
        assert {one.source for one in calls if one.permit and one.began > back} == {"store"}
        away = [one for one in calls if opened < one.began and one.began + one.took < up]
        assert {one.source for one in away if one.permit} <= {"local"}
        assert statistics.median(one.took for one in away) < TIMEOUT / 20
        assert max(one.took for one in away) < TIMEOUT
        before = [one.took for one in calls if down < one.began < opened]
        assert max(before) < TIMEOUT + SLACK, "nobody waits for two deadlines"
    passed = [one.at for calls in asked for one in calls if one.permit]
    assert worst(passed, ALMOST) <= 50
    assert len(told(caplog, OPENED)) == 2
    assert len(told(caplog, CLOSED)) == 2


async def test_who_waits_goes_on_with_the_share_of_this_process_in_order(
    server: Engine, stores: Stores
) -> None:
    limiter = stores.limiter("20/500ms", processes=2)
    went: list[tuple[int, float, Source]] = []

    async def call(number: int) -> None:
        permit = await limiter.acquire("k")
        went.append((number, when(permit), permit.source))

    tasks = [asyncio.create_task(call(number)) for number in range(90)]
    await until(lambda: len(went) >= 20)
    server.freeze()
    await until_open(limiter)
    begun = len(went)
    await until(lambda: len(went) >= begun + 20)
    server.thaw()
    await until(lambda: not is_open(limiter))
    assert len(went) < 80
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks)
    assert [number for number, _, _ in went] == list(range(90))
    sources = [source for _, _, source in went]
    first, last = sources.index("local"), len(sources) - sources[::-1].index("local")
    assert first >= 20
    assert last < 90
    assert set(sources[:first]) == {"store"} == set(sources[last:])
    assert set(sources[first:last]) == {"local"}
    assert worst([at for _, at, source in went if source == "local"], ALMOST / 2) <= 10
    assert worst([at for _, at, _ in went], ALMOST / 2) <= 20
    assert limiter.statistics().waiting == 0


async def test_an_engine_that_was_never_there(stores: Stores, server: Engine) -> None:
    server.kill()
    limiter = stores.limiter("10/min", processes=2, timeout=PATIENT)
    permits = [await limiter.acquire("k", max_wait=0) for _ in range(5)]
    assert {permit.source for permit in permits} == {"local"}
    with pytest.raises(RateLimited) as refused:
        await limiter.acquire("k", max_wait=0)
    assert refused.value.source == "local"
    assert is_open(limiter)


# --- the policies --------------------------------------------------------------------------

POLICIES: list[Policy] = ["local", "open", "closed", "raise"]


async def outcome(call: Permit) -> Source | Exception:
    """Where it was decided that it may pass; or what it raised."""
    try:
        return (await call).source
    except Exception as error:  # noqa: BLE001 (it is what the test looks at)
        return error


def check_outcome(policy: Policy, found: Source | Exception) -> None:
    if policy in ("local", "open"):
        assert found == policy
    elif policy == "closed":
        assert isinstance(found, StoreUnavailable)
        assert found.reason == "store_unavailable"
        assert found.source == "closed"
        assert found.retry_after is not None
        assert found.retry_after > 0
    else:
        assert isinstance(found, StoreError)


async def by_policy(stores: Stores, rate: str, timeout: float = TIMEOUT) -> dict[Policy, Limiter]:
    """A limiter for each, connected, and far from its limit."""
    return {
        policy: await stores.connected(rate, policy=policy, name=policy, timeout=timeout)
        for policy in POLICIES
    }


async def test_the_policy_decides_of_callers_whose_batch_fails(
    server: Engine, stores: Stores
) -> None:
    limiters = await by_policy(stores, "1000/min")
    server.freeze()
    assert not any(map(is_open, limiters.values()))
    for max_wait in (None, 0):
        calls = [outcome(one.acquire("k", max_wait=max_wait)) for one in limiters.values()]
        for policy, found in zip(limiters, await asyncio.gather(*calls), strict=True):
            check_outcome(policy, found)
    assert limiters["closed"].statistics().rejected["store_unavailable"] == 2
    server.thaw()


async def test_an_error_of_the_store_tells_its_cause(server: Engine, stores: Stores) -> None:
    limiter = await stores.connected("1000/min", policy="raise")
    server.freeze()
    assert not is_open(limiter)
    with pytest.raises(StoreError) as raised:
        await limiter.acquire("k")
    server.thaw()
    assert isinstance(raised.value.__cause__, Exception)


async def test_the_policy_decides_of_callers_who_come_while_the_breaker_is_open(
    server: Engine, stores: Stores
) -> None:
    limiters = await by_policy(stores, "1000/min")
    server.freeze()
    await until_open(*limiters.values())
    for policy, limiter in limiters.items():
        refused = limiter.statistics().rejected["store_unavailable"]
        decided = dict(shared(limiter).tally.sources)
        began = time.monotonic()
        for max_wait in (None, 0, 5):
            check_outcome(policy, await outcome(limiter.acquire("k", max_wait=max_wait)))
        assert time.monotonic() - began < TIMEOUT, "nobody waits for the engine"
        more = {
            source: count - decided[source]
            for source, count in shared(limiter).tally.sources.items()
            if count != decided[source]
        }
        if policy != "raise":
            assert more == {policy: 3}
        if policy == "closed":
            assert limiter.statistics().rejected["store_unavailable"] == refused + 3
        else:
            assert limiter.statistics().rejected["store_unavailable"] == 0
    server.thaw()
    await until_settled(*limiters.values())
    for limiter in limiters.values():
        assert (await limiter.acquire("k")).source == "store"


@pytest.mark.parametrize("opens_first", [True, False])
async def test_the_policy_decides_of_callers_who_wait(
    server: Engine, stores: Stores, opens_first: bool
) -> None:
    """Also of those who wait when others find out that the engine is silent."""
    limiters = await by_policy(stores, "4/800ms")
    tasks: dict[Policy, list[asyncio.Task[Source | Exception]]] = {}
    for policy, limiter in limiters.items():
        for _ in range(4):
            await limiter.acquire("full")
        tasks[policy] = [asyncio.create_task(outcome(limiter.acquire("full"))) for _ in range(3)]
    await until(lambda: all(one.statistics().waiting == 3 for one in limiters.values()))
    server.freeze()
    if opens_first:
        await until_open(*limiters.values())
    for policy, limiter in limiters.items():  # and one who comes behind them
        tasks[policy].append(asyncio.create_task(outcome(limiter.acquire("full"))))
    everybody = [task for waiting in tasks.values() for task in waiting]
    _, late = await asyncio.wait(everybody, timeout=2)
    lost = [policy for policy, waiting in tasks.items() if late & set(waiting)]
    server.thaw()
    for policy, waiting in tasks.items():
        for task in waiting:
            if task not in late:
                check_outcome(policy, task.result())
    async with asyncio.timeout(10):
        await asyncio.gather(*everybody)
    assert not lost, "they waited for as long as the engine was silent"
    assert all(limiter.statistics().waiting == 0 for limiter in limiters.values())
    assert limiters["closed"].statistics().rejected["store_unavailable"] >= 3


# --- the breaker ---------------------------------------------------------------------------


def test_the_breaker_opens_after_three_failures_in_a_row() -> None:
    breaker = Breaker()
    assert not breaker.failed(1.0, 0.5)
    assert not breaker.failed(2.0, 0.5)
    assert not breaker.succeeded(), "it was not open"
    assert not breaker.failed(3.0, 0.5)
    assert not breaker.failed(4.0, 0.5)
    assert not breaker.is_open
    assert breaker.failed(5.0, 0.5)
    assert breaker.is_open
    assert not breaker.failed(5.1, 0.5), "it was open already"
    assert breaker.succeeded()
    assert not breaker.is_open
    assert not breaker.failed(6.0, 0.5), "the count starts anew"


@pytest.mark.parametrize("jitter", [0.0, 0.4, 1.0])
def test_pauses_between_tries_double_up_to_ten_seconds(jitter: float) -> None:
    breaker = Breaker()
    for _ in range(2):  # the second time, after a success, from the beginning
        now = 100.0
        for _ in range(3):
            breaker.failed(now, jitter)
        pauses = []
        for _ in range(8):
            pauses.append(breaker.retry_at - now)
            now = breaker.retry_at
            breaker.failed(now, jitter)
        expected = [0.5, 1, 2, 4, 8, 10, 10, 10]
        assert pauses == pytest.approx([pause * (1 + jitter / 4) for pause in expected])
        breaker.succeeded()


class Take:
    """One call for a key, for nobody."""

    keeps = False
    rate = Rate(1000, 60.0)
    shape = Shape([b":raw"], [rate], (rate.limit,), 32, None)

    def __init__(self, *, leads: bool = False) -> None:
        self.leads = leads
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def compose(self) -> Call:
        return self.shape.take(b"raw:{k}", None, [(1, 1)])

    def answer(self, raw: bytes) -> None:
        self.ended.set_result(True)

    def fail(self, error: Exception) -> None:
        self.ended.set_result(False)


async def test_what_is_told_of_a_key_goes_with_whoever_asks_for_it() -> None:
    batches: list[int] = []

    async def run(calls: Sequence[Call], _batch: Batch) -> list[bytes]:
        batches.append(len(calls))
        return [b""] * len(calls)

    silence, recovery = lambda: None, lambda _: None
    sender = Sender("", run, PATIENT, LoopClock(), Breaker(), silence, recovery)
    jobs = [Take(leads=number % 2 == 0) for number in range(510)]
    sender.put(Take())  # so that a batch would end between two that belong together
    for job in jobs:
        sender.put(job)
    await asyncio.gather(*(job.ended for job in jobs))
    assert batches == [129, 128, 128, 126]


async def test_three_failed_batches_in_a_row_open_it_and_a_success_between_starts_anew(
    server: Engine,
) -> None:
    async with RedisStore(server.url, timeout=TIMEOUT) as store:
        sender = store.admission("raw", shadow=False).keywords["sharing"].link().only  # type: ignore[attr-defined]
        assert isinstance(sender, Sender)

        async def ask() -> bool:
            job = Take()
            sender.put(job)
            return await job.ended

        assert await ask()
        server.freeze()
        assert [await ask(), await ask()] == [False, False]
        server.thaw()
        assert await ask()
        server.freeze()
        assert [await ask(), await ask()] == [False, False]
        assert not sender.breaker.is_open
        assert not await ask()
        assert sender.breaker.is_open
        server.thaw()
        await until(lambda: not sender.breaker.is_open)
        assert await ask()


async def test_nothing_is_sent_while_it_is_open_but_a_try_now_and_then(
    server: Engine, stores: Stores
) -> None:
    limiter = await stores.connected("100000/min", processes=2)
    with server.client() as client:
        server.freeze()
        await until_open(limiter)
        batches, calls = sender(limiter).batches, sender(limiter).calls
        opened = time.monotonic()
        while time.monotonic() < opened + 1:  # there is one try in this time
            for number in range(20):
                assert (await limiter.acquire(number)).source == "local"
            await asyncio.sleep(0.001)
        assert (sender(limiter).batches, sender(limiter).calls) == (batches, calls)
        server.thaw()
        run = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
        connections = client.info("stats")["total_connections_received"]
    # One for each batch, and the tries; each may have found its connection closed.
    assert run <= batches + 2
    assert connections <= batches + 4


# --- an engine that answers nonsense -------------------------------------------------------


async def test_nobody_notices_that_scripts_were_flushed(
    server: Engine, stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = stores.limiter("1000/min", timeout=PATIENT)
    with server.client() as client:
        for _ in range(20):
            assert (await limiter.acquire("k")).source == "store"
            client.script_flush()
        for _ in range(5):
            calls = [asyncio.ensure_future(outcome(limiter.acquire(n))) for n in range(300)]
            await asyncio.sleep(0)
            client.script_flush()
            assert set(await asyncio.gather(*calls)) == {"store"}
    assert await left(stores, "1000/min", key="k") == 980
    observer = stores.limiter("1000/min", timeout=PATIENT)
    for number in (0, 64, 200, 299):
        peeked = await observer.peek_async(number)
        assert peeked.remaining == 995, "each was counted once"
    assert not caplog.records


async def test_an_engine_without_memory(
    server: Engine, stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    limiters = await by_policy(stores, "1000/min", PATIENT)
    with server.client() as client:
        client.config_set("maxmemory", 1)
        began = time.monotonic()
        number = 0
        while time.monotonic() < began + 0.8:  # it is tried once in this time
            for policy, limiter in limiters.items():
                call = limiter.acquire(f"k{number % 10}", max_wait=0)
                check_outcome(policy, await outcome(call))
            number += 1
            await asyncio.sleep(0.005)
        assert len(told(caplog, OPENED)) == len(limiters)
        assert not told(caplog, CLOSED)
        client.config_set("maxmemory", 0)
    await until_settled(*limiters.values())
    for limiter in limiters.values():
        assert (await limiter.acquire("k")).source == "store"
    assert len(told(caplog, CLOSED)) == len(limiters)
    assert len(told(caplog, "")) < 10 * len(limiters), "a log is to be read"


@pytest.mark.parametrize("binary", ["valkey", "redis"])
async def test_an_endless_script_and_its_end(binary: str, caplog: pytest.LogCaptureFixture) -> None:
    options = ("--busy-reply-threshold", "100")
    with engine(redis_server() if binary == "redis" else None, *options) as server:
        stores = Stores(server.url)
        limiter = stores.limiter("1000/min", processes=2, timeout=PATIENT)
        assert (await limiter.acquire("k")).source == "store"

        def run() -> None:
            with server.client() as client, contextlib.suppress(redis.exceptions.ResponseError):
                client.eval("while true do end", 0)

        script = asyncio.create_task(asyncio.to_thread(run))
        with server.client() as client:

            def is_busy() -> bool:
                try:
                    client.ping()
                except redis.exceptions.ResponseError as error:
                    return "BUSY" in str(error)
                return False

            await until(is_busy)
            for _ in range(5):
                assert (await limiter.acquire("k", max_wait=0)).source == "local"
            await until_open(limiter)
            assert (await limiter.acquire("k", max_wait=0)).source == "local"
            client.script_kill()
        await script
        await until_settled(limiter)
        assert (await limiter.acquire("k", max_wait=0)).source == "store"
        assert len(told(caplog, OPENED)) == len(told(caplog, CLOSED)) == 1
        assert await left(stores, "1000/min", key="k") == 1000 - 1 - 6 - 1
        for store in stores.open:
            await store.aclose()


KEY = "aiolimit:default:{k}:s:32"
HEAD, ENTRY = _STATE.size, _ENTRY.size  # of what is kept of a window
FOREIGN: dict[str, Callable[[Any], object]] = {
    "a list": lambda client: client.lpush(KEY, "x"),
    "a word": lambda client: client.set(KEY, b"xyz"),
    "nothing": lambda client: client.set(KEY, b""),
    "a head too short": lambda client: client.set(KEY, b"\0" * (HEAD - 1)),
    "no numbers": lambda client: client.set(KEY, b"\xff" * HEAD),
    "no entries": lambda client: client.set(KEY, b"\xff" * (HEAD + 2 * ENTRY)),
    "half an entry": lambda client: client.set(KEY, b"\0" * (HEAD + 5)),
    "noughts": lambda client: client.set(KEY, b"\0" * (HEAD + ENTRY)),
    "letters": lambda client: client.set(KEY, b"x" * HEAD),
    "infinities": lambda client: client.set(KEY, b"\0\0\0\0\0\0\xf0\x7f" * (HEAD // 8)),
    "minus infinities": lambda client: client.set(KEY, b"\0\0\0\0\0\0\xf0\xff" * (HEAD // 8)),
    "ones": lambda client: client.set(KEY, b"\0\0\0\0\0\0\xf0\x3f" * (HEAD // 8 + 20)),
    "one and a half": lambda client: client.set(KEY, b"\0\0\0\0\0\0\xf8\x3f" * (HEAD // 8 + 1)),
}


@pytest.mark.parametrize("what", FOREIGN)
async def test_a_foreign_value_at_one_key_is_the_matter_of_that_key(
    server: Engine, stores: Stores, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = stores.limiter("5/s", processes=1, timeout=PATIENT)
    with server.client() as client:
        FOREIGN[what](client)
        for number in range(10):  # one after the other, so each is a batch of its own
            async with asyncio.timeout(1):
                with contextlib.suppress(RateLimited):
                    await limiter.acquire("k", max_wait=0)
                await limiter.peek_async("k")
            assert not is_open(limiter), f"{number + 1} calls for that key"
        calls = [outcome(limiter.acquire(key, max_wait=0)) for key in ("k", "a", "b")]
        async with asyncio.timeout(1):
            _, *others = await asyncio.gather(*calls)
        assert others == ["store", "store"]
        assert not told(caplog, OPENED)
        client.delete(KEY)
    async with asyncio.timeout(5):
        while await outcome(limiter.acquire("k", max_wait=0)) != "store":
            await asyncio.sleep(0.05)


async def test_a_foreign_value_is_decided_by_policy(server: Engine, stores: Stores) -> None:
    limiters = await by_policy(stores, "1000/min", PATIENT)
    with server.client() as client:
        for policy, limiter in limiters.items():
            client.lpush(f"aiolimit:{policy}:{{k}}:min:32", "x")
            # With another key in the batch, which can be answered.
            calls = [outcome(limiter.acquire(key)) for key in ("other", "k")]
            other, found = await asyncio.gather(*calls)
            assert other == "store"
            check_outcome(policy, found)
            assert not is_open(limiter)


async def test_who_waits_for_a_key_with_a_foreign_value_goes_on_by_the_share_of_this_process(
    server: Engine, stores: Stores
) -> None:
    limiter = await stores.connected("5/200ms", processes=1, timeout=PATIENT)
    with server.client() as client:
        client.lpush("aiolimit:default:{k}:200ms:32", "x")
    batches = sender(limiter).batches
    async with asyncio.timeout(5):
        found = await asyncio.gather(*[outcome(limiter.acquire("k")) for _ in range(12)])
    assert found == ["local"] * 12
    assert not is_open(limiter)
    assert sender(limiter).batches - batches < 30, "it is not asked over and over again"


async def test_an_engine_whose_breaker_a_foreign_value_has_opened_comes_back(
    server: Engine, stores: Stores
) -> None:
    """The try must not be about the very key that cannot be answered."""
    limiter = await stores.connected("1000/min", processes=1)
    with server.client() as client:
        client.lpush("aiolimit:default:{k}:min:32", "x")
        server.freeze()
        while not is_open(limiter):
            await limiter.acquire("k")
        server.thaw()
        await until(lambda: not is_open(limiter), 3)
        assert (await limiter.acquire("other")).source == "store"


# --- nothing is sent twice, nothing is forgotten -------------------------------------------


async def test_a_call_that_timed_out_is_never_sent_again(server: Engine, stores: Stores) -> None:
    limiter = await stores.connected("1000/min", processes=1)
    observer = stores.limiter("1000/min", timeout=PATIENT)
    await observer.peek_async("k")
    server.freeze()
    assert (await limiter.acquire("k")).source == "local"
    server.thaw()
    # What is sent now comes after all that waits in its sockets, as it is one thread.
    with server.client() as client:
        assert client.ping()
    await until(lambda: not shared(limiter).sharing.is_busy())
    assert (await limiter.acquire("other")).source == "store"
    assert (await observer.peek_async("k")).remaining in (999, 1000)
    assert (await limiter.acquire("k")).source == "store"
    assert (await observer.peek_async("k")).remaining in (998, 999)


@pytest.mark.parametrize("how", ["freeze", "kill"])
async def test_what_passed_without_the_engine_is_charged_where_it_happened(
    server: Engine, stores: Stores, how: str
) -> None:
    limiter = await stores.connected("40/2s", processes=2)
    for _ in range(5):
        await limiter.acquire("k")
    if how == "freeze":
        server.freeze()
    else:
        server.kill()
    await until_open(limiter)
    for _ in range(7):
        passed = time.monotonic()
        assert (await limiter.acquire("k", max_wait=0)).source == "local"
    if how == "freeze":
        server.thaw()
    else:
        await asyncio.to_thread(server.start)
    await until_settled(limiter)
    observer = stores.limiter("40/2s", timeout=PATIENT)
    seen = await observer.peek_async("k")
    since = time.monotonic() - passed
    assert since < 2, "too slow a machine to see it"
    assert seen.remaining == 40 - 5 - 7
    # Not when it was told.
    assert seen.reset_after < 2 - since / 2
    while (seen := await observer.peek_async("k")).remaining < 40:
        await asyncio.sleep(0.01)
    assert 2 * ALMOST < time.monotonic() - passed < 3


async def test_what_a_restarted_engine_has_lost_is_charged_again_when_a_key_is_asked_for(
    server: Engine, stores: Stores
) -> None:
    """Also for keys that nobody wanted while it was away, and for those of several processes."""
    limiters = [stores.limiter("40/min", processes=2, timeout=PATIENT) for _ in range(2)]
    for limiter in limiters:
        for _ in range(6):
            assert (await limiter.acquire("quiet")).source == "store"
    server.kill()
    await until_open(*limiters)
    await asyncio.to_thread(server.start)
    await until_settled(*limiters)
    for limiter in limiters:
        assert (await limiter.acquire("quiet")).source == "store"
    assert await left(stores, "40/min", key="quiet") == 40 - 2 * 6 - 2


async def test_what_passed_before_anybody_knew_of_the_outage_is_charged_too(
    server: Engine, stores: Stores
) -> None:
    """Calls that time out while they connect were never sent: the engine does not know of them."""
    limiter = await stores.connected("50/min", processes=1)
    server.freeze()
    await limiter.acquire("other")  # whose connection is given up
    assert not is_open(limiter)
    calls = [outcome(limiter.acquire("k")) for _ in range(20)]
    assert await asyncio.gather(*calls) == ["local"] * 20
    await until_open(limiter)
    server.thaw()
    await until_settled(limiter)
    calls = [outcome(limiter.acquire("k", max_wait=0)) for _ in range(40)]
    assert (await asyncio.gather(*calls)).count("store") <= 30, "of 50 a minute"


async def test_an_engine_that_has_lost_nothing_charges_nothing_again(
    server: Engine, stores: Stores
) -> None:
    limiter = await stores.connected("1000/min", processes=2)
    for number in range(100):
        assert (await limiter.acquire(number, 10)).source == "store"
    server.freeze()
    await until_open(limiter)
    server.thaw()
    await until_settled(limiter)
    for number in range(100):
        assert (await limiter.acquire(number)).source == "store"
    observer = stores.limiter("1000/min", timeout=PATIENT)
    found = [(await observer.peek_async(number)).remaining for number in range(100)]
    assert found == [989] * 100


async def test_a_call_that_timed_out_hides_nothing_from_an_engine_that_was_restarted(
    server: Engine, stores: Stores
) -> None:
    limiter = await stores.connected("40/min", processes=1)
    server.freeze()
    assert (await limiter.acquire("k")).source == "local"
    server.thaw()
    await until(lambda: not shared(limiter).sharing.is_busy())
    for _ in range(20):
        assert (await limiter.acquire("k")).source == "store"
    server.kill()
    await until_open(limiter)
    await asyncio.to_thread(server.start)
    await until_settled(limiter)
    assert await left(stores, "40/min", key="k") == 40 - 1 - 20


async def test_all_keys_are_told_when_one_of_them_cannot_be(server: Engine, stores: Stores) -> None:
    limiter = await stores.connected("1000/min", processes=2)
    with server.client() as client:
        for number in (61, 62, 63, 64):
            client.lpush(f"aiolimit:default:{{~.{number}}}:min:32", "x")
        server.freeze()
        await until_open(limiter)
        for number in range(300):
            assert (await limiter.acquire(number)).source == "local"
        server.thaw()
        await until_settled(limiter)
        observer = stores.limiter("1000/min", timeout=PATIENT)
        found = [(await observer.peek_async(number)).remaining for number in range(300)]
        untold = [number for number, one in enumerate(found) if one != 999]
        assert untold == [61, 62, 63, 64]


async def test_settling_in_an_outage_loses_nothing(server: Engine, stores: Stores) -> None:
    limiter = await stores.connected("1000/min", processes=2)
    granted = {key: await limiter.acquire(key, 10) for key in "abc"}
    assert {permit.source for permit in granted.values()} == {"store"}
    server.freeze()
    await until_open(limiter)
    local = {key: await limiter.acquire(key, 10) for key in "def"}
    assert {permit.source for permit in local.values()} == {"local"}
    for permits, (back, less, more) in ((granted, "abc"), (local, "def")):
        permits[back].cancel()
        permits[back].cancel()
        permits[less].adjust(4)
        permits[more].adjust(25)
        permits[more].adjust(21)
    server.thaw()
    await until_settled(limiter)
    found = {key: await left(stores, "1000/min", key=key) for key in "abcdef"}
    assert found == {"a": 1000, "b": 996, "c": 979, "d": 1000, "e": 996, "f": 979}


@pytest.mark.parametrize("how", ["freeze", "kill"])
async def test_settling_before_anybody_knows_of_the_outage(
    server: Engine, stores: Stores, how: str
) -> None:
    """What may have been given back is not given back again; what is charged, is charged."""
    limiter = await stores.connected("1000/min", processes=2)
    granted = {key: await limiter.acquire(key, 10) for key in "abc"}
    if how == "freeze":
        server.freeze()
        await limiter.acquire("other")  # whose connection is given up
    else:
        server.kill()
    assert not is_open(limiter)
    granted["a"].cancel()
    granted["b"].adjust(4)
    granted["c"].adjust(25)
    await until(lambda: not shared(limiter).sharing.is_busy())
    await until_open(limiter)
    if how == "freeze":
        server.thaw()
    else:
        await asyncio.to_thread(server.start)
    await until_settled(limiter)
    for key in "abc":
        await limiter.acquire(key)
    found = {key: await left(stores, "1000/min", key=key) for key in "abc"}
    assert 1000 - 2 * 25 - 1 <= found["c"] <= 1000 - 25 - 1
    assert found["a"] in (989, 999)
    assert found["b"] in (989, 995)


async def test_settling_when_the_engine_is_back_what_passed_without_it(
    server: Engine, stores: Stores
) -> None:
    limiter = await stores.connected("1000/min", processes=2)
    server.freeze()
    await until_open(limiter)
    local = {key: await limiter.acquire(key, 10) for key in "abc"}
    server.thaw()
    await until_settled(limiter)
    local["a"].cancel()
    local["b"].adjust(4)
    local["c"].adjust(25)
    await until_settled(limiter)
    found = {key: await left(stores, "1000/min", key=key) for key in "abc"}
    assert found == {"a": 1000, "b": 996, "c": 975}


@pytest.mark.parametrize("key", ["k", None])
async def test_resetting_in_an_outage_fails_in_time(
    server: Engine, stores: Stores, key: str | None
) -> None:
    limiter = await stores.connected("10/min", processes=1)
    await limiter.acquire("k", 10)
    server.freeze()
    async with asyncio.timeout(2):
        with pytest.raises(StoreError) as raised:
            await limiter.reset_async(key)
    assert isinstance(raised.value.__cause__, Exception)
    server.thaw()


async def test_max_keys_bounds_what_is_kept_in_an_outage(server: Engine, stores: Stores) -> None:
    limiter = await stores.connected("1000/min", processes=1, max_keys=100)
    server.freeze()
    await until_open(limiter)
    for number in range(1000):
        with contextlib.suppress(RateLimited):
            await limiter.acquire(number, max_wait=0)
    local = shared(limiter).shared.local
    assert 90 <= len(local.counts) <= 101
    assert 90 <= len(local._debts) <= 101
    assert len(limiter) <= 101
    server.thaw()
    await until_settled(limiter)
    assert not local._debts


# --- callers who give up -------------------------------------------------------------------


async def give_up_at_random(tasks: list[asyncio.Task[None]], seconds: float, seed: int) -> None:
    """Cancel them, half of them twice, at random times."""
    chance = random.Random(seed)
    began = time.monotonic()
    for task in chance.sample(tasks, len(tasks)):
        await asyncio.sleep(chance.uniform(0, 2 * seconds / len(tasks)))
        task.cancel()
        if chance.random() < 0.5:
            await asyncio.sleep(0)
            task.cancel()
        if time.monotonic() > began + seconds:
            break
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("freezes", [False, True])
async def test_callers_who_give_up_at_random_lose_no_permit(
    server: Engine, stores: Stores, freezes: bool
) -> None:
    chance = random.Random(7)
    timeout = TIMEOUT if freezes else PATIENT
    limiter = await stores.connected("60/500ms", processes=1, timeout=timeout)

    async def call() -> None:
        while True:
            max_wait = chance.choice([None, None, 0, 0.3])
            with contextlib.suppress(RateLimited):
                async with limiter.acquire(chance.choice("ab"), max_wait=max_wait):
                    await asyncio.sleep(chance.choice([0, 0.001, 0.02]))
            await asyncio.sleep(0)

    with server.client() as client:
        connected = client.info("clients")["connected_clients"]
        tasks = [asyncio.create_task(call()) for _ in range(200)]
        giving_up = asyncio.create_task(give_up_at_random(tasks, 0.9, 11))
        if freezes:
            await asyncio.sleep(0.3)
            server.freeze()
            await asyncio.sleep(0.3)
            server.thaw()
        async with asyncio.timeout(10):
            await giving_up
        await until_settled(limiter)
        ended = time.monotonic()
        found = limiter.statistics()
        assert found.waiting == found.in_flight == 0
        assert found.admitted > found.completed > 60
        assert not limiter._queues.by_key
        await asyncio.sleep(max(0.0, ended + 0.55 - time.monotonic()))
        for key in "ab":
            assert await left(stores, "60/500ms", key=key) == 60
            calls = [outcome(limiter.acquire(key, max_wait=0)) for _ in range(61)]
            passed = await asyncio.gather(*calls)
            assert passed[:60] == ["store"] * 60
            assert isinstance(passed[60], RateLimited)
        assert client.info("clients")["connected_clients"] <= connected + 6


@pytest.mark.parametrize("seed", range(3))
async def test_what_was_asked_for_callers_who_gave_up_is_given_back(
    server: Engine, stores: Stores, seed: int
) -> None:
    """To the last permit: the windows are so long that nothing leaves them meanwhile."""
    chance = random.Random(seed)
    limiter = stores.limiter("100000/h", timeout=PATIENT)
    entered = 0

    async def call() -> None:
        nonlocal entered
        while True:
            await limiter.acquire("k")
            entered += 1
            await asyncio.sleep(chance.choice([0, 0, 0.001]))

    tasks = [asyncio.create_task(call()) for _ in range(200)]
    await give_up_at_random(tasks, 0.4, seed)
    await until(lambda: not shared(limiter).sharing.is_busy())
    found = limiter.statistics()
    assert found.waiting == 0
    assert found.cancelled > 0
    assert found.admitted == entered > 200
    assert await left(stores, "100000/h", key="k") == 100000 - entered


@pytest.mark.parametrize("policy", POLICIES)
async def test_callers_who_give_up_in_an_outage(
    server: Engine, stores: Stores, policy: Policy
) -> None:
    limiter = await stores.connected("1000/min", policy=policy)
    server.freeze()
    tasks = [asyncio.create_task(outcome(limiter.acquire("k"))) for _ in range(50)]
    await until(lambda: shared(limiter).sharing.is_busy())
    for task in tasks[::2]:
        task.cancel()
    async with asyncio.timeout(3):
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for task, found in zip(tasks, ended, strict=True):
        if not task.cancelled():
            check_outcome(policy, cast(Any, found))
    assert [task.cancelled() for task in tasks] == [True, False] * 25
    assert limiter.statistics().waiting == 0
    assert not limiter._queues.by_key
    server.thaw()


# --- what no breaker has seen --------------------------------------------------------------


async def test_one_call_that_failed_is_made_good_though_the_breaker_stayed_closed(
    server: Engine, stores: Stores
) -> None:
    limiter = await stores.connected("40/min", processes=1)
    for _ in range(5):
        assert (await limiter.acquire("k")).source == "store"
    server.kill()
    assert (await limiter.acquire("k")).source == "local"
    assert not is_open(limiter)
    await asyncio.to_thread(server.start)
    assert (await limiter.acquire("other")).source == "store"
    assert not is_open(limiter)
    await until_settled(limiter)
    assert await left(stores, "40/min", key="k") == 40 - 5 - 1


async def test_a_restart_between_two_calls_is_noticed(server: Engine, stores: Stores) -> None:
    limiter = await stores.connected("40/min", processes=1)
    for _ in range(20):
        assert (await limiter.acquire("k")).source == "store"
    server.kill()
    await asyncio.to_thread(server.start)
    async with asyncio.timeout(5):
        while await left(stores, "40/min", key="k") > 20:
            await asyncio.sleep(0.05)
    assert await left(stores, "40/min", key="k") == 20, "and not counted twice"


async def test_an_engine_that_lost_everything_is_told_a_thousand_keys_and_no_more(
    server: Engine, stores: Stores
) -> None:
    limiter = await stores.connected("40/min", processes=1, timeout=PATIENT)
    await asyncio.gather(*(limiter.acquire(str(key)) for key in range(3000)))
    with server.client() as client:
        client.flushall()
    before = sender(limiter).calls
    async with asyncio.timeout(10):
        while await left(stores, "40/min", key="2999") == 40:  # whoever beats next has noticed
            await asyncio.sleep(0.05)
    await until_settled(limiter)
    assert 1000 < sender(limiter).calls - before < 1100
    await limiter.acquire("0")
    assert await left(stores, "40/min", key="0") == 38, "but each is told of when it is asked for"


async def test_what_was_given_back_in_an_outage_goes_to_the_rates_of_now(
    server: Engine, stores: Stores
) -> None:
    limiter = await stores.connected("10/min", processes=1)
    permits = [await limiter.acquire("k", 2) for _ in range(3)]
    server.freeze()
    while not is_open(limiter):
        await limiter.acquire("other")
    permits[0].cancel()
    limiter.update("10/min", "50/h")
    server.thaw()
    await until_settled(limiter)
    await until_settled(limiter)
    assert await left(stores, "10/min", "50/h", key="k") == 6
    await asyncio.wait_for(limiter.acquire("k", 6), 5)


async def test_what_was_never_asked_is_as_well_known_as_before(
    server: Engine, stores: Stores
) -> None:
    limiter = await stores.connected("100/min", processes=1)
    assert all([await limiter.try_acquire_async("k") for _ in range(80)])
    told_at = shared(limiter).shared.calls.told_at
    server.freeze()
    await limiter.acquire("other")
    server.thaw()
    await limiter.acquire("other")
    await until_settled(limiter)
    known = told_at("k")
    assert known > 0
    server.freeze()
    calls = []
    for key in ("other", "another", "k"):  # two batches are under way, and the third is not sent
        calls.append(asyncio.create_task(limiter.acquire(key).__aenter__()))
        await asyncio.sleep(0.02)
    await asyncio.gather(*calls)
    server.thaw()
    assert told_at("k") >= known


async def test_ten_thousand_debts_of_an_engine_that_is_gone_again(
    server: Engine, stores: Stores
) -> None:
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    limiter = await stores.connected("100/min", processes=1, timeout=0.05)
    server.freeze()
    while not is_open(limiter):
        await limiter.acquire("k")
    for key in range(10_000):
        await limiter.acquire(str(key))
    server.thaw()
    while is_open(limiter):
        await asyncio.sleep(0.0005)
    server.freeze()
    await until_open(limiter)
    await asyncio.sleep(0.3)
    server.thaw()
    async with asyncio.timeout(15):
        while shared(limiter).shared.local.owing():
            await asyncio.sleep(0.05)
    await until_settled(limiter)
    assert not unseen
    assert await left(stores, "100/min", key="9999") == 99


def test_what_failed_to_be_told_is_a_debt_of_its_own_time() -> None:
    share = LocalShare((Rate(100, 60.0),), 32, None, None)
    share.owe("k", 5, (100,), 50.0)
    share.owe_again("k", 1, 10.0)
    _, unknown = share.past("k", 60.0)
    assert unknown == [(50.0, 1), (10.0, 5)]


@pytest.mark.parametrize("failed", [0, 2])
async def test_a_restart_is_noticed_by_the_answer_about_the_key_in_use(
    server: Engine, stores: Stores, failed: int
) -> None:
    limiter = await stores.connected("100/min", "300/h", processes=1)
    alone = await stores.connected("100/min", processes=1, name="alone")
    for one in (limiter, alone):
        assert all([await one.try_acquire_async("k") for _ in range(80)])
    server.kill()
    passed = [
        sum([await one.try_acquire_async("k") for _ in range(failed)]) for one in (limiter, alone)
    ]
    await asyncio.to_thread(server.start)
    for one, before in zip((limiter, alone), passed, strict=True):
        after = 0
        for _ in range(25):
            after += await one.try_acquire_async("k")
            await asyncio.sleep(0.02)
        # A call that was sent and not answered counts, whether it was done or not.
        assert 20 - failed <= before + after <= 20


async def test_who_resets_a_key_is_not_taken_for_an_engine_that_lost_it(
    server: Engine, stores: Stores
) -> None:
    one, other = [await stores.connected("10/min", processes=2) for _ in range(2)]
    for key in (None, "k"):
        assert all([await one.try_acquire_async("k") for _ in range(6)])
        await other.reset_async(key)
        await other.acquire("k")
        server.freeze()
        assert (await one.acquire("x")).source == "local"
        server.thaw()
        await one.acquire("x")
        await until_settled(one)
        assert [await one.try_acquire_async("k") for _ in range(10)] == [True] * 9 + [False]
        await one.reset_async()


@pytest.mark.parametrize("cancelled", [20, 300])
async def test_what_was_given_back_in_an_outage_is_not_told_and_not_given_back_again(
    server: Engine, stores: Stores, cancelled: int
) -> None:
    limiter = await stores.connected("1000/min", processes=1)
    permits = await asyncio.gather(*(limiter.acquire("k").__aenter__() for _ in range(900)))
    server.kill()
    await until_open(limiter)
    for permit in permits[:cancelled]:
        permit.cancel()
    await asyncio.to_thread(server.start)
    await until_settled(limiter)
    async with asyncio.timeout(10):
        while await left(stores, "1000/min", key="k") != 100 + cancelled:
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.2)
    assert await left(stores, "1000/min", key="k") == 100 + cancelled


async def test_what_was_charged_as_the_engine_died_is_told_once(
    server: Engine, stores: Stores
) -> None:
    limiter = await stores.connected("100/min", processes=1)
    permit = await limiter.acquire("k")
    server.freeze()
    calls = []
    for key in ("x", "y"):  # two batches are under way, and what comes is not sent
        calls.append(asyncio.create_task(limiter.acquire(key).__aenter__()))
        await asyncio.sleep(0.02)
    permit.adjust(31)
    await asyncio.gather(*calls)
    server.kill()
    await asyncio.to_thread(server.start)
    async with asyncio.timeout(10):
        while await left(stores, "100/min", key="k") > 69:
            await asyncio.sleep(0.05)
    await until_settled(limiter)
    assert await left(stores, "100/min", key="k") == 69


async def test_other_periods_while_the_engine_does_not_answer(
    server: Engine, stores: Stores
) -> None:
    limiter = await stores.connected("10/min", processes=1)
    await limiter.acquire("k", 5)
    limiter.update("10/30s")
    await limiter.acquire("k", 5)
    with server.client() as client:  # what comes meanwhile is not done, once its client has gone
        client.execute_command("CLIENT", "PAUSE", "500", "ALL")
        limiter.update("10/min")
        assert (await limiter.acquire("other")).source == "local"
        await asyncio.to_thread(client.ping)
    await until_settled(limiter)
    assert not await limiter.try_acquire_async("k")
