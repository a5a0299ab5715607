"""A service whose requests cost CPU, and cost more when its operator says so, while it runs.

    BUSY_OPERATOR_KEY=secret python examples/busy.py --port 9100
    curl -i http://127.0.0.1:9100/
    curl -H "Authorization: Bearer secret" http://127.0.0.1:9100/-/status
    curl -X POST -H "Authorization: Bearer secret" "http://127.0.0.1:9100/-/work?milliseconds=20"

(what it needs is in the extra `cli`; a live page is at /-/dashboard/?operator=secret). Nobody tells
the limiter what a request costs. Its load controller measures that, and refuses with 503 what the
process cannot do in time.
"""

import argparse
import asyncio
import os
import socket
from pathlib import Path
from time import thread_time

import operators
import uvicorn
from operators import is_operator
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aiolimit import Limiter, LoadController, WarmUp
from aiolimit.http.address import peer
from aiolimit.http.asgi import RateLimitMiddleware
from aiolimit.http.asgi_types import App


def waited_for_a_core() -> float:
    """Seconds that this thread was ready to run while others had the core; 0 where no one tells."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


class Busy:
    def __init__(self, operator_key: str | None) -> None:
        self.operator_key = operator_key
        self.milliseconds = 10.0
        self.load = LoadController()
        self.limiter = Limiter(
            "300/s", name="busy", load=self.load, warm_up=WarmUp(start=0.6, over=5)
        )

    async def answer(self, _request: Request) -> Response:
        # By the clock of the thread: the same work for each, whoever else uses the core.
        end = thread_time() + self.milliseconds / 1e3
        while thread_time() < end:
            pass
        await asyncio.sleep(0.02)  # as if it had something to look up
        return JSONResponse({"milliseconds": self.milliseconds})

    async def status(self, request: Request) -> Response:
        """For the operator: what the load controller holds of this process, and why."""
        if not is_operator(request.scope, self.operator_key):
            return JSONResponse({"error": "for the operator only"}, 403)
        state = self.load.state
        return JSONResponse(
            {
                "in_flight": self.load.in_flight,
                "cap": state.cap,
                "cost": state.cost,
                "rate": None if state.cost is None else state.rate,
                "explain": str(self.limiter.explain(peer(request.scope))),
                "cpu": thread_time(),
                "waited": waited_for_a_core(),
            }
        )

    async def work(self, request: Request) -> Response:
        """For the operator: how much CPU each request burns from now on."""
        try:
            milliseconds = float(request.query_params["milliseconds"])
        except (KeyError, ValueError):
            milliseconds = -1.0
        if not is_operator(request.scope, self.operator_key):
            return JSONResponse({"error": "for the operator only"}, 403)
        if not 0 <= milliseconds <= 1000:
            return JSONResponse({"error": "milliseconds is a number from 0 to 1000"}, 400)
        self.milliseconds = milliseconds
        return await self.status(request)

    def app(self) -> App:
        routes = [
            Route("/-/status", self.status),
            Route("/-/work", self.work, methods=["POST"]),
            *operators.routes("busy", [self.limiter], self.operator_key),
            Route("/{path:path}", self.answer),
        ]
        # The operator comes in whatever the load is. The others are refused before routing.
        return RateLimitMiddleware(
            Starlette(routes=routes),
            limiter=self.limiter,
            exempt=lambda scope: (
                scope["path"].startswith("/-/") and is_operator(scope, self.operator_key)
            ),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=9100, help="0 takes any free one")
    # The operator's key is a secret, so it is no argument that `ps` would show.
    busy = Busy(os.environ.get("BUSY_OPERATOR_KEY"))
    port = parser.parse_args().port
    # TCP by name: asyncio sets TCP_NODELAY only where it sees it. Without it the body of an answer
    # waits up to 40 ms for the acknowledgement of its head.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(2048)  # from here on connections are kept until the server takes them
    print(f"listening on http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    config = uvicorn.Config(
        busy.app(), log_level="warning", lifespan="on", access_log=False, timeout_keep_alive=60
    )
    uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    main()
