"""`aiolimit demo`: the gateway of the examples, as its own process, under real traffic."""

import asyncio
import contextlib
import os
import secrets
import signal
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console
from rich.live import Live

from aiolimit.cli import screen
from aiolimit.cli.traffic import Tenant, send, tenants

__all__ = ["demo"]

# In a checkout the examples lie beside the package; a wheel carries the two that the demo runs.
_HERE = Path(__file__).parent
_EXAMPLES = next(
    (
        folder
        for folder in (_HERE / "examples", _HERE.parents[1] / "examples")
        if (folder / "gateway.py").is_file()
    ),
    _HERE / "examples",
)


class DemoFailed(Exception):
    """The demo cannot go on; the message says why."""


def demo(seconds: float, *, serve: bool) -> int:
    """Run the demo for so many seconds; with `serve` until it is interrupted."""
    console = Console()
    try:
        return asyncio.run(_until_interrupted(_demo(console, seconds, serve=serve)))
    except DemoFailed as failed:
        console.print(f"aiolimit demo: {failed}", style="red", markup=False)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("Stopped.")
        return 0


async def _until_interrupted(work: Any) -> int:
    """Have Ctrl-C and SIGTERM cancel the work, so that nothing it has started is left behind."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    # Windows knows neither: there Ctrl-C raises KeyboardInterrupt.
    with contextlib.suppress(NotImplementedError, AttributeError):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, task.cancel)
    result: int = await task
    return result


async def _demo(console: Console, seconds: float, *, serve: bool) -> int:
    operator_key = secrets.token_hex(16)
    users = tenants()
    with tempfile.TemporaryDirectory(prefix="aiolimit-demo-") as folder:
        database = Path(folder, "users.db")
        _write_users(database, users)
        async with (
            _started("backend.py", "--port", "0") as backend,
            _started(
                "gateway.py",
                *("--database", str(database), "--backend", backend, "--port", "0"),
                GATEWAY_OPERATOR_KEY=operator_key,
            ) as gateway,
        ):
            where = f"The users are in {database}, and the gateway listens on {gateway}"
            console.print(where, soft_wrap=True, markup=False, highlight=False)
            if serve:
                _say_how_to_try(console, gateway, database, users)
                await asyncio.Event().wait()
            limits = httpx2.Limits(max_connections=200, max_keepalive_connections=50)
            async with httpx2.AsyncClient(base_url=gateway, limits=limits, timeout=10) as client:
                return await _run(console, client, database, users, seconds, operator_key)


async def _run(
    console: Console,
    client: httpx2.AsyncClient,
    database: Path,
    users: list[Tenant],
    seconds: float,
    operator_key: str,
) -> int:
    """Send the traffic and show it; returns the exit status."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    headers = {"authorization": f"Bearer {operator_key}"}
    to_raise = [user for user in users if user.raised_to is not None]
    next_line = 0.0
    most_waiting: Counter[str] = Counter()  # since the last plain line
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    traffic = [asyncio.create_task(send(client, user, seconds)) for user in users]
    try:
        if live is not None:
            live.start()
        while not all(task.done() for task in traffic):
            await asyncio.wait(traffic, timeout=0.25)
            elapsed = min(loop.time() - begun, seconds)
            while to_raise and elapsed >= seconds / 2:
                statement = _raise_limit(database, to_raise.pop())
                console.print(f"The operator: {statement}", style="cyan", markup=False)
            answer = (await client.get("/-/status", headers=headers)).json()
            if live is not None:
                now = screen.table(
                    console, users, answer["users"], answer["pace"], elapsed, seconds
                )
                live.update(now, refresh=True)
                continue
            most_waiting |= Counter({name: of["waiting"] for name, of in answer["users"].items()})
            if elapsed >= next_line:
                next_line = elapsed + 2
                line = screen.line(users, answer["users"], most_waiting, elapsed)
                console.print(line, soft_wrap=True, markup=False, highlight=False)
                most_waiting.clear()
        await asyncio.gather(*traffic)
    except httpx2.HTTPError as error:
        raise DemoFailed(f"the gateway does not answer any more: {error!r}") from error
    finally:
        if live is not None:
            live.stop()
        for task in traffic:
            task.cancel()
        await asyncio.gather(*traffic, return_exceptions=True)
    return _tell(console, users)


def _tell(console: Console, users: list[Tenant]) -> int:
    """Print the summary; the exit status is 0 if everyone got what it should."""
    wrong = screen.wrong(users)
    console.print()
    for line in [*screen.summary(users), *wrong]:
        # In a terminal lines are broken between words; elsewhere they stay whole.
        console.print(line, soft_wrap=not console.is_terminal, markup=False, highlight=False)
    return 1 if wrong else 0


@contextlib.asynccontextmanager
async def _started(script: str, *arguments: str, **environment: str) -> AsyncIterator[str]:
    """One of the examples, run as a user would run it; gives the address it listens on."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(_EXAMPLES / script),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
        start_new_session=True,  # Ctrl-C is for the demo, which then ends it in order
    )
    try:
        line = (await process.stdout.readline()).decode() if process.stdout else ""
        if not line.startswith("listening on "):
            raise DemoFailed(f"{script} did not start, see above")
        yield line.removeprefix("listening on ").strip()
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 5)
        except TimeoutError:
            process.kill()
            await process.wait()


def _write_users(database: Path, users: list[Tenant]) -> None:
    with contextlib.closing(sqlite3.connect(database)) as table, table:
        table.execute(
            "CREATE TABLE users (key TEXT PRIMARY KEY, name TEXT, balance REAL, active INTEGER, "
            "requests_per_minute INTEGER CHECK (requests_per_minute >= 0))"
        )
        rows = [(user.key, user.name, 10.0, 1, user.per_minute) for user in users]
        table.executemany("INSERT INTO users VALUES (?, ?, ?, ?, ?)", rows)


def _raise_limit(database: Path, user: Tenant) -> str:
    """Do what an operator does, and return the statement."""
    statement = (
        f"UPDATE users SET requests_per_minute = {user.raised_to} WHERE name = '{user.name}'"
    )
    with contextlib.closing(sqlite3.connect(database)) as table, table:
        table.execute(statement)
    return statement


def _say_how_to_try(console: Console, gateway: str, database: Path, users: list[Tenant]) -> None:
    some = next(user for user in users if user.raised_to is not None)
    loop = f"for n in $(seq {some.per_minute + 5})"
    status = "-s -o /dev/null -w '%{http_code} '"
    more = f"UPDATE users SET requests_per_minute = 100 WHERE name = '{some.name}'"
    bearer = f'-H "Authorization: Bearer {some.key}"'
    for line in (
        "Try it:",
        f"  curl -i {bearer} {gateway}/hello",
        f"  {loop}; do curl {status} {bearer} {gateway}/hello; done; echo",
        f"  curl -i {gateway}/hello",
        f"and give {some.name} more, from the next request on:",
        f'  sqlite3 {database} "{more}"',
        "Ctrl-C ends it.",
    ):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
