"""An event loop in simulated time, and a service on it: what load control is measured against.

As on asyncio, an iteration runs what became ready during the one before: new requests, handlers
that go on, timers that are due. What it runs takes time, so an iteration grows with what it has to
do. Requests arrive by themselves (open loop) and are worth something for half a second from when
they were meant to arrive. Everything is seeded: the same numbers come out on every machine.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from aiolimit.load.controller import LoadController

DEADLINE = 0.5
PARSE = 15e-6  # what any request costs before anybody can decide about it


class _Timer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class SimulatedLoop:
    """A clock and as much of an event loop as the controller asks for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cpu = 0.0
        self.waited = 0.0
        self.ready: deque[Callable[[], object]] = deque()
        self.timers: list[tuple[float, int, _Timer]] = []
        self.share = 1.0  # of the core; the rest of the time the thread waits for it
        self._order = count()

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.ready.append(callback)

    def call_later(self, delay: float, callback: Callable[[], object]) -> _Timer:
        timer = _Timer(callback)
        heapq.heappush(self.timers, (self.now + delay, next(self._order), timer))
        return timer

    def is_running(self) -> bool:
        return True

    def burn(self, seconds: float) -> None:
        """Use the CPU."""
        self.cpu += seconds
        self.now += seconds / self.share
        self.waited += seconds / self.share - seconds

    def block(self, seconds: float) -> None:
        """Hold up the loop without using the CPU, as a synchronous driver does."""
        self.now += seconds

    def run(self, until: float) -> None:
        while self.now < until:
            if not self.ready:
                self.now = max(self.now, min(self.timers[0][0], until)) if self.timers else until
            while self.timers and self.timers[0][0] <= self.now:
                timer = heapq.heappop(self.timers)[2]
                if timer.callback is not None:
                    self.ready.append(timer.callback)
            for _ in range(len(self.ready)):
                self.ready.popleft()()


class SimulatedSensors:
    """What the loop has used, in place of what this test has."""

    def __init__(self, loop: SimulatedLoop, noise: float = 0.0) -> None:
        self.loop = loop
        self.built_in: dict[str, Any] = {}
        self.up = True
        self.pressure: float | None = None
        self.noise = noise
        self.random = random.Random(1)

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def read(self, _now: float) -> dict[str, Any]:
        if not self.up:
            return {}
        return {
            "cpu": self.loop.cpu + self.noise * self.random.random(),
            "scheduler": self.loop.waited,
            "memory": self.pressure,
        }


@dataclass
class Outcome:
    """What became of the requests, by the second in which they were meant to arrive."""

    served: dict[int, int] = field(default_factory=dict)
    offered: dict[int, int] = field(default_factory=dict)
    refused: int = 0
    late: int = 0
    latencies: list[float] = field(default_factory=list)

    def goodput(self, first: int, last: int) -> float:
        """Served in time, a second."""
        return sum(self.served.get(second, 0) for second in range(first, last)) / (last - first)


class Protection:
    """Lets everyone in."""

    def admit(self, _now: float) -> bool:
        return True

    def enter(self, _now: float) -> Any:
        return None

    def leave(self, _ticket: Any) -> None:
        pass


class Controlled(Protection):
    """The real controller and its gate, as a permit uses them."""

    def __init__(self, loop: SimulatedLoop, noise: float = 0.0, **options: Any) -> None:
        self.controller = LoadController(clock=loop, **options)
        self.sensors = SimulatedSensors(loop, noise)
        self.controller._sensors = self.sensors  # type: ignore[assignment]
        self.admitted = self.completed = 0
        self.controller.watch(self)
        self.controller._begin(loop)  # type: ignore[arg-type]
        self.gate = self.controller.gate

    def _counts(self) -> tuple[int, int]:
        return self.admitted, self.completed

    def admit(self, now: float) -> bool:
        obstacle = self.gate.obstacle(now, holds=True)
        if obstacle is None:
            return True
        self.gate.refuse(obstacle)
        return False

    def enter(self, now: float) -> Any:
        self.admitted += 1
        return self.gate.enter(now, holds=True), now

    def leave(self, ticket: Any) -> None:
        cohort, came = ticket
        self.completed += 1
        cohort.held -= 1
        if cohort.asks:
            self.gate.leave(came)


