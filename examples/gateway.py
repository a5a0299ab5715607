"""A gateway for many tenants: who are you, may you, how often may you, and then to the backend.

    python examples/backend.py --port 9000
    python examples/gateway.py --database gateway.db --create
    python examples/gateway.py --database gateway.db --backend http://127.0.0.1:9000
    curl -i -H "Authorization: Bearer alice-key" http://127.0.0.1:8000/hello

(the servers each in a terminal of their own; what they need is in the extra `cli`).

Users, their balance and their requests per minute (0 is no limit) are rows of an SQLite file, so
an operator changes a limit with one statement, while it runs, from the next request on:

    sqlite3 gateway.db "UPDATE users SET requests_per_minute = 60 WHERE name = 'alice'"

Two limiters stand in a row. `quota` is each user's own: over it a request is refused at once
with 429. `pace` is what the backend can take from all users together: over it requests wait
their turn, in order, for two seconds at most. `trial` is a limit that its operator thinks about:
in shadow, it counts whom it would refuse. All count for this one process, unless a store is given,
as `workers.py` does for four of them. With a key in the
environment variable GATEWAY_OPERATOR_KEY the operator sees at /-/status what each user has left,
and at /-/dashboard/?operator=<key> a live page (`operators.py`).
"""

import argparse
import contextlib
import os
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiosqlite
import httpx2
import operators
import uvicorn
from operators import is_operator
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from aiolimit import UNLIMITED, Limiter, RateLimited
from aiolimit.http.fields import refusal_body, refusal_headers
from aiolimit.store import Store

SCHEMA = """
CREATE TABLE users (
    key TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    balance REAL NOT NULL,
    active INTEGER NOT NULL DEFAULT 1,
    requests_per_minute INTEGER NOT NULL CHECK (requests_per_minute >= 0)
);
INSERT INTO users VALUES ('alice-key', 'alice', 10.0, 1, 3);
INSERT INTO users VALUES ('bob-key', 'bob', 10.0, 1, 60);
INSERT INTO users VALUES ('carol-key', 'carol', 0.0, 1, 60);
INSERT INTO users VALUES ('dave-key', 'dave', 10.0, 0, 60);
INSERT INTO users VALUES ('erin-key', 'erin', 10.0, 1, 0);
"""
LOOK_UP = "SELECT name, balance, active, requests_per_minute FROM users"

# Between the two ends of a connection only, never passed on (RFC 9110, 7.6.1), or worked out anew.
HOP_BY_HOP = {
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
    "transfer-encoding", "upgrade", "host", "content-length", "content-encoding", "date", "server",
}  # fmt: skip
PRIVATE = {"authorization", "x-user"}  # the user's key, and what only the gateway may say


@dataclass(frozen=True)
class User:
    name: str
    balance: float
    active: bool
    requests_per_minute: int


class Refused(Exception):
    """An answer that is given in place of the backend's."""

    def __init__(
        self, status: int, error: str, headers: dict[str, str] | None = None, **more: object
    ):
        super().__init__(error)
        self.response = JSONResponse({"error": error, **more}, status, headers)


