"""One process of several that share a limit: it does what it is told, and says what it was granted.

Reads one line, a JSON object, and begins when the next line comes. Writes one line: what was
granted, as (engine's time in microseconds, cost, task), when that was here (all processes of a
machine have this clock), how many processes it has counted, and the calls that it made.
"""

import asyncio
import json
import sys
import time
from typing import Any

from aiolimit import Limiter, RateLimited
from aiolimit.redis import RedisStore


async def work(told: dict[str, Any]) -> dict[str, Any]:
    granted: list[tuple[float, float, int]] = []
    here: list[float] = []
    store = RedisStore(told["url"], timeout=5, lease=told.get("lease"))
    limiter = Limiter(*told["rates"], name=told.get("name", "shared"), store=store)
    costs = told.get("costs", [1])
    shared: Any = limiter._admission
    await limiter.peek_async("ready")
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    began = time.monotonic()
    end = began + told.get("seconds", 60)

    def note(permit: Any, task: int) -> None:
        granted.append((permit._at.engine, permit.cost, task))
        here.append(float(permit._at))

    async def hammer(task: int) -> None:
        while time.monotonic() < end:
            try:
                note(await limiter.acquire("k", costs[task % len(costs)], max_wait=0), task)
                if "pause" in told:
                    await asyncio.sleep(told["pause"])
            except RateLimited:
                await asyncio.sleep(0.002)

    async def wait(task: int) -> None:
        cost = costs[task % len(costs)]
        for _ in range(told["times"]):
            left = max(0.0, end - time.monotonic())
            try:
                note(await limiter.acquire("k", cost, max_wait=left), task)
            except RateLimited:
                return

    async def once(task: int) -> None:
        if await limiter.try_acquire_async("k"):
            granted.append((0.0, 1, task))

    way = {"hammer": hammer, "wait": wait, "once": once}[told["way"]]
    await asyncio.gather(*(way(task) for task in range(told["tasks"])))
    sender = shared.sharing.sender("k")
    answer = {
        "granted": granted,
        "here": here,
        "processes": shared.sharing.processes,
        "calls": sender.calls,
        "seconds": time.monotonic() - began,
    }
    await store.aclose()
    return answer


if __name__ == "__main__":
    print(json.dumps(asyncio.run(work(json.loads(sys.stdin.readline())))), flush=True)
