"""The first act: users with different limits and habits at the gateway of the examples."""

import asyncio
import contextlib
import secrets
import sqlite3
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
from rich.console import Console
from rich.live import Live

from aiolimit.cli import quotas_screen
from aiolimit.cli.page import Service
from aiolimit.cli.screen import say, tell
from aiolimit.cli.services import DemoFailed, started
from aiolimit.cli.traffic import Tenant, send, tenants

__all__ = ["gateway", "quotas"]


@contextlib.asynccontextmanager
async def gateway() -> AsyncIterator[tuple[Service, Path]]:
    """The gateway, with its backend; gives it and the database of its users."""
    key = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="aiolimit-demo-") as folder:
        database = Path(folder, "users.db")
        _write_users(database, tenants())
        async with (
            started("backend.py", "--port", "0") as backend,
            started(
                "gateway.py",
                *("--database", str(database), "--backend", backend, "--port", "0"),
                GATEWAY_OPERATOR_KEY=key,
            ) as address,
        ):
            yield Service("gateway", address, key), database


async def quotas(
    console: Console, service: Service, database: Path, seconds: float, *, serve: bool
) -> int:
    """Run the act for so many seconds, or serve until cancelled; returns the exit status."""
    users = tenants()
    where = f"The users are in {database}, and the gateway listens on {service.address}"
    say(console, where)
    if serve:
        _say_how_to_try(console, service.address, database, users)
        await asyncio.Event().wait()
    limits = httpx2.Limits(max_connections=200, max_keepalive_connections=50)
    async with httpx2.AsyncClient(base_url=service.address, limits=limits, timeout=10) as client:
        return await _run(console, client, database, users, seconds, service.key)


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
                say(console, f"The operator: {statement}", "cyan")
            answer = (await client.get("/-/status", headers=headers)).json()
            if live is not None:
                now = quotas_screen.table(
                    console, users, answer["users"], answer["pace"], elapsed, seconds
                )
                live.update(now, refresh=True)
                continue
            most_waiting |= Counter({name: of["waiting"] for name, of in answer["users"].items()})
            if elapsed >= next_line:
                next_line = elapsed + 2
                say(console, quotas_screen.line(users, answer["users"], most_waiting, elapsed))
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
    return tell(console, quotas_screen.summary(users), quotas_screen.wrong(users))


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
        say(console, line)
