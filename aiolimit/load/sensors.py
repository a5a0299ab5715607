"""Sensors: what can be measured of this process and its machine, cheaply and without waiting.

A sensor is a name and a function that reads it. What cannot be had here is None, never 0. One that
raises or gives what is no number is left out after three misses, logged once, and tried again
later: a broken sensor never fails a request. Nothing here sleeps: reading all of them takes about
as long as one small request.

Reading tells totals; the difference between two readings is a sample for the law. So the first
reading gives none. All times are seconds.
"""

import asyncio
import gc
import inspect
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from math import inf, isfinite
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from aiolimit.load.cgroup import Cgroup

__all__ = ["BUILT_IN", "OwnSensor", "Sensor", "Sensors", "ask_all"]

T = TypeVar("T")

_log = logging.getLogger("aiolimit.load")
_MISSES: Final = 3
_AGAIN: Final = 30.0
_ASK_AGAIN: Final = 0.5  # how often a sensor of the user's is asked
_PATIENCE: Final = 1.0  # how long it may take
_STALE: Final = 3.0  # what it said longer ago counts no more

#: The names of the sensors that come with the controller.
BUILT_IN: Final = ("cpu", "scheduler", "group", "machine", "memory", "stall", "gc")


class Sensor(Generic[T]):
    """A function that measures something, and what became of its latest calls.

    name: for logs, states and metrics.
    read: gives the value, or None where there is none.
    failures: how often it raised or gave what is no number.
    """

    __slots__ = ("_misses", "_off_until", "failures", "name", "read")

    def __init__(self, name: str, read: Callable[[], T | None]) -> None:
        self.name = name
        self.read = read
        self.failures = 0
        self._misses = 0
        self._off_until = -inf

    def is_up(self, now: float) -> bool:
        """Whether it is asked at all, now."""
        return now >= self._off_until

    def get(self, now: float) -> T | None:
        """Its value, None if it has none or is left out."""
        if not self.is_up(now):
            return None
        try:
            value = self.read()
            if isinstance(value, float | int) and not isfinite(value):
                raise ValueError(f"it gave {value!r}")
        except Exception as error:  # noqa: BLE001 (whatever it is, no request is to blame)
            self.missed(error, now)
            return None
        self.answered()
        return value

    def answered(self) -> None:
        """Forget earlier failures."""
        self._misses = 0

    def missed(self, error: BaseException, now: float) -> None:
        """Count a failure; leave it out for a while after the third in a row."""
        self.failures += 1
        self._misses += 1
        if self._misses == _MISSES:
            _log.warning(
                "sensor %r failed %d times and is left out for now: %r", self.name, _MISSES, error
            )
        if self._misses >= _MISSES:
            self._off_until = now + _AGAIN


class OwnSensor:
    """A sensor of the user's, which is asked outside the loop: it may take its time.

    name, read: as given; `read` may be async, and returns a pressure or None.
    """

    def __init__(self, name: str, read: Callable[[], Any]) -> None:
        self._sensor: Sensor[float] = Sensor(name, read)
        self._pressure: float | None = None
        self._said_at = -inf

    @property
    def failures(self) -> int:
        """As of `Sensor`."""
        return self._sensor.failures

    def pressure(self, now: float) -> float | None:
        """What it said last; None if that is long ago."""
        return self._pressure if now - self._said_at <= _STALE else None

    async def run(self, clock: Callable[[], float]) -> None:
        """Ask it again and again. One that blocks is not asked twice at once."""
        import anyio

        sensor = self._sensor
        thread = anyio.CapacityLimiter(1)
        while True:
            if sensor.is_up(clock()):
                try:
                    with anyio.fail_after(_PATIENCE):
                        said = await self._ask(thread)
                    pressure = None if said is None else float(said)
                    if pressure is not None and not isfinite(pressure):
                        raise ValueError(f"it gave {said!r}")
                except asyncio.CancelledError as error:
                    task = asyncio.current_task()
                    if task is None or task.cancelling():
                        raise
                    sensor.missed(error, clock())  # of something that it waited for
                except Exception as error:  # noqa: BLE001 (whatever it is, no request is to blame)
                    sensor.missed(error, clock())
                else:
                    sensor.answered()
                    self._pressure, self._said_at = pressure, clock()
            await anyio.sleep(_ASK_AGAIN)

    async def _ask(self, thread: Any) -> Any:
        import anyio.to_thread

        read = self._sensor.read
        if inspect.iscoroutinefunction(read):
            return await read()
        said = await anyio.to_thread.run_sync(read, abandon_on_cancel=True, limiter=thread)
        return await said if inspect.isawaitable(said) else said


