"""What a call costs that may pass: the fast path, which every request of a service takes.

It is compared with an `async with` that does nothing (`nothing.py`), which no limiter can beat,
and with other limiters (`peers.py`). The empty loop is measured like everything else and taken
off, as it would bring all ratios nearer to 1.
"""

import asyncio
import json
import time
from dataclasses import replace
from statistics import median
from typing import Final

import aiolimiter

from aiolimit import Limiter, LoadController, WarmUp
from benchmarks.fresh import alternate
from benchmarks.nothing import Nothing, Reference
from benchmarks.peers import KEYS, LIMIT, all_peers, turning_limits
from benchmarks.report import Row, times
from benchmarks.timing import ROUNDS, Subject, interleave

__all__ = ["measure"]

_ENTERED: Final = "uncontended `async with limiter.acquire(key)`"
_AGAINST: Final = {
    "reference": "an `async with` that does nothing",
    "barest": "the barest `async with` there is",
    "aiolimiter": "aiolimiter in a dict by key",
    "limits": "limits, sliding window counter",
    "limits, moving window": "limits, moving window (a log)",
    "throttled-py": "throttled-py, sliding window",
    "pyrate-limiter": "pyrate-limiter",
    "pyrate-limiter, bare bucket": "pyrate-limiter, bare bucket",
    "asynciolimiter": "asynciolimiter in a dict by key",
    "monotonic": "`time.monotonic()`",
    "aiolimit": "without",
}
# The most that aiolimit may take, as a part of what the other takes, and how that is written.
_TARGETS: Final = {
    "reference": (1.8, "<= 1.8 x"),
    "aiolimiter": (0.8, "<= 0.8 x"),
    "limits": (1 / 8, "<= 1/8"),
    "throttled-py": (1 / 8, "<= 1/8"),
    "pyrate-limiter": (1 / 15, "<= 1/15"),
    "monotonic": (6.0, "<= 6 x"),
    "aiolimit": (1.25, "<= 1.25 x"),
}
_PROCESSES: Final = 5
_RARE_KEYS: Final = tuple(f"user:{number}" for number in range(5000))
_RARE_PAUSE: Final = 0.04  # seconds, more than the 32nd of a second in which an entry is joined


def measure() -> list[Row]:
    """All rows about single calls.

    Where a process puts its objects makes each of these figures some 5 % higher or lower for as
    long as it lives. So there are several processes, and the median of them counts.
    """
    runs = alternate({"calls": ["-m", "benchmarks.calls"]}, _PROCESSES)["calls"]
    found = {name: median(values) for name, values in runs.items()}
    empty = found.pop("empty")
    found = {name: value - empty for name, value in found.items()}
    others = [name for name in _AGAINST if name in found and name not in ("monotonic", "aiolimit")]
    return [
        *(_judged(_ENTERED, name, found["aiolimit"], found[name]) for name in others),
        _judged(
            "the same, warmed up and with a load controller",
            *("aiolimit", found["warm and loaded"], found["aiolimit"]),
        ),
        *asyncio.run(_turning()),
        *asyncio.run(_rare(empty)),
        _judged("`try_acquire(key)`", "monotonic", found["try_acquire"], found["monotonic"]),
    ]


async def _measure() -> dict[str, float]:
    """Seconds per call, in this process."""
    controller = LoadController()
    limiter = Limiter(f"{LIMIT}/s")
    bent = Limiter(f"{LIMIT}/s", warm_up=WarmUp(over=0.01), load=controller)
    subjects = [
        *(_empty(), _barest(), _reference(), _ours(limiter), *_plain(limiter), *all_peers()),
        replace(_ours(bent), name="warm and loaded"),
    ]
    async with controller:
        found = await interleave(subjects)
    for one in (limiter, bent):
        if any(one.statistics().rejected.values()):
            raise RuntimeError(f"calls were refused, the figures mean nothing: {one.statistics()}")
    if bent.explain().warmth != 1:
        raise RuntimeError(f"it is not warm, the figures mean nothing: {bent.explain()}")
    return found


