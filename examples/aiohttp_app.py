"""An aiohttp service in which each user may ask ten times a minute, and uploads cost more.

python examples/aiohttp_app.py --port 8080
curl -i -H "X-User: ann" http://127.0.0.1:8080/search
"""

import argparse
import functools

from aiohttp import web

from aiolimit import Limiter
from aiolimit.http.aiohttp_server import is_preflight, peer, setup

limiter = Limiter("10/min", name="api", max_keys=100_000)


def user(request: web.Request) -> str:
    """Who asks. In earnest it is whoever has proved to be so, not what a header says."""
    return request.headers.get("X-User", peer(request))


def cost(request: web.Request) -> float:
    return 5 if request.method == "POST" else 1


async def search(_request: web.Request) -> web.Response:
    return web.json_response({"found": "something"})


async def upload(request: web.Request) -> web.Response:
    return web.json_response({"bytes": len(await request.read())})


async def health(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def make_app() -> web.Application:
    app = web.Application()
    app.add_routes(
        [web.get("/search", search), web.post("/upload", upload), web.get("/health", health)]
    )
    setup(app, limiter, key=user, cost=cost, exempt=["/health", is_preflight])
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    say = functools.partial(print, flush=True)
    web.run_app(make_app(), host="127.0.0.1", port=options.port, print=say)