async def ask_all(sensors: Iterable[OwnSensor], clock: Callable[[], float]) -> None:
    """Ask all of them, until cancelled."""
    import anyio

    async with anyio.create_task_group() as group:
        for sensor in sensors:
            group.start_soon(sensor.run, clock)


class _GarbageWatch:
    """The time that the collector of garbage has stopped this process, seconds."""

    __slots__ = ("_since", "paused")

    def __init__(self) -> None:
        self.paused = 0.0
        self._since: float | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._since = None
        if self._see not in gc.callbacks:
            gc.callbacks.append(self._see)

    def stop(self) -> None:
        """Watch no more."""
        if self._see in gc.callbacks:
            gc.callbacks.remove(self._see)

    def _see(self, phase: str, _info: Mapping[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._since = now
        elif self._since is not None:
            self.paused += now - self._since
            self._since = None


class Sensors:
    """All built-in sensors of one process, but those left out.

    root: where /proc and /sys are found, for tests.
    """

    def __init__(self, root: Path = Path("/"), without: frozenset[str] = frozenset()) -> None:
        self._schedstat = root / "proc/thread-self/schedstat"
        self._cgroup = Cgroup(root)
        self._psutil = _psutil()
        self._cores = float((self._psutil and self._psutil.cpu_count()) or 1)
        self._garbage = _GarbageWatch()
        reads: dict[str, Callable[[], Any]] = {
            "cpu": time.thread_time,
            "scheduler": self._scheduler,
            "group": self._group,
            "machine": self._machine,
            "memory": self._memory,
            "stall": self._cgroup.memory_pressure,
            "gc": lambda: self._garbage.paused,
        }
        self.built_in = {
            name: Sensor(name, reads[name]) for name in BUILT_IN if name not in without
        }

    def start(self) -> None:
        """Begin to watch what cannot be read later."""
        if "gc" in self.built_in:
            self._garbage.start()

    def stop(self) -> None:
        """Leave nothing behind."""
        self._garbage.stop()

    def read(self, now: float) -> dict[str, Any]:
        """What each says, None where it says nothing."""
        return {name: sensor.get(now) for name, sensor in self.built_in.items()}

    def _scheduler(self) -> float | None:
        """Seconds that this thread was ready to run and had no core, so far."""
        if not self._schedstat.exists():
            return None
        ran, waited, _ = self._schedstat.read_text().split()
        # Where the kernel does not count them, as in gVisor, both stay at 0.
        return int(waited) / 1e9 if int(ran) else None

    def _group(self) -> tuple[float, float] | None:
        """Cores that the group may use, and the CPU time so far of all in it but this thread."""
        group = self._cgroup.cpu()
        if group is None or group.limit is None:
            return None
        return group.limit, 0.0 if group.used is None else group.used - time.thread_time()

    def _machine(self) -> tuple[float, float] | None:
        """The cores of the machine, and the CPU time so far of all but this thread."""
        if self._psutil is None:
            return None
        total = self._psutil.cpu_times()
        used = sum(total) - total.idle - getattr(total, "iowait", 0.0)
        # A guest's time is in `user` already.
        used -= getattr(total, "guest", 0.0) + getattr(total, "guest_nice", 0.0)
        return self._cores, used - time.thread_time()

    def _memory(self) -> float | None:
        """The share of the memory in use: of the group's limit or of the machine, the fuller."""
        shares = []
        group = self._cgroup.memory()
        if group is not None:
            shares.append(group.used / group.limit)
        if self._psutil is not None:
            machine = self._psutil.virtual_memory()
            shares.append(1 - machine.available / machine.total)
        return max(shares, default=None)


def _psutil() -> Any:
    try:
        import psutil
    except ImportError:  # left out of an installation on purpose
        return None
    return psutil
