"""Sensors: what is read, what becomes of those that break, and what a real limit looks like."""

import gc
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aiolimit import LoadController
from aiolimit.load.sensors import BUILT_IN, Sensor, Sensors
from aiolimit.testing import FakeClock
from tests.serving import ROOT


def root_with(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


SCHEDSTAT = "proc__thread-self__schedstat"


# --- one sensor ----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_a_miss(value: float) -> None:
    sensor = Sensor("mine", lambda: value)
    assert sensor.get(0.0) is None
    assert sensor.failures == 1


def test_a_sensor_is_left_out_after_three_misses_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = 0

    def read() -> float:
        nonlocal calls
        calls += 1
        if calls <= 5:
            raise LookupError("away")
        return 0.5

    sensor = Sensor("mine", read)
    with caplog.at_level(logging.WARNING, "aiolimit.load"):
        assert [sensor.get(now) for now in range(10)] == [None] * 10
        assert calls == 3
        assert not sensor.is_up(9)
        assert sensor.get(32.0) is None  # tried again, fails again, left out again at once
        assert calls == 4
        assert sensor.get(33.0) is None
        assert calls == 4
        assert sensor.get(63.0) is None
        assert sensor.get(94.0) == 0.5
        assert sensor.get(95.0) == 0.5
    assert len(caplog.records) == 1  # logged once
    assert (
        "sensor 'mine' failed 3 times and is left out for now: LookupError('away')" in caplog.text
    )
    assert sensor.failures == 5


def test_a_miss_now_and_then_is_no_reason() -> None:
    values: Iterator[Any] = iter([1.0, None, 1.0, float("nan"), float("nan"), 2.0] * 5)
    sensor = Sensor("mine", lambda: next(values))
    assert [sensor.get(float(n)) for n in range(30)].count(2.0) == 5


# --- the built-in ones ---------------------------------------------------------------------------


def test_all_of_them_here() -> None:
    sensors = Sensors()
    sensors.start()
    try:
        first = sensors.read(0.0)
        assert set(first) == set(BUILT_IN)
        gc.collect()
        sum(range(100_000))
        second = sensors.read(0.25)
        assert second["cpu"] > first["cpu"]
        assert second["gc"] > first["gc"]
        assert 0 < second["memory"] < 1
        cores, used = second["machine"]
        assert cores == os.cpu_count()
        assert used > 0
    finally:
        sensors.stop()
    assert not any("GarbageWatch" in repr(callback) for callback in gc.callbacks)


def test_some_can_be_left_out() -> None:
    sensors = Sensors(without=frozenset({"gc", "memory"}))
    assert set(sensors.read(0.0)) == set(BUILT_IN) - {"gc", "memory"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5000000 250000000 12\n", 0.25),
        ("0 0 0\n", None),  # gVisor counts nothing
        ("", None),
        ("1 2\n", None),
        ("a b c\n", None),
    ],
)
def test_waiting_for_a_core(tmp_path: Path, text: str, expected: float | None) -> None:
    sensors = Sensors(root_with(tmp_path, **{SCHEDSTAT: text}))
    assert sensors.read(0.0)["scheduler"] == expected


def test_a_machine_without_proc(tmp_path: Path) -> None:
    found = Sensors(tmp_path).read(0.0)
    assert found["scheduler"] is None
    assert found["group"] is None
    assert found["stall"] is None
    assert found["cpu"] > 0


def test_a_group_with_a_limit(tmp_path: Path) -> None:
    root = root_with(
        tmp_path,
        proc__self__cgroup="0::/app\n",
        **{
            "sys__fs__cgroup__app__cpu.max": "50000 100000\n",
            "sys__fs__cgroup__app__cpu.stat": "usage_usec 9000000000000\n",
            "sys__fs__cgroup__app__memory.max": "1000\n",
            "sys__fs__cgroup__app__memory.current": "950\n",
            "sys__fs__cgroup__app__memory.stat": "inactive_file 50\n",
            "sys__fs__cgroup__app__memory.pressure": "some avg10=25.00 avg60=0.00 total=1\n",
        },
    )
    found = Sensors(root).read(0.0)
    cores, others = found["group"]
    assert cores == 0.5
    assert 8e6 < others < 9e6
    assert found["memory"] == 0.9
    assert found["stall"] == 0.25


def test_without_psutil() -> None:
    source = (
        "import sys; sys.modules['psutil'] = None\n"
        "from aiolimit import *\n"
        "import asyncio\n"
        "async def main():\n"
        "    controller = LoadController()\n"
        "    limiter = Limiter('100/s', load=controller)\n"
        "    async with controller:\n"
        "        for _ in range(60):\n"
        "            async with limiter.acquire(): await asyncio.sleep(0.01)\n"
        "    print(controller.state.cost is not None, controller.sensors())\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True")
    assert "'machine': False" in done.stdout
    assert done.stderr == ""


# --- in the controller ---------------------------------------------------------------------------


class Told:
    """Sensors that say what a test tells them to."""

    def __init__(self) -> None:
        self.built_in: dict[str, Sensor[Any]] = {}
        self.says: dict[str, Any] = {}

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def read(self, _now: float) -> dict[str, Any]:
        return dict(self.says)


class Calls:
    """A limiter as the controller sees it."""

    admitted = completed = 0

    def _counts(self) -> tuple[int, int]:
        return self.admitted, self.completed


