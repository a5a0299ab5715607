"""How calls are timed: in turns, in one run, and compared by their medians.

A machine is never twice as fast as it was: its clock changes, others use it. So no subject is
measured by itself. In each round every subject has a short turn, in an order that rotates; a
subject's figure is the median of its turns, and what counts is the ratio of two such figures.

The garbage collector runs between rounds, and is off during turns: its pauses belong to nobody.
Before each turn the loop becomes quiet: what a subject leaves behind in the background (`limits`
starts a task that looks for expired keys) is not charged to the next one, nor to itself.
"""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, Final

__all__ = ["ROUNDS", "Subject", "interleave"]

ROUNDS: Final = 41
_TURN: Final = 0.005  # seconds a turn takes at least


@dataclass(frozen=True, slots=True)
class Subject:
    """Something to time. `run` makes a number of passes, of `calls` calls each."""

    name: str
    run: Callable[[int], Coroutine[Any, Any, None]]
    calls: int


async def interleave(
    subjects: Sequence[Subject],
    *,
    rounds: int = ROUNDS,
    passes: int | None = None,
    pause: float = 0.001,
) -> dict[str, float]:
    """Time the subjects in turns. Returns the median of each, in seconds per call.

    passes: how many make up a turn. By default as many as fill it, after one that is not timed
        and lets caches fill. A given number starts cold.
    pause: the seconds to wait before each turn, at least.
    """
    warm = passes is None
    times: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    for subject in subjects:
        await subject.run(1)
    standing = asyncio.all_tasks()
    counts = {
        subject.name: await _passes(subject, standing) if passes is None else passes
        for subject in subjects
    }
    gc.disable()
    try:
        for number in range(rounds):
            gc.collect()
            shift = number % len(subjects)
            for subject in (*subjects[shift:], *subjects[:shift]):
                await _quiet(standing, pause)
                if warm:
                    await subject.run(1)
                count = counts[subject.name]
                start = perf_counter()
                await subject.run(count)
                elapsed = perf_counter() - start
                times[subject.name].append(elapsed / (count * subject.calls))
    finally:
        gc.enable()
    return {name: median(values) for name, values in times.items()}


async def _passes(subject: Subject, standing: set[asyncio.Task[Any]]) -> int:
    count = 1
    while True:
        await _quiet(standing, 0.001)
        start = perf_counter()
        await subject.run(count)
        if perf_counter() - start >= _TURN:
            return count
        count *= 2


async def _quiet(standing: set[asyncio.Task[Any]], pause: float) -> None:
    """Let due timers run and new tasks end; `standing` are those that never do."""
    await asyncio.sleep(pause)
    while new := asyncio.all_tasks() - standing:
        await asyncio.wait(new)