class Gateway:
    def __init__(
        self,
        database: Path,
        backend: str,
        operator_key: str | None = None,
        store: Store | None = None,
    ) -> None:
        self.database, self.backend, self.operator_key = database, backend, operator_key
        # What a user has who is nothing special: every call brings the limit of its user.
        self.quota = Limiter("60/min", name="quota", max_wait=0, store=store)
        self.pace = Limiter("25/s", name="pace", burst=10, max_wait=2, max_waiters=500, store=store)
        self.trial = Limiter("15/s", name="trial", max_wait=0, shadow=True, store=store)
        self.waiting: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        async with (
            aiosqlite.connect(
                f"{self.database.resolve().as_uri()}?mode=rw", uri=True
            ) as self.users,
            httpx2.AsyncClient(base_url=self.backend, timeout=10) as self.client,
        ):
            yield

    async def look_up(self, request: Request) -> User:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            challenge = {"www-authenticate": "Bearer"}
            raise Refused(401, "send your key as 'Authorization: Bearer <key>'", challenge)
        async with self.users.execute(f"{LOOK_UP} WHERE key = ?", (key.strip(),)) as rows:
            row = await rows.fetchone()
        if row is None:
            raise Refused(401, "unknown key", {"www-authenticate": "Bearer"})
        user = User(*row)
        if not user.active:
            raise Refused(403, "this account is closed")
        if user.balance <= 0:
            raise Refused(402, "no balance left", balance=user.balance)
        return user

    async def forward(self, request: Request, user: User, body: bytes) -> Response:
        headers = [
            (name, value)
            for name, value in request.headers.items()
            if name not in HOP_BY_HOP | PRIVATE
        ]
        try:
            answer = await self.client.request(
                request.method,
                httpx2.URL(path=request.url.path, query=request.url.query.encode()),
                headers=[*headers, ("x-user", user.name)],
                content=body,
            )
        except httpx2.HTTPError as error:
            raise Refused(502, f"the backend does not answer: {type(error).__name__}") from error
        response = Response(answer.content, answer.status_code)
        response.raw_headers = [
            (name.lower(), value)
            for name, value in answer.headers.raw
            if name.decode().lower() not in HOP_BY_HOP
        ] + [(b"content-length", str(len(answer.content)).encode())]
        return response

    async def handle(self, request: Request) -> Response:
        try:
            user = await self.look_up(request)
            limit = user.requests_per_minute or UNLIMITED
            await self.trial.try_acquire_async("everybody")
            async with self.quota.acquire(user.name, limit=limit):
                body = await request.body()
                self.waiting[user.name] += 1
                try:
                    turn = await self.pace.acquire("backend")
                finally:
                    self.waiting[user.name] -= 1
                if await request.is_disconnected():
                    turn.cancel()  # nobody is there to take the answer: the turn is the next one's
                    raise ClientDisconnect
                response = await self.forward(request, user, body)
                response.headers["x-waited"] = f"{turn.waited:.3f}"
                return response
        except Refused as refused:
            return refused.response
        except ClientDisconnect:
            return Response(status_code=499)  # for the log: nobody reads it
        except RateLimited as limited:
            return Response(refusal_body(limited), 429, refusal_headers(limited))
        except (sqlite3.Error, TypeError, ValueError) as error:
            # A table that is locked, gone, or holds a limit that is no number.
            print(f"gateway: {error}", file=sys.stderr, flush=True)
            return JSONResponse({"error": "the user table cannot be read"}, 503)

    async def left(self, user: User) -> dict[str, object]:
        limit = user.requests_per_minute
        try:
            quota = await self.quota.peek_async(user.name, limit=limit or UNLIMITED)
        except (TypeError, ValueError) as error:
            return {"limit": limit, "error": str(error)}
        remaining = quota.remaining if limit else None
        return {"limit": limit, "remaining": remaining, "waiting": self.waiting[user.name]}

    async def status(self, request: Request) -> Response:
        """For the operator: what each user has left, who waits, and why."""
        if not is_operator(request.scope, self.operator_key):
            return JSONResponse({"error": "for the operator only"}, 403)
        try:
            async with self.users.execute(LOOK_UP) as rows:
                users = {row[0]: await self.left(User(*row)) async for row in rows}
        except sqlite3.Error as error:
            return JSONResponse({"error": f"the user table cannot be read: {error}"}, 503)
        pace = self.pace.statistics()
        return JSONResponse(
            {"users": users, "waiting": pace.waiting, "pace": str(self.pace.explain("backend"))}
        )

    def app(self) -> Starlette:
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        routes: list[BaseRoute] = [Route("/{path:path}", self.handle, methods=methods)]
        if self.operator_key:
            limiters = [self.quota, self.pace, self.trial]
            pages = operators.routes("gateway", limiters, self.operator_key)
            routes = [Route("/-/status", self.status), *pages, *routes]
        return Starlette(routes=routes, lifespan=self.lifespan)


def check(database: Path) -> str | None:
    """What is wrong with the database file, in one line; None if it can be used."""
    try:
        if not database.is_file():
            return f"there is no database file {str(database)!r}; make one with --create"
        with contextlib.closing(sqlite3.connect(database)) as users:
            users.execute(f"{LOOK_UP} LIMIT 1").fetchone()
    except (OSError, sqlite3.Error) as error:
        return f"the database file {str(database)!r} cannot be used: {error}"
    return None


def create(database: Path) -> str | None:
    """Make a database with five users to try; what is wrong, or None."""
    if database.exists():
        return f"{str(database)!r} exists already"
    try:
        with contextlib.closing(sqlite3.connect(database)) as users:
            users.executescript(SCHEMA)
    except sqlite3.Error as error:
        return f"cannot make {str(database)!r}: {error}"
    print(f"made {database} with the users alice, bob, carol, dave and erin")
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--database", type=Path, required=True, help="an SQLite file")
    parser.add_argument("--create", action="store_true", help="make the file, and end")
    parser.add_argument("--backend", default="http://127.0.0.1:9000", help="where to forward to")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any free one")
    options = parser.parse_args()
    problem = create(options.database) if options.create else check(options.database)
    if problem:
        sys.exit(f"gateway: {problem}")
    if options.create:
        return
    # The operator's key is a secret, so it is no argument that `ps` would show.
    gateway = Gateway(options.database, options.backend, os.environ.get("GATEWAY_OPERATOR_KEY"))
    config = uvicorn.Config(gateway.app(), port=options.port, log_level="warning")
    listening = config.bind_socket()
    listening.listen()  # from here on connections are kept until the server takes them
    print(f"listening on http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    main()
