"""The load controller: it measures the process it runs in, and tells its limiters what it can do.

```python
from aiolimit import Limiter, LoadController

controller = LoadController()
limiter = Limiter("100/s", load=controller)

async with controller:  # RateLimitMiddleware does it, for as long as the application runs
    ...
```

The sensors measure (`sensors.py`), the law concludes (`law.py`), the gate is where calls pass or
do not (`gate.py`). This room takes the steps: one every 125 to 375 ms, and where the loop is too
busy for its own timers, at the next call.
"""

import asyncio
import weakref
from collections.abc import Callable, Mapping
from math import inf
from types import TracebackType
from typing import Any, Final, Protocol

from aiolimit.arguments import check_name
from aiolimit.clock import Clock, Timer, check_clock, steady_time
from aiolimit.identity import OneOfAKind
from aiolimit.load.adjustments import Adjustments
from aiolimit.load.gate import Gate
from aiolimit.load.law import LoadState, Targets, advance
from aiolimit.load.options import check_names, check_seconds, check_sensors, check_share
from aiolimit.load.sampling import Sampling
from aiolimit.load.sensors import OwnSensor, Sensors, ask_all
from aiolimit.report import LoadReport

__all__ = ["LoadController", "check_load"]

_SHORTEST_STEP: Final = 0.125
_STEPS: Final = 0.25  # seconds between the shortest step and the longest
_FIRST_STEPS: Final = 0.03  # seconds between steps at calls, until the cost is known
_LARGE_BLOCK: Final = 1 << 20
_GOLDEN: Final = 0.6180339887498949  # its multiples fill 0..1 evenly, and never repeat
_RETIRED: Final = 4.0  # times the usual: who stays longer in an idle process is not counted
_RETIRED_AT_LEAST: Final = 0.5  # seconds
_IDLE: Final = 0.85


class Counted(Protocol):
    """What is watched: a limiter."""

    def _counts(self) -> tuple[int, int]:
        """Calls that have passed, and of those how many are through."""
        ...