@contextmanager
def told() -> Iterator[tuple[LoadController, Told, Calls, FakeClock]]:
    clock = FakeClock()
    controller = LoadController(clock=clock)
    controller._sensors = sensors = Told()  # type: ignore[assignment]
    calls = Calls()
    controller.watch(calls)
    yield controller, sensors, calls, clock


async def test_the_first_reading_is_no_sample() -> None:
    with told() as (controller, sensors, calls, clock):
        sensors.says = {"cpu": 1e6, "gc": 1e6}
        calls.admitted = calls.completed = 10**6
        async with controller:
            assert controller.state.cost is None
            assert controller.state.busy == 0
            clock.jump(0.5)
            assert controller.state.busy == 0
            assert controller.state.pressures == {"gc": 0.0}


async def test_all_sensors_lost() -> None:
    with told() as (controller, sensors, calls, clock):
        async with controller:
            for _ in range(60):
                sensors.says = {"cpu": sensors.says.get("cpu", 0.0) + 0.025}
                calls.admitted += 5
                calls.completed += 5
                clock.jump(0.05)
            rate = controller.state.rate
            assert rate == pytest.approx(0.97 / 0.005, rel=0.05)
            sensors.says = {}
            await clock.advance(4.5)
            assert controller.state.rate == rate
            assert controller.state.blind == pytest.approx(4.5, abs=0.5)
            await clock.advance(60)
            assert controller.state.rate > 10 * rate
            assert "could not be measured for" in str(controller.report(clock.time()))


async def test_a_full_group_lowers_the_share() -> None:
    with told() as (controller, sensors, calls, clock):
        async with controller:
            for step in range(100):
                # Two cores, of which the others in the group use one and three quarters.
                seconds = 0.05 * step
                sensors.says = {"cpu": 0.1 * seconds, "group": (2.0, 1.75 * seconds)}
                calls.admitted += 1
                calls.completed += 1
                clock.jump(0.05)
            assert controller.state.share == pytest.approx(0.5, abs=0.01)  # never under a quarter


async def test_other_processes_count_only_where_the_scheduler_is_silent() -> None:
    for scheduler, expected in ((None, 0.5), (0.0, 1.0)):
        with told() as (controller, sensors, calls, clock):
            async with controller:
                for step in range(100):
                    seconds = 0.05 * step
                    sensors.says = {"cpu": 0.1 * seconds, "machine": (2.0, 2.0 * seconds)}
                    if scheduler is not None:
                        sensors.says["scheduler"] = scheduler
                    calls.admitted += 1
                    clock.jump(0.05)
                assert controller.state.share == pytest.approx(expected, abs=0.01)


# --- for real ------------------------------------------------------------------------------------

_BUSY = """
import asyncio, json, time
from aiolimit import Limiter, LoadController, Overloaded

def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

async def main():
    controller = LoadController()
    limiter = Limiter("1000000/s", load=controller)
    end = time.monotonic() + 3
    async def call():
        while time.monotonic() < end:
            try:
                async with limiter.acquire(max_wait=0):
                    burn(0.005)
                    await asyncio.sleep(0)
            except Overloaded:
                await asyncio.sleep(0.005)
    async with controller:
        await asyncio.gather(*(call() for _ in range(20)))
        state = controller.state
        print(json.dumps({"share": state.share, "rate": state.rate, "cost": state.cost}))

asyncio.run(main())
"""


def run_busy(*, prepare: Any = None) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", _BUSY], capture_output=True, text=True, cwd=ROOT,
        timeout=60, preexec_fn=prepare,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


@contextmanager
def half_a_core() -> Iterator[Path | None]:
    """A group of the kernel's that allows half a core; None where we may not make one."""
    for parent, files in (
        (Path("/sys/fs/cgroup/cpu"), {"cpu.cfs_period_us": "50000", "cpu.cfs_quota_us": "25000"}),
        (Path("/sys/fs/cgroup"), {"cpu.max": "25000 50000"}),
    ):
        group = parent / f"aiolimit-sensors-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            for name, text in files.items():
                (group / name).write_text(text)
        except OSError:
            group.rmdir()
            continue
        try:
            yield group
        finally:
            group.rmdir()
        return
    yield None


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the Linux kernel")
def test_a_real_limit_of_the_cpu() -> None:
    """In half a core half as much can be done, and the controller says so.

    Where no group can be made, another process on the same core takes its half instead.
    """
    with half_a_core() as group:
        if group is not None:
            found = run_busy(prepare=lambda: (group / "cgroup.procs").write_text(str(os.getpid())))
            assert 0.3 < found["share"] <= 0.5
            assert found["rate"] < 0.97 * 0.5 / 0.005 * 1.1
        else:
            competing()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs to choose a core")
def test_another_process_on_the_same_core() -> None:
    competing()


def competing() -> None:
    core = min(os.sched_getaffinity(0))
    burner = subprocess.Popen(
        [sys.executable, "-c", "while True: pass"],
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    try:
        found = run_busy(prepare=lambda: os.sched_setaffinity(0, {core}))
    finally:
        burner.kill()
        burner.wait()
    # Half of it, or less where still others are at work; where the scheduler tells nothing, the
    # machine as a whole is looked at, and that may have a core to spare.
    assert 0.1 < found["share"] < 0.75
    assert found["cost"] < 0.02
