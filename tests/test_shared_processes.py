"""Several real processes on one limit, over a real Valkey."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from aiolimit import Limiter
from aiolimit.redis import RedisStore
from tests.engines import Engine, engine
from tests.serving import ROOT
from tests.support import worst

Granted = list[tuple[float, float, int]]


@pytest.fixture
def valkey() -> Iterator[Engine]:
    with engine() as one:
        yield one


class Worker:
    """A process that shares the limit."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, valkey: Engine, **told: Any) -> "Worker":
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.shared_worker"),
            cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )  # fmt: skip
        worker = cls(process)
        await worker.say(json.dumps({"url": valkey.url, **told}))
        assert await worker.hear() == "ready"
        return worker

    async def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n".encode())
        await self.process.stdin.drain()

    async def hear(self) -> str:
        assert self.process.stdout is not None
        return (await asyncio.wait_for(self.process.stdout.readline(), 60)).decode().strip()

    async def answer(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.hear())
        await self.process.wait()
        return found


async def together(valkey: Engine, count: int, **told: Any) -> list[dict[str, Any]]:
    """So many processes that do the same; what each has to say."""
    workers = await asyncio.gather(*(Worker.start(valkey, **told) for _ in range(count)))
    for worker in workers:
        await worker.say("go")
    return list(await asyncio.gather(*(worker.answer() for worker in workers)))


def units(answers: list[dict[str, Any]]) -> list[float]:
    """The engine's times of all grants, each as often as it cost, microseconds."""
    return [at for answer in answers for at, cost, _ in answer["granted"] for _ in range(int(cost))]


@pytest.mark.parametrize(
    ("rates", "costs", "way"),
    [
        (["200/s"], [1], "hammer"),
        (["200/s"], [1], "wait"),
        (["30/s", "50/2s"], [1], "hammer"),
        (["40/s"], [1, 2, 3, 4, 5], "hammer"),
        (["40/s"], [5, 1, 3, 2, 4], "wait"),
    ],
    ids=["no wait", "waiting", "two rates", "costs", "waiting, costs"],
)
async def test_never_over_in_any_window(
    valkey: Engine, rates: list[str], costs: list[float], way: str
) -> None:
    seconds = 1.8 if len(rates) == 1 else 2.4  # past the longest window
    answers = await together(
        valkey, 4, rates=rates, costs=costs, way=way, tasks=10, times=10_000, seconds=seconds
    )
    times = units(answers)
    limits = {"200/s": (200, 1), "30/s": (30, 1), "50/2s": (50, 2), "40/s": (40, 1)}
    for rate in rates:
        limit, period = limits[rate]
        assert worst(times, period * 1e6) <= limit
    limit, period = limits[rates[0]]
    # It is used, too: nearly all of it, in whatever parts.
    assert len(times) >= 0.9 * limit * 1.7
    shares = [len(units([answer])) for answer in answers]
    print("shares of the processes:", shares)
    if limit >= 200:  # in so short a time a small limit may go to some
        assert all(shares)


async def test_in_a_process_who_waits_goes_in_order(valkey: Engine) -> None:
    answers = await together(valkey, 3, rates=["60/s"], way="wait", tasks=20, times=2)
    for answer in answers:
        tasks = [task for _, _, task in answer["granted"]]
        assert tasks == [*range(20), *range(20)]


async def test_nothing_is_lost(valkey: Engine) -> None:
    answers = await together(valkey, 3, rates=["100/s"], way="wait", tasks=25, times=4)
    assert sum(len(answer["granted"]) for answer in answers) == 300
    assert worst(units(answers), 1e6) <= 100
    assert max(answer["seconds"] for answer in answers) < 2 + 1.5


async def test_exactly_so_many_pass_who_come_at_once(valkey: Engine) -> None:
    answers = await together(valkey, 3, rates=["25/h"], way="once", tasks=25)
    assert sum(len(answer["granted"]) for answer in answers) == 25
    async with RedisStore(valkey.url) as store:
        assert (await Limiter("25/h", name="shared", store=store).peek_async("k")).remaining == 0


async def test_waiting_takes_few_calls(valkey: Engine) -> None:
    told = {"rates": ["50/s"], "way": "wait", "tasks": 20, "times": 10_000, "seconds": 2.5}
    answers = await together(valkey, 3, **told)
    admitted = len(units(answers))
    assert min(len(units([answer])) for answer in answers) >= 0.1 * admitted
    beats = 3 * 4
    assert admitted >= 0.9 * 50 * 2.5
    # A bound for a busy machine; what it is on a quiet one, the benchmark tells.
    assert sum(answer["calls"] for answer in answers) - beats <= 2.5 * admitted


async def test_a_process_that_is_killed_takes_nothing_along(valkey: Engine) -> None:
    told = {"rates": ["50/s"], "way": "wait", "tasks": 5, "times": 10_000, "seconds": 6}
    workers = [await Worker.start(valkey, **told) for _ in range(3)]
    async with RedisStore(valkey.url) as store:
        limiter: Any = Limiter("50/s", name="shared", store=store)
        await limiter.acquire("other")
        sharing = limiter._admission.sharing
        await until(lambda: sharing.processes == 4)
        for worker in workers:
            await worker.say("go")
        await asyncio.sleep(0.5)
        workers[0].process.kill()
        await workers[0].process.wait()
        with valkey.client() as client:
            seconds, micros = client.time()
        killed = seconds * 1e6 + micros
        # It says no goodbye, and is missed after three of its heartbeats.
        await until(lambda: sharing.processes == 3)
        assert all(worker.process.returncode is None for worker in workers[1:])
        answers = [await worker.answer() for worker in workers[1:]]
    times = units(answers)
    assert worst(times, 1e6) <= 50
    # One window later the others have all of the limit.
    assert len([at for at in times if 1e6 < at - killed <= 2.5e6]) >= 0.9 * 50
    assert len([at for at in times if at > max(times) - 2e6]) >= 0.9 * 100


async def test_leases_ask_seldom_and_are_over_by_what_was_allowed_at_most(valkey: Engine) -> None:
    # Each process wants 667 a second: what it has taken ahead it spends little by little.
    told = {"rates": ["1000/s"], "way": "hammer", "tasks": 20, "pause": 0.03, "seconds": 2}
    answers = await together(valkey, 2, **told, lease=0.1)
    admitted = len(units(answers))
    assert admitted >= 0.85 * 2000
    # By the clock of the machine, and a little more, as a lease may end while others run.
    assert worst((at for answer in answers for at in answer["here"]), 1) <= 1.1 * 1000 * 1.02
    assert {answer["processes"] for answer in answers} == {2}
    assert sum(answer["calls"] for answer in answers) < 0.5 * admitted


async def until(is_so: Any) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