class LoadController(OneOfAKind):
    """Keeps an overloaded process doing useful work: what it cannot do in time is refused.

    One for each process, shared by its limiters: `Limiter(..., load=controller)`. It has to run:
    `async with controller`, or through the ASGI middleware, which enters it with the application.

    cpu: what part of a core the event loop may use, of that which it can get, above 0 up to 1.
    queue: seconds an admitted call may queue for the CPU, 0.001 to 10.
    iteration: seconds after which an iteration of the event loop is too old to take in more,
        0.001 to 10.
    memory: the share of the memory limit from which less is admitted, above 0 up to 1.
    gc: the share of the time in which the collector of garbage stops the process, likewise, over
        two seconds.
    name: what it is called in metrics, where a process has several.
    sensors: your own, by name: functions, plain or async, that return a pressure, 1.0 at the
        target; above it less is admitted. Plain ones run in a thread.
    without: names of sensors to leave out, of "cpu", "scheduler", "group", "machine", "memory",
        "stall" and "gc".
    dry_run: work everything out and report it, but refuse nobody.
    clock: as for `Limiter`, and the same one.

    Raises `ValueError` for what is out of range and `TypeError` for what is of the wrong kind.
    """

    def __init__(
        self,
        *,
        cpu: float = 0.97,
        queue: float = 0.1,
        iteration: float = 0.1,
        memory: float = 0.8,
        gc: float = 0.1,
        name: str = "default",
        sensors: Mapping[str, Callable[[], Any]] | None = None,
        without: frozenset[str] | set[str] | tuple[str, ...] = (),
        dry_run: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.targets = Targets(
            cpu=check_share(cpu, "cpu"),
            queue=check_seconds(queue, "queue"),
            iteration=check_seconds(iteration, "iteration"),
        )
        pressures = {
            "memory": check_share(memory, "memory"),
            "gc": check_share(gc, "gc"),
            "stall": 0.1,
        }
        self.name = check_name(name)
        if not isinstance(dry_run, bool):
            raise TypeError(f"dry_run must be True or False, not {dry_run!r}")
        self.dry_run = dry_run
        self._sensors = Sensors(without=check_names(without))
        self._own = {name: OwnSensor(name, read) for name, read in check_sensors(sensors).items()}
        self.clock = check_clock(clock)
        self.time = steady_time(self.clock)
        self.gate = Gate(self.clock, self.time, self._step)
        self.gate.dry_run = dry_run
        # Replaced, never changed: a limiter may go in the middle of counting, or in a thread.
        self._limiters: tuple[weakref.ref[Counted], ...] = ()
        self._state = LoadState(queue=self.targets.queue)
        #: What was changed, how often, and why.
        self.adjustments = Adjustments((*pressures, *self._own))
        self._gone = (0, 0)  # the counts of limiters that are no more
        self._sampling = Sampling(pressures, self._own, self.gate)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._entered = 0
        self._steps = 0
        self._next = 0.0
        self._spread = 0.0
        self._over = 1.0  # calls in the last step, in times what the process can do
        self._timer: Timer | None = None
        self._asking: asyncio.Task[None] | None = None

    @property
    def state(self) -> LoadState:
        """What it holds to be true now: frozen, and made anew at every step."""
        return self._state

    @property
    def in_flight(self) -> int:
        """Calls inside `async with`, but those that have stayed for long in an idle process."""
        return self.gate.in_flight

    @property
    def would_refuse(self) -> int:
        """Calls that `dry_run` has let in, and that would have been refused or held up."""
        return self.gate.would_refuse

    @property
    def admitted(self) -> int:
        """Calls that all its limiters have let pass."""
        return self._count()[0]

    @property
    def refused(self) -> int:
        """Calls that it has refused, with those of `refused_early`."""
        return self.gate.refused

    @property
    def refused_early(self) -> int:
        """Requests that were refused before they were parsed (`aiolimit.http.uvicorn`)."""
        return self.gate.early

    @property
    def lag(self) -> float:
        """The longest iteration of the event loop in the last ten seconds or so, seconds.

        Only iterations in which somebody called are seen.
        """
        return self._sampling.lag()

    @property
    def lagged(self) -> float:
        """Seconds so far in iterations of the event loop that took more than 5 ms."""
        return self.gate.lagged(self.time())

    @property
    def is_running(self) -> bool:
        """Whether it was entered, and its event loop runs."""
        return self._loop is not None and self._loop.is_running()

    def report(self, now: float) -> LoadReport:
        """The state and what it means for a call now, for `Limiter.explain`."""
        change = self._state.change
        return LoadReport(
            state=self._state,
            in_flight=self.in_flight,
            obstacle=self.gate.look(now, holds=True),
            running=self.is_running,
            dry_run=self.dry_run,
            age=inf if change is None else max(0.0, now - change.at),
        )

    def sensors(self) -> dict[str, bool]:
        """Which sensors there are, and whether each is up: it is asked, and answered of late."""
        now = self.time()
        last = self._sampling.last or {}
        up = {
            name: sensor.is_up(now) and last.get(name) is not None
            for name, sensor in self._sensors.built_in.items()
        }
        return up | {name: own.pressure(now) is not None for name, own in self._own.items()}

    def sensor_failures(self) -> dict[str, int]:
        """How often each sensor raised, or gave what is no number."""
        built_in = {name: sensor.failures for name, sensor in self._sensors.built_in.items()}
        return built_in | {name: own.failures for name, own in self._own.items()}

    async def __aenter__(self) -> "LoadController":
        """Begin to measure. Entered again while it runs, it goes on until all have left."""
        loop = asyncio.get_running_loop()
        if self.is_running and self._loop is not loop:
            raise RuntimeError(
                "this LoadController runs on another event loop; make one for each loop"
            )
        if self._loop is loop:
            self._entered += 1
            return self
        self._entered = 1
        self._begin(loop)
        if self._own:
            # In a task of its own: who enters last may leave first, and in another task.
            self._asking = loop.create_task(ask_all(self._own.values(), self.time))
        return self

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # asyncio reads into a new block of 256 KiB each time, which glibc maps and unmaps until a
        # larger one has been freed. One refusal costs 15 to 20 us less from then on.
        bytes(_LARGE_BLOCK)
        self._state = LoadState(at=self.time(), queue=self.targets.queue)
        self._sampling.begin()
        self._sensors.start()
        self.gate.open(loop)
        self._step(self.time())
        self._set_timer()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        if task is None or task.get_loop() is not self._loop:
            return  # a coroutine of a loop that ended, which is only now collected
        self._entered -= 1
        if self._entered:
            return
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._sensors.stop()
        # Nobody looks after the process any more: nobody is held up, and who comes now is told.
        self.gate.set_limits(inf, inf, inf)
        self.gate.open(None)
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()
            await asyncio.wait([asking])

    def retry_after(self) -> float:
        """Seconds after which a refused caller may try again: longer the more are refused, and
        spread out, so that they do not come back together.
        """
        self._spread = (self._spread + _GOLDEN) % 1.0
        return self._over * (0.5 + self._spread)

    def watch(self, limiter: "Counted") -> None:
        """Count what passes that limiter, for as long as it lives."""
        self._limiters = (*self._limiters, weakref.ref(limiter))

    def depart(self, limiter: "Counted") -> None:
        """Keep the counts of a limiter that is about to go. See `Watcher`."""
        self._limiters = tuple(one for one in self._limiters if one() not in (None, limiter))
        passed, through = limiter._counts()
        self._gone = self._gone[0] + passed, self._gone[1] + through

    def is_over(self) -> bool:
        """Never: a limiter holds its controller. See `Watcher`."""
        return False

    def _count(self) -> tuple[int, int, int]:
        """Calls admitted, completed and refused so far, by all limiters that are alive."""
        alive = [limiter for one in self._limiters if (limiter := one()) is not None]
        counts = [self._gone, *(limiter._counts() for limiter in alive)]
        return sum(one for one, _ in counts), sum(one for _, one in counts), self.gate.refused

    def _set_timer(self) -> None:
        self._timer = self.clock.call_later(max(0.0, self._next - self.time()), self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if not self.is_running:
            return
        try:
            now = self.time()
            if now >= self._next:
                self._step(now)
        finally:
            self._set_timer()

    def _step(self, now: float) -> None:
        """Measure, conclude, and let in whom that lets in."""
        gate = self.gate
        self._steps += 1
        self._next = now + _SHORTEST_STEP + _STEPS * (self._steps * _GOLDEN % 1.0)
        gate.due = self._next
        sample = self._sampling.take(now, self._sensors.read(now), self._count())
        if sample is not None:
            state = self._state = advance(self._state, sample, self.targets)
            self.adjustments.see(state)
            calls = (sample.admitted + sample.refused) / sample.seconds
            self._over = min(30.0, max(1.0, calls / state.rate))
            stays = _RETIRED * (state.shortest + state.queue) if state.shortest < inf else 0.0
            idle = state.busy < _IDLE and state.factor == 1
            gate.turn(now, now - max(_RETIRED_AT_LEAST, stays) if idle else -inf)
        state, iteration = self._state, self.targets.iteration
        if state.cost is None:
            gate.due = now + _FIRST_STEPS
        else:
            # Where one call alone takes that long, the next must not be refused for it.
            iteration = max(iteration, 1.5 * state.cost / state.share)
        gate.set_limits(state.cap, state.rate * state.stretch, iteration)


def check_load(load: object, clock: Clock) -> None:
    """A controller for a limiter with that clock, or None."""
    if load is None:
        return
    if not isinstance(load, LoadController):
        raise TypeError(f"load must be a LoadController or None, not {load!r}")
    if load.clock is not clock and load.clock.time is not clock.time:
        raise ValueError(
            f"a limiter and its LoadController need the same clock, not {clock!r} and "
            f"{load.clock!r}"
        )
