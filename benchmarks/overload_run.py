"""One run: a fresh server, one load, and what came of it.

The capacity C and the cost of a refusal are runs as well, of a closed loop that keeps the server
busy. From them comes the ceiling: what a server that refuses without error can still do when the
refusals at k-fold load have taken their time, (1 - k c C) / (1 - c C) of C.
"""

import http.client
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.fresh import ROOT
from benchmarks.open_loop import (
    BROKEN,
    LOST,
    UNANSWERED,
    Answers,
    Connections,
    closed_loop,
    open_loop,
    poisson,
)
from benchmarks.overload_arms import REFUSE_ALL
from benchmarks.overload_server import STATE, VARIANTS

__all__ = ["DEADLINE", "Case", "Figures", "Yardstick", "measure_yardstick", "run"]

DEADLINE: Final = 0.5  # seconds from the planned time
_TOO_LATE: Final = 0.030  # the client's own lateness (p99) that makes a run void
_TOO_LONG_WAITED: Final = 0.05  # the share of a run that the server waited for its core: void too
_ATTEMPTS: Final = 3  # to measure a yardstick while nobody is in the way
_SETTLE: Final = 0.5  # seconds before a yardstick counts
_BUCKET: Final = 0.25  # seconds
_SETTLED: Final = 0.85  # of the final median
_AFTER_HALVING: Final = 2.0  # seconds until the new capacity is asked for
_SHARE_BEFORE_HALVING: Final = 0.4  # of the run
_CHUNK: Final = 500  # connections to open before the server has to accept them
_REFUSED_CONNECTIONS: Final = 256  # about as many refusals as an overload has under way
_FEWEST_CONNECTIONS: Final = 32


