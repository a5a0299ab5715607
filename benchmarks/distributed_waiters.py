"""Several processes whose callers wait for one limit: how often the engine is asked for it.

As a program, one of those processes: its arguments are the engine's URL, how many callers wait, the
burst (0 for none), the time of the monotonic clock from which on to count, and for how many
seconds. It writes what it has counted as JSON.
"""

import asyncio
import json
import sys
import time
from typing import Any, Final, NamedTuple

from aiolimit import Limiter
from aiolimit.redis import RedisStore
from benchmarks.fresh import ROOT

__all__ = ["RATE", "Waited", "measure"]

RATE: Final = 50
_KEY: Final = "hot"


class Waited(NamedTuple):
    """What came of it.

    calls: of the script, for that key, per admission. admitted: a second. shares: of each process.
    """

    calls: float
    admitted: float
    shares: list[float]


async def measure(
    url: str, split: list[int], *, burst: int = 0, warm: float = 3.0, seconds: float = 6.0
) -> Waited:
    """Processes with so many callers each."""
    command = (sys.executable, "-m", "benchmarks.distributed_waiters", url)
    begin = time.monotonic() + warm  # of all processes of a machine
    started = [
        await asyncio.create_subprocess_exec(
            *command,
            *map(str, (count, burst, begin, seconds)),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        for count in split
    ]
    found = [json.loads((await process.communicate())[0]) for process in started]
    admitted = [one["admitted"] for one in found]
    total = sum(admitted)
    calls = sum(one["calls"] for one in found) / total
    return Waited(calls, total / seconds, [one / total for one in admitted])


async def _work(url: str, callers: int, burst: int, begin: float, seconds: float) -> None:
    async with RedisStore(url, timeout=5) as store:
        limiter = Limiter(f"{RATE}/s", name="waiters", burst=burst or None, store=store)
        shared: Any = limiter._admission
        sender = shared.sharing.sender(_KEY)
        name = shared.sharing.names.of(_KEY)
        calls = admitted = 0
        run = sender._run

        async def counted(batch: Any, *more: Any) -> Any:
            nonlocal calls
            calls += sum(call.keys[0].startswith(name) for call in batch)
            return await run(batch, *more)

        sender._run = counted

        async def caller() -> None:
            nonlocal admitted
            while True:
                await limiter.acquire(_KEY)
                admitted += 1

        tasks = [asyncio.create_task(caller()) for _ in range(callers)]
        await asyncio.sleep(begin - time.monotonic())
        before = calls, admitted
        await asyncio.sleep(seconds)
        counts = {"calls": calls - before[0], "admitted": admitted - before[1]}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    sys.stdout.write(json.dumps(counts))


if __name__ == "__main__":
    url, callers, burst, begin, seconds = sys.argv[1:]
    asyncio.run(_work(url, int(callers), int(burst), float(begin), float(seconds)))