def _judged(what: str, name: str, ours: float, theirs: float) -> Row:
    """A row with a target, if there is one against this."""
    row = _compared(what, name, ours, theirs)
    if name not in _TARGETS:
        return row
    most, target = _TARGETS[name]
    return replace(row, target=target, met=ours / theirs <= most)


def _compared(what: str, name: str, ours: float, theirs: float) -> Row:
    ratio = ours / theirs
    told = f"{ratio:.2f} x" if 3 * ratio > 1 else f"1/{1 / ratio:.1f}"
    return Row(what, _AGAINST[name], f"{told} ({times(ours)}, {times(theirs)})")


def _empty() -> Subject:
    async def run(passes: int) -> None:
        for _ in range(passes):
            for _key in KEYS:
                pass

    return Subject("empty", run, len(KEYS))


def _barest() -> Subject:
    async def run(passes: int) -> None:
        for _ in range(passes):
            for _key in KEYS:
                async with Nothing():
                    pass

    return Subject("barest", run, len(KEYS))


def _reference() -> Subject:
    reference = Reference()

    async def run(passes: int) -> None:
        for _ in range(passes):
            for key in KEYS:
                async with reference.acquire(key):
                    pass

    return Subject("reference", run, len(KEYS))


def _ours(limiter: Limiter, keys: tuple[str, ...] = KEYS) -> Subject:
    async def run(passes: int) -> None:
        for _ in range(passes):
            for key in keys:
                async with limiter.acquire(key):
                    pass

    return Subject("aiolimit", run, len(keys))


def _plain(limiter: Limiter) -> list[Subject]:
    async def try_acquire(passes: int) -> None:
        for _ in range(passes):
            for key in KEYS:
                limiter.try_acquire(key)

    async def monotonic(passes: int) -> None:
        for _ in range(passes):
            for _key in KEYS:
                time.monotonic()

    return [
        Subject("try_acquire", try_acquire, len(KEYS)),
        Subject("monotonic", monotonic, len(KEYS)),
    ]


async def _turning() -> list[Row]:
    """A turn of the loop after each call, as in a service: what `limits` leaves to it is in."""
    limiter = Limiter(f"{LIMIT}/s")

    async def ours(passes: int) -> None:
        for _ in range(passes):
            for key in KEYS:
                async with limiter.acquire(key):
                    pass
                await asyncio.sleep(0)

    async def turn(passes: int) -> None:
        for _ in range(passes):
            for _key in KEYS:
                await asyncio.sleep(0)

    own = [Subject("aiolimit", ours, len(KEYS)), Subject("turn", turn, len(KEYS))]
    peers = turning_limits()
    found = await interleave([*own, *peers])
    mine = found["aiolimit"] - found["turn"]
    what = "the same, the loop turns after each call"
    return [_compared(what, peer.name, mine, found[peer.name] - found["turn"]) for peer in peers]


async def _rare(empty: float) -> list[Row]:
    """Keys that are called rarely: each call finds the newest entry closed and opens one."""
    limiters = {key: aiolimiter.AsyncLimiter(LIMIT, 1) for key in _RARE_KEYS}

    async def run(passes: int) -> None:
        for _ in range(passes):
            for key in _RARE_KEYS:
                async with limiters[key]:
                    pass

    theirs = Subject("aiolimiter", run, len(_RARE_KEYS))
    ours = _ours(Limiter(f"{LIMIT}/s"), _RARE_KEYS)
    found = await interleave([ours, theirs], rounds=ROUNDS, passes=1, pause=_RARE_PAUSE)
    mine, other = found["aiolimit"] - empty, found["aiolimiter"] - empty
    return [_compared("the same, a key that is called rarely", "aiolimiter", mine, other)]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_measure())))