@dataclass(frozen=True, slots=True)
class Case:
    """What to run."""

    arm: str
    variant: str = "A"
    io_first: bool = False
    load: float = 10.0  # in times C
    seconds: float = 8.0
    halve: bool = False  # the capacity, at 40 % of the run
    warm: float = 0.0  # seconds of half the capacity before the load

    def __str__(self) -> str:
        order = " I/O first" if self.io_first else ""
        halved = " halved" if self.halve else ""
        return f"{self.variant}{order} {self.load:g}x {self.seconds:g} s{halved}"


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What a server can do without an overload."""

    capacity: float  # requests per second
    halved: float  # the same when each request burns twice the CPU; nan where nobody asks
    refusal: float  # CPU seconds
    speaks: str = ""  # what speaks HTTP in the server
    waited: float = 0.0  # the share of the time that the server waited for its core, at worst

    @property
    def void(self) -> bool:
        """Whether others were in the way when it was measured: so are all runs against it."""
        return self.waited > _TOO_LONG_WAITED

    def ceiling(self, load: float, capacity: float | None = None) -> float:
        """The most that can be served, as a share of C, when `load` times C arrive."""
        lost = self.refusal * (capacity or self.capacity)
        return min(load, max(0.0, (1 - load * lost) / (1 - lost)))


@dataclass(slots=True)
class Figures:
    """What came of a run. Rates are per second, times in seconds; nan is "there was none"."""

    case: Case
    yardstick: Yardstick
    share: float  # served in time, of C; when the capacity was halved, of the new one
    later_share: float  # the same without the first second
    ceiling: float
    admitted: dict[int, float]  # latency, by percentile
    refused: dict[int, float]
    settled: float  # seconds after the begin, or after the halving; inf: never
    lateness: float
    waited: float  # share of the time that the server was ready to run and had no core
    refusals: int
    late: int
    unanswered: int
    lost: int
    broken: int
    buckets: list[float]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def of_ceiling(self) -> float:
        """The share of what was possible."""
        return self.share / self.ceiling if self.ceiling > 0 else math.nan

    @property
    def void(self) -> str:
        """Why this run says nothing about the server, or an empty text."""
        if self.lateness > _TOO_LATE:
            return f"the client was late: p99 {self.lateness * 1e3:.0f} ms"
        others = "others used the server's core"
        if self.waited > _TOO_LONG_WAITED:
            return f"{others}: it waited {self.waited:.0%} of the time"
        if self.yardstick.void:
            return f"{others} when C was measured: {self.yardstick.waited:.0%} of the time"
        return "the server closed connections" if self.broken else ""


class _Server:
    """A server process, and a connection to ask it for its state."""

    def __init__(self, case: Case, capacity: float, core: int | None, protocol: str) -> None:
        command = [sys.executable, "-m", "benchmarks.overload_server"]
        command += ["--arm", case.arm, "--variant", case.variant, "--capacity", str(capacity)]
        command += ["--http", protocol]
        command += ["--io-first"] if case.io_first else []
        command += [] if core is None else ["--core", str(core)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server did not start: {' '.join(command)}")
        started = json.loads(line)
        self.port: int = started["port"]
        self.speaks: str = started["http"]
        self._control = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)

    def get(self, path: str, timeout: float = 10.0) -> bytes:
        if self._control.sock is not None:
            self._control.sock.settimeout(timeout)
        self._control.request("GET", path)
        return self._control.getresponse().read()

    def state(self, timeout: float = 10.0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get(STATE, timeout))
        return found

    def last_facts(self) -> dict[str, Any]:
        """What the protection tells after a run, if the server still answers in good time."""
        try:
            facts: dict[str, Any] = self.state(timeout=1.0)["facts"]
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        return facts

    def double_cost(self) -> None:
        os.kill(self._process.pid, signal.SIGUSR1)

    def cpu(self) -> float:
        """Seconds of CPU so far, of its one thread."""
        return self._scheduled(0)

    def waited(self) -> float:
        """Seconds that the server was ready to run while its core ran something else."""
        return self._scheduled(1)

    def _scheduled(self, field: int) -> float:
        path = Path(f"/proc/{self._process.pid}/schedstat")
        return int(path.read_text(encoding="ascii").split()[field]) * 1e-9

    def stop(self) -> None:
        self._control.close()
        self._process.kill()
        self._process.communicate()


@contextmanager
def _serving(case: Case, capacity: float, core: int | None, protocol: str) -> Iterator[_Server]:
    server = _Server(case, capacity, core, protocol)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def _connected(server: _Server, count: int) -> Iterator[Connections]:
    """Connections that the server has accepted, each and all."""
    with Connections(server.port) as connections:
        for path in ("/", "/", "/", STATE):  # imports and caches
            server.get(path)
        opened = 0
        while opened < count:
            step = min(_CHUNK, count - opened)
            connections.open(step)
            opened += step
            give_up = time.monotonic() + 10
            while server.state()["connections"] < opened + 1:
                if time.monotonic() > give_up:
                    raise RuntimeError(f"the server accepted less than {opened} connections")
                time.sleep(0.01)
        yield connections


def measure_yardstick(
    variant: str, *, halved: bool, seconds: float, core: int | None, protocol: str
) -> Yardstick:
    """Measure C and the cost of a refusal, each on a fresh server.

    CPU comes first in it, also where a run has I/O first: all those who ask again would sleep at
    the same time, and leave the core idle as no open loop does.
    """
    plain = Case("nothing", variant)
    # Enough to fill the core while some sleep, and not many more: the more there are, the more of
    # them answer at once, and the less is known of the rate after so many seconds.
    cpu, io = VARIANTS[variant].cpu, VARIANTS[variant].io
    busy = math.ceil(2 * (cpu + io) / cpu) + 4

    speaks, worst = "", 0.0

    def closed(case: Case, connections: int, *, doubled: bool = False) -> tuple[float, float]:
        nonlocal speaks, worst
        for _ in range(_ATTEMPTS):
            with _serving(case, 1.0, core, protocol) as server:
                if doubled:
                    server.double_cost()
                with _connected(server, connections) as opened:
                    waited = server.waited()
                    rate, cost = closed_loop(
                        opened, settle=_SETTLE, seconds=seconds, observe=server.cpu
                    )
                    waited = (server.waited() - waited) / (_SETTLE + seconds)
            if waited <= _TOO_LONG_WAITED:
                break
        speaks, worst = server.speaks, max(worst, waited)
        return rate, cost

    capacity, _ = closed(plain, busy)
    half = closed(plain, busy, doubled=True)[0] if halved else math.nan
    _, refusal = closed(Case(REFUSE_ALL, variant), _REFUSED_CONNECTIONS)
    return Yardstick(capacity, half, refusal, speaks, worst)


def run(case: Case, yardstick: Yardstick, *, seed: int, core: int | None, protocol: str) -> Figures:
    """Run a case on a fresh server."""
    capacity = yardstick.capacity
    rate = case.load * capacity
    planned = poisson(capacity / 2, case.warm, seed + 1) if case.warm else []
    planned += poisson(rate, case.seconds, seed, after=case.warm)
    end = case.warm + case.seconds
    halving = case.warm + case.seconds * _SHARE_BEFORE_HALVING if case.halve else None
    count = max(_FEWEST_CONNECTIONS, math.ceil(1.5 * rate * DEADLINE))
    with _serving(case, capacity, core, protocol) as server, _connected(server, count) as opened:
        waited = server.waited()
        event = (halving, server.double_cost) if halving is not None else None
        answers = open_loop(opened, planned, end=end + DEADLINE, event=event)
        waited = (server.waited() - waited) / (end + DEADLINE)
        facts = server.last_facts()
    return _figures(case, yardstick, answers, halving, waited=waited, facts=facts)


def _figures(
    case: Case,
    yardstick: Yardstick,
    answers: Answers,
    halving: float | None,
    *,
    waited: float,
    facts: dict[str, Any],
) -> Figures:
    begin, end = case.warm, case.warm + case.seconds
    capacity, load, counted = yardstick.capacity, case.load, begin
    if halving is not None:
        capacity, load = yardstick.halved, case.load * yardstick.capacity / yardstick.halved
        counted = halving + _AFTER_HALVING
    good: list[tuple[float, float]] = []  # planned, answered
    admitted: list[float] = []
    refused: list[float] = []
    tally = dict.fromkeys((UNANSWERED, LOST, BROKEN), 0)
    for at, status, answered in zip(answers.planned, answers.status, answers.answered, strict=True):
        if at < begin:
            continue
        if status == 200:
            admitted.append(answered - at)
            if answered - at <= DEADLINE:
                good.append((at, answered))
        elif status in (429, 503):
            refused.append(answered - at)
        elif status in tally:
            tally[status] += 1
        else:
            raise RuntimeError(f"the server answered with {status}")

    def share(since: float) -> float:
        return sum(at >= since for at, _ in good) / (end - since) / capacity

    # From the halving on, if there is one: how long goodput takes to find its new level.
    origin = begin if halving is None else halving
    buckets = [0] * int((end - origin) / _BUCKET)
    for _, answered in good:
        place = int((answered - origin) / _BUCKET)
        if answered >= origin and place < len(buckets):
            buckets[place] += 1
    return Figures(
        case=case,
        yardstick=yardstick,
        share=share(counted),
        later_share=share(max(counted, begin + 1.0)),
        ceiling=yardstick.ceiling(load, capacity),
        admitted={part: _percentile(admitted, part) for part in (50, 99)},
        refused={part: _percentile(refused, part) for part in (50, 99)},
        settled=_settled(buckets),
        lateness=_percentile(answers.lateness, 99),
        waited=waited,
        refusals=len(refused),
        late=len(admitted) - len(good),
        unanswered=tally[UNANSWERED],
        lost=tally[LOST],
        broken=tally[BROKEN],
        buckets=[count / _BUCKET / capacity for count in buckets],
        facts=facts,
    )


def _settled(buckets: list[int]) -> float:
    """Seconds until goodput stays at 85 % of its final median.

    It never does if that takes more than half of the time. Two buckets in a row have to fall
    short of it, not one: answers come in bursts, one for each iteration of the server's loop, and
    a single bucket has one more or less by chance.
    """
    level = median(buckets[len(buckets) // 2 :])
    if level <= 0:
        return math.inf
    enough = [count >= _SETTLED * level for count in buckets]
    for place in range(len(enough) - 2, -1, -1):
        if not enough[place] and not enough[place + 1]:
            return (place + 2) * _BUCKET if place + 2 <= len(buckets) // 2 else math.inf
    return 0.0 if enough[0] else _BUCKET


def _percentile(values: list[float], percent: int) -> float:
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
