"""Many who wait for one key: what an admission costs then, and whether the limit holds.

8000 tasks want to pass at once, at 2000 a second. 2000 pass at once; so whatever the algorithm,
the last one passes 3 s after the first, and who wakes waiters late or one too many shows here.
Each run is a process by itself: `python -m benchmarks.waiters aiolimit` prints its figures.

The CPU time is that of the whole process while the tasks are made, wait and end. What the tasks
alone cost is in it for both, and is measured beside them (`tasks`).
"""

import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from math import fsum
from statistics import median
from typing import Any, Final

import aiolimiter

from aiolimit import Limiter
from benchmarks.fresh import alternate
from benchmarks.nothing import Reference
from benchmarks.report import Row, times

__all__ = ["fullest_second", "measure"]

_WAITERS: Final = 8000
_RATE: Final = 2000  # in a second
_ALL: Final = f"{_WAITERS} waiters at {_RATE}/s"
_IDEAL: Final = _WAITERS / _RATE - 1  # seconds: the first 2000 pass at once
_WITHIN: Final = 0.01  # of that
_REPEATS: Final = 7
_TOO_LONG: Final = 60  # seconds


class Course:
    """When each of the tasks was admitted, and whether all have been."""

    def __init__(self) -> None:
        self.moments: list[float] = []
        self.finished = asyncio.get_running_loop().create_future()

    def passed(self, moment: float) -> None:
        """Another one is through."""
        # Counted here, because waiting for 8000 tasks would cost as much as a good limiter does.
        self.moments.append(moment)
        if len(self.moments) == _WAITERS:
            self.finished.set_result(None)


# Makes what each task does: to pass the limiter once.
Enter = Callable[[Course], Coroutine[Any, Any, None]]


def measure() -> list[Row]:
    """All rows about waiters."""
    commands = {name: ["-m", "benchmarks.waiters", name] for name in _SUBJECTS}
    found = alternate(commands, _REPEATS)
    ours, theirs, tasks = (median(found[name]["cpu"]) for name in _SUBJECTS)
    without = (ours - tasks) / (theirs - tasks)
    end, their_end = (median(found[name]["end"]) for name in ("aiolimit", "aiolimiter"))
    # Not the median: a limit that holds in most runs does not hold.
    fullest, their_fullest = (max(found[name]["fullest"]) for name in ("aiolimit", "aiolimiter"))
    return [
        Row(
            f"{_ALL}: CPU per admission",
            "aiolimiter",
            f"1/{theirs / ours:.1f} ({times(ours)}, {times(theirs)})",
            "<= 1/3",
            ours / theirs <= 1 / 3,
        ),
        Row(
            f"{_ALL}: the same without what the tasks alone cost",
            "aiolimiter",
            f"1/{1 / without:.1f} (tasks {times(tasks)})",
        ),
        Row(
            f"{_ALL}: from the first admission to the last",
            f"{_IDEAL:.0f} s",
            f"{end:.3f} s (aiolimiter {their_end:.3f} s)",
            "within 1 %",
            abs(end / _IDEAL - 1) <= _WITHIN,
        ),
        Row(
            f"{_ALL}: admitted in the fullest second",
            f"{_RATE}",
            f"{fullest:.0f} (aiolimiter {their_fullest:.0f})",
            f"<= {_RATE}",
            fullest <= _RATE,
        ),
    ]


def fullest_second(moments: Sequence[float]) -> int:
    """The most that lie in any half-open second."""
    moments = sorted(moments)
    first = most = 0
    for last, now in enumerate(moments):
        # Exactly, as the limiter decides: a difference alone may round up to a second.
        while fsum((now, -moments[first], -1.0)) >= 0.0:
            first += 1
        most = max(most, last - first + 1)
    return most


def _aiolimit() -> Enter:
    limiter = Limiter(f"{_RATE}/s")

    async def enter(course: Course) -> None:
        async with limiter.acquire("key") as permit:
            # When it was granted, not when this task came to run: what the limiter decides by.
            course.passed(permit._at or 0.0)

    return enter


def _aiolimiter() -> Enter:
    limiter = aiolimiter.AsyncLimiter(_RATE, 1)

    async def enter(course: Course) -> None:
        async with limiter:
            course.passed(time.monotonic())

    return enter


def _tasks() -> Enter:
    reference = Reference()

    async def enter(course: Course) -> None:
        async with reference.acquire("key"):
            course.passed(time.monotonic())

    return enter


_SUBJECTS: Final = {"aiolimit": _aiolimit, "aiolimiter": _aiolimiter, "tasks": _tasks}


async def _figures(name: str) -> dict[str, float]:
    enter = _SUBJECTS[name]()
    course = Course()
    gc.collect()
    gc.disable()
    cpu = time.process_time()
    tasks = [asyncio.create_task(enter(course)) for _ in range(_WAITERS)]
    await asyncio.wait_for(course.finished, _TOO_LONG)
    used, end = time.process_time() - cpu, time.monotonic()
    await asyncio.gather(*tasks)
    return {
        "cpu": used / _WAITERS,
        "end": end - min(course.moments),
        "fullest": fullest_second(course.moments),
    }


if __name__ == "__main__":
    json.dump(asyncio.run(_figures(sys.argv[1])), sys.stdout)
