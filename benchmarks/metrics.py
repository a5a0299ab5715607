"""What it costs to be watched: nothing for a call, and a few milliseconds for a scrape."""

import asyncio
import json
from statistics import median
from time import perf_counter
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from aiolimit import Limiter, metrics
from benchmarks.fresh import alternate
from benchmarks.peers import KEYS, LIMIT
from benchmarks.report import Row, times
from benchmarks.timing import ROUNDS, Subject, interleave

__all__ = ["measure"]

_LIMITERS: Final = 50
_PROCESSES: Final = 5
_MOST_DEARER: Final = 0.03
_MOST_SCRAPE: Final = 0.010  # seconds


def measure() -> list[Row]:
    """The rows about metrics."""
    found = alternate({"metrics": ["-m", "benchmarks.metrics"]}, _PROCESSES)["metrics"]
    ratios = [
        watched / alone for watched, alone in zip(found["watched"], found["alone"], strict=True)
    ]
    dearer = median(ratios) - 1
    scrape, plain = median(found["scrape"]), median(found["plain"])
    samples = round(median(found["samples"]))
    return [
        Row(
            "`async with limiter.acquire(key)`, registered for metrics",
            "not registered",
            f"{dearer * 100:+.1f} % ({times(median(found['watched']))}, "
            f"{times(median(found['alone']))})",
            "within 3 %",
            abs(dearer) < _MOST_DEARER,
        ),
        Row(
            f"a scrape of {_LIMITERS} limiters, {samples} samples",
            "as many samples that are ready",
            f"{times(scrape)} ({times(plain)})",
            "<= 10 ms",
            scrape <= _MOST_SCRAPE,
        ),
    ]


async def _calls() -> dict[str, float]:
    alone, watched = Limiter(f"{LIMIT}/s", name="alone"), Limiter(f"{LIMIT}/s", name="watched")
    registry = CollectorRegistry()
    metrics.register(watched, registry=registry)
    generate_latest(registry)
    return await interleave([_subject(alone), _subject(watched)])


def _subject(limiter: Limiter) -> Subject:
    async def run(passes: int) -> None:
        for _ in range(passes):
            for key in KEYS:
                async with limiter.acquire(key):
                    pass

    return Subject(limiter.name, run, len(KEYS))


class _Ready(Collector):
    """Gives what was collected once, and so takes no time itself."""

    def __init__(self, collected: list[Metric]) -> None:
        self._collected = collected

    def collect(self) -> list[Metric]:
        return self._collected


def _scrape() -> dict[str, float]:
    limiters = [Limiter("100/s", name=f"limiter {number}") for number in range(_LIMITERS)]
    for limiter in limiters:
        for key in KEYS:
            limiter.try_acquire(key)
    registry, ready = CollectorRegistry(), CollectorRegistry()
    metrics.register(*limiters, registry=registry)
    collected = list(registry.collect())
    ready.register(_Ready(collected))
    return {
        "scrape": _timed(registry),
        "plain": _timed(ready),
        "samples": sum(len(metric.samples) for metric in collected),
    }


def _timed(registry: CollectorRegistry) -> float:
    taken = []
    for _ in range(ROUNDS):
        start = perf_counter()
        generate_latest(registry)
        taken.append(perf_counter() - start)
    return median(taken)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_calls()) | _scrape()))
