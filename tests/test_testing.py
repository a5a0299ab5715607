"""FakeClock, as its page promises it."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aiolimit import Limiter
from aiolimit.testing import FakeClock


def test_in_a_plain_test() -> None:
    clock = FakeClock(start=5.0)
    limiter = Limiter("1/min", clock=clock)
    assert limiter.try_acquire()
    clock.jump(59.9)
    assert not limiter.try_acquire()
    clock.jump(0.1)
    assert limiter.try_acquire()
    assert clock.time() == pytest.approx(65.0)


def test_an_hour_of_waiting_in_milliseconds() -> None:
    async def main() -> float:
        clock = FakeClock(autojump=True)
        limiter = Limiter("100/h", clock=clock)
        await asyncio.gather(*(limiter.acquire() for _ in range(250)))
        return clock.time()

    begun = time.monotonic()
    assert asyncio.run(main()) == 7200.0
    assert asyncio.run(main()) == 7200.0, "and on another loop"
    assert time.monotonic() - begun < 5


async def test_under_pytest_asyncio() -> None:
    clock = FakeClock()
    limiter = Limiter("1/h", clock=clock)
    await limiter.acquire()
    task = asyncio.ensure_future(limiter.acquire())
    await clock.advance(3599)
    assert not task.done()
    await clock.advance(1)
    assert (await task).waited == 3600.0


def test_under_the_pytest_plugin_of_anyio(tmp_path: Path) -> None:
    """In a pytest of its own, in which anyio's plugin runs the test."""
    tmp_path.joinpath("test_it.py").write_text(
        "import anyio, pytest\n"
        "from aiolimit import Limiter\n"
        "from aiolimit.testing import FakeClock\n"
        "@pytest.fixture\n"
        "def anyio_backend():\n"
        "    return 'asyncio'\n"
        "@pytest.mark.anyio\n"
        "@pytest.mark.parametrize('autojump', [False, True])\n"
        "async def test_it(autojump):\n"
        "    clock = FakeClock(autojump=autojump)\n"
        "    limiter = Limiter('2/h', clock=clock)\n"
        "    entered = []\n"
        "    async def caller(name):\n"
        "        async with limiter.acquire():\n"
        "            entered.append((name, clock.time()))\n"
        "    async with anyio.create_task_group() as group:\n"
        "        for name in 'abc':\n"
        "            group.start_soon(caller, name)\n"
        "        if not autojump:\n"
        "            await clock.advance(3600)\n"
        "    assert entered == [('a', 0.0), ('b', 0.0), ('c', 3600.0)]\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path)
    assert "2 passed" in done.stdout, done.stdout


async def test_advance_stops_at_every_timer_on_the_way() -> None:
    clock = FakeClock()
    seen: list[float] = []

    async def chain() -> None:
        for _ in range(4):
            await clock.sleep(2.5)
            seen.append(clock.time())

    task = asyncio.create_task(chain())
    await clock.advance(7.6)
    assert seen == [2.5, 5.0, 7.5]
    assert clock.time() == 7.6
    task.cancel()
    await clock.advance(100)
    assert seen == [2.5, 5.0, 7.5]


async def test_timers_come_in_order_and_a_cancelled_one_does_not() -> None:
    clock = FakeClock()
    called: list[str] = []
    clock.call_later(2, lambda: called.append("later"))
    clock.call_later(1, lambda: called.append("first"))
    clock.call_later(1, lambda: called.append("second"))
    gone = clock.call_later(1, lambda: called.append("cancelled"))
    gone.cancel()
    gone.cancel()
    clock.call_later(0, lambda: called.append("at once"))
    await asyncio.sleep(0)
    assert called == ["at once"]
    clock.jump(1.5)
    assert called == ["at once", "first", "second"]
    await clock.advance(1)
    assert called == ["at once", "first", "second", "later"]


def test_time_that_passes_is_never_short() -> None:
    clock = FakeClock()
    for _ in range(1000):
        clock.jump(0.1)
    assert 100.0 <= clock.time() < 100.0001


async def test_setting_the_clock_passes_no_time() -> None:
    clock = FakeClock(start=100)
    called: list[int] = []
    clock.call_later(5, lambda: called.append(1))
    clock.set_by(1000)
    assert (clock.time(), called) == (1100, [])
    clock.set_by(-1050)
    await clock.advance(5)
    assert (clock.time(), called) == (55, [1])


async def test_tasks_that_never_wait_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiolimit.testing._BUSY_ROUNDS", 50)

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    task = asyncio.create_task(spin())
    with pytest.raises(RuntimeError, match="tasks were still busy after 50 rounds of the loop"):
        await FakeClock().advance(1)
    task.cancel()


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
async def test_time_does_not_pass_backwards(seconds: float) -> None:
    clock = FakeClock()
    refused = "seconds must be finite and 0 or more, not"
    with pytest.raises(ValueError, match=refused):
        clock.jump(seconds)
    for move in (clock.advance, clock.sleep):
        with pytest.raises(ValueError, match=refused):
            await move(seconds)
    with pytest.raises(TypeError, match="start must be a number, not '0'"):
        FakeClock(start="0")  # type: ignore[arg-type]
