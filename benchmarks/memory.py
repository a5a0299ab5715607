"""A million keys: how much memory they take, and how long the garbage collector looks at them.

Each key was admitted once in a minute of twenty, as in a service with many clients. A full
collection stops the process; how long depends on how many objects hold others. aiolimiter has no
keys, so it is one limiter for each in a dict, used once. Each run is a process by itself:
`python -m benchmarks.memory aiolimit` prints its figures.

Memory is the resident set of the process: all is in it, also what the allocator adds and what the
text of the keys takes.
"""

import asyncio
import gc
import json
import sys
from collections.abc import Awaitable, Callable
from statistics import median
from time import perf_counter
from typing import Final

import aiolimiter
import psutil  # type: ignore[import-untyped, unused-ignore]

from aiolimit import Limiter
from benchmarks.fresh import alternate
from benchmarks.report import Row

__all__ = ["measure"]

_KEYS: Final = 1_000_000
_TARGET: Final = 320  # bytes per key
_REPEATS: Final = 3
_COLLECTIONS: Final = 5


def measure() -> list[Row]:
    """All rows about many keys."""
    commands = {name: ["-m", "benchmarks.memory", name] for name in _SUBJECTS}
    found = alternate(commands, _REPEATS)
    ours, theirs = (median(found[name]["collection"]) for name in _SUBJECTS)
    told = f"1/{theirs / ours:.1f} ({ours:.3f} s, {theirs:.3f} s)"
    size, their_size = (round(median(found[name]["bytes"])) for name in _SUBJECTS)
    return [
        Row(
            "a million keys at 20/min: bytes per key, all included",
            "",
            f"{size}",
            "<= 320",
            size <= _TARGET,
        ),
        Row("one aiolimiter per key: bytes per key", "", f"{their_size}"),
        Row(
            "a million keys: a full garbage collection",
            "one aiolimiter per key",
            told,
            "<= 1/3",
            ours / theirs <= 1 / 3,
        ),
    ]


async def _aiolimit() -> object:
    limiter = Limiter("20/min")
    for number in range(_KEYS):
        limiter.try_acquire(f"user:{number}")
    if len(limiter) != _KEYS:
        raise RuntimeError(f"{len(limiter)} keys instead of {_KEYS}: the figures mean nothing")
    return limiter


async def _aiolimiter() -> object:
    limiters: dict[str, aiolimiter.AsyncLimiter] = {}
    for number in range(_KEYS):
        limiter = limiters[f"user:{number}"] = aiolimiter.AsyncLimiter(20, 60)
        await limiter.acquire()
    return limiters


_SUBJECTS: Final[dict[str, Callable[[], Awaitable[object]]]] = {
    "aiolimit": _aiolimit,
    "aiolimiter": _aiolimiter,
}


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


async def _figures(name: str) -> dict[str, float]:
    gc.collect()
    gc.disable()  # or it would run again and again while the keys come, and only cost time
    before = _resident()
    kept = await _SUBJECTS[name]()
    after = _resident()
    collections = []
    for _ in range(_COLLECTIONS):
        start = perf_counter()
        gc.collect()
        collections.append(perf_counter() - start)
    del kept  # not before: it is what was measured
    return {"bytes": (after - before) / _KEYS, "collection": median(collections)}


if __name__ == "__main__":
    json.dump(asyncio.run(_figures(sys.argv[1])), sys.stdout)
