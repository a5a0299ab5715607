"""The second act: a service gets slower under load, and its load controller keeps it useful.

The load is real HTTP in an open loop: a service that is behind gets no rest. What the service is
told and asked goes to its operator's paths, on a connection of its own.
"""

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator

from rich.console import Console
from rich.live import Live

from aiolimit.cli import load_screen
from aiolimit.cli.open_loop import Client, open_loop
from aiolimit.cli.page import Service
from aiolimit.cli.screen import say, tell
from aiolimit.cli.services import DemoFailed, started
from aiolimit.cli.tally import DEADLINE, Phase, Second, Status, phases, planned

__all__ = ["busy", "load"]

# Open before the load, as a service that is behind is slow to accept. More are opened when all of
# them are in use. The operator may want to change something while it asks how things are.
_CONNECTIONS = 50
_OPERATORS_CONNECTIONS = 2


@contextlib.asynccontextmanager
async def busy() -> AsyncIterator[Service]:
    """The busy service."""
    key = secrets.token_hex(16)
    async with started("busy.py", "--port", "0", BUSY_OPERATOR_KEY=key) as address:
        yield Service("busy", address, key)


async def load(console: Console, service: Service, seconds: float) -> int:
    """Run the act, scaled to a first one of so many seconds; returns the exit status."""
    parts = phases(seconds)
    by_second = [Second(phase) for phase in parts for _ in range(phase.seconds)]
    say(console, f"The busy service, with a load controller, listens on {service.address}")
    async with Client(service.address) as users, Client(service.address) as operator:
        await operator.open(_OPERATORS_CONNECTIONS)
        await users.open(_CONNECTIONS)
        try:
            await _run(console, users, _Operator(operator, service.key), parts, by_second)
        except OSError as error:
            raise DemoFailed(f"the service does not answer its operator: {error!r}") from error
    return tell(console, load_screen.summary(by_second), load_screen.wrong(by_second))


class _Operator:
    """Who may tell the service what to do, and ask how it is."""

    def __init__(self, client: Client, key: str) -> None:
        self._client = client
        self._key = key

    async def status(self) -> Status:
        return await self._ask("GET", "/-/status")

    async def make(self, milliseconds: float) -> Status:
        """Have each request burn so much CPU from now on."""
        return await self._ask("POST", f"/-/work?milliseconds={milliseconds:g}")

    async def _ask(self, method: str, path: str) -> Status:
        answer = await self._client.request(method, path, self._key)
        if answer.status != 200:
            raise DemoFailed(f"{method} {path} was answered with {answer.status}")
        return Status(**json.loads(answer.body))


async def _run(
    console: Console,
    users: Client,
    operator: _Operator,
    parts: list[Phase],
    by_second: list[Second],
) -> None:
    """Send the load, change the work with the phases, and show what becomes of it."""
    clock = asyncio.get_running_loop().time
    begun = clock()

    async def send(at: float) -> None:
        second = by_second[int(at)]
        second.offered += 1
        try:
            answer = await users.request("GET", "/")
        except OSError as error:  # a TimeoutError is one
            second.record(at, clock() - begun - at, type(error).__name__)
            return
        now = clock() - begun
        second.record(at, now - at, answer.status)
        if answer.status == 200 and now - at <= DEADLINE and now < len(by_second):
            by_second[int(now)].useful += json.loads(answer.body)["milliseconds"] / 1e3

    async def change() -> None:
        begin = 0
        for phase in parts:
            await asyncio.sleep(max(0.0, begun + begin - clock()))
            status = await operator.make(phase.milliseconds)
            by_second[begin].statuses.insert(0, status)
            begin += phase.seconds

    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    plain = None if live is not None else _Plain(console, by_second)
    traffic = asyncio.create_task(open_loop(planned(parts), begun, send))
    changes = asyncio.create_task(change())
    try:
        if live is not None:
            live.start()
        while not traffic.done():
            await asyncio.wait([traffic], timeout=0.25)
            status = await operator.status()
            elapsed = clock() - begun
            if elapsed < len(by_second):
                by_second[int(elapsed)].statuses.append(status)
            if live is not None:
                live.update(load_screen.table(console, by_second, elapsed), refresh=True)
            elif plain is not None:
                plain.tell(elapsed - 1 - DEADLINE)
        await asyncio.gather(traffic, changes)
        by_second[-1].statuses.append(await operator.status())
        if live is not None:
            live.update(load_screen.table(console, by_second, len(by_second)), refresh=True)
        elif plain is not None:
            plain.tell(len(by_second))
    finally:
        if live is not None:
            live.stop()
        traffic.cancel()
        changes.cancel()
        await asyncio.gather(traffic, changes, return_exceptions=True)


class _Plain:
    """A line for each second, where there is no terminal to draw a table in."""

    def __init__(self, console: Console, by_second: list[Second]) -> None:
        self._console = console
        self._by_second = by_second
        self._told = 0

    def tell(self, before: float) -> None:
        """Print the seconds that began before that time and were not printed yet."""
        while self._told < min(before, len(self._by_second)):
            for text in load_screen.lines(self._by_second, self._told):
                say(self._console, text)
            self._told += 1