class AcquireOnly(Controlled):
    """The same for callers who do not tell when they are through."""

    def admit(self, now: float) -> bool:
        obstacle = self.gate.obstacle(now, holds=False)
        if obstacle is None:
            return True
        self.gate.refuse(obstacle)
        return False

    def enter(self, now: float) -> Any:
        self.admitted += 1
        self.completed += 1
        self.gate.enter(now, holds=False)
        return None

    def leave(self, ticket: Any) -> None:
        pass


class Service:
    """A service whose requests take CPU and I/O; `cpu` may change while it runs."""

    def __init__(
        self,
        loop: SimulatedLoop,
        protection: Protection,
        *,
        cpu: float = 0.005,
        io: float = 0.020,
        io_first: bool = False,
        refusal: float = 50e-6,
        blocks: float = 0.0,
        seed: int = 1,
        jitter: float = 0.0,
    ) -> None:
        self.loop = loop
        self.protection = protection
        self.cpu, self.io, self.io_first, self.refusal = cpu, io, io_first, refusal
        self.blocks = blocks
        self.outcome = Outcome()
        self.random = random.Random(seed)
        self.jitter = jitter

    @property
    def capacity(self) -> float:
        """Requests a second that a whole core can do."""
        return 1 / (self.cpu + self.blocks + PARSE)

    def offer(self, rate: float, start: float, end: float) -> None:
        """Have requests arrive at that rate, at times of their own."""
        at = start
        while True:
            at += self.random.expovariate(rate)
            if at >= end:
                return
            self.loop.call_later(at - self.loop.now, self._arrival(at))

    def _arrival(self, meant: float) -> Callable[[], None]:
        second = int(meant)
        outcome, loop = self.outcome, self.loop
        outcome.offered[second] = outcome.offered.get(second, 0) + 1

        def parse() -> None:
            loop.burn(PARSE)
            loop.call_soon(ask)  # the task is made, and runs in the next iteration

        def ask() -> None:
            if not self.protection.admit(loop.now):
                loop.burn(self.refusal)
                outcome.refused += 1
                return
            ticket = self.protection.enter(loop.now)
            if self.io_first and self.io:

                def go_on() -> None:
                    self._burn()
                    done(ticket)

                loop.call_later(self._io(), go_on)
                return
            self._burn()
            if self.io:
                loop.call_later(self._io(), lambda: done(ticket))
            else:
                done(ticket)

        def done(ticket: Any) -> None:
            self.protection.leave(ticket)
            latency = loop.now - meant
            outcome.latencies.append(latency)
            if latency <= DEADLINE:
                outcome.served[second] = outcome.served.get(second, 0) + 1
            else:
                outcome.late += 1

        return parse

    def _io(self) -> float:
        return self.io * (1 + self.jitter * self.random.expovariate(1.0))

    def _burn(self) -> None:
        self.loop.burn(self.cpu * (1 + self.jitter * (self.random.expovariate(1.0) - 1)))
        if self.blocks:
            self.loop.block(self.blocks)


def ceiling(service: Service, load: float) -> float:
    """The share of its capacity that a service can serve at most, as refusals cost, too."""
    part = (service.refusal + PARSE) * service.capacity
    return min(load, (1 - load * part) / (1 - part))


def simulate(
    protect: Callable[[SimulatedLoop], Protection],
    load: float,
    seconds: int = 12,
    **options: Any,
) -> tuple[float, Service, Any]:
    """Goodput of the last seconds as a share of the ceiling, the service and its protection."""
    loop = SimulatedLoop()
    protection = protect(loop)
    service = Service(loop, protection, **options)
    service.offer(0.5 * service.capacity, 0.0, 2.0)
    service.offer(load * service.capacity, 2.0, seconds)
    loop.run(seconds + 1)
    share = service.outcome.goodput(3, seconds) / service.capacity
    return share / ceiling(service, load), service, protection
