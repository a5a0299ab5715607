"""A service that refuses what it cannot do in time, and a client that asks too much of it.

    python examples/overload.py                 (in one terminal; --dry-run refuses nobody)
    python examples/overload.py --load 3        (in a second: three times what it can do)
    curl http://127.0.0.1:8000/-/explain        (in a third, meanwhile)

Nothing is tuned: the controller measures what a request costs, and lets in as many as can be
served in time. The others have their 503 at once. Both programs need a free core each.
"""

import argparse
import asyncio
import time
from collections import Counter

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from aiolimit import Limiter, LoadController
from aiolimit.http.asgi import RateLimitMiddleware

CPU, DATABASE = 0.010, 0.020  # seconds that a request takes
ANSWERS = ("in time", "late", "refused", "no answer")


async def work(_request: Request) -> PlainTextResponse:
    end = time.thread_time() + CPU
    while time.thread_time() < end:
        pass
    await asyncio.sleep(DATABASE)
    return PlainTextResponse("done\n")


def service(dry_run: bool) -> RateLimitMiddleware:
    limiter = Limiter("10000/s", name="service", load=LoadController(dry_run=dry_run))

    async def explain(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{limiter.explain(request.client and request.client.host)}\n")

    app = Starlette(routes=[Route("/", work), Route("/-/explain", explain)])
    # Outermost, so that a refusal costs little. It runs the controller while the service is up.
    return RateLimitMiddleware(app, limiter=limiter, exempt={"/-/explain"})


async def ask(client: httpx2.AsyncClient, at: float) -> str:
    await asyncio.sleep(at - time.monotonic())
    try:
        response = await client.get("/")
    except httpx2.HTTPError:
        return "no answer"
    answered = "in time" if time.monotonic() - at <= 0.5 else "late"
    return answered if response.status_code == 200 else "refused"


async def offer(url: str, rate: float, seconds: int) -> None:
    begun, limits = time.monotonic() + 0.5, httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=url, limits=limits) as client:
        due = [begun + n / rate for n in range(int(rate * seconds))]
        answers = await asyncio.gather(*(ask(client, at) for at in due))
    for second in range(seconds):
        counts = Counter(answers[int(second * rate) : int((second + 1) * rate)])
        print(f"second {second}:", ", ".join(f"{counts[what]:3} {what}" for what in ANSWERS))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=8000, help="0 takes any free one")
    parser.add_argument("--dry-run", action="store_true", help="work it out, but refuse nobody")
    parser.add_argument("--load", type=float, help="send requests, so many times what it can do")
    parser.add_argument("--seconds", type=int, default=8, help="for how long to send")
    options = parser.parse_args()
    if options.load is not None:
        url = f"http://127.0.0.1:{options.port}"
        raise SystemExit(asyncio.run(offer(url, options.load / CPU, options.seconds)))
    # Not uvloop: it takes in one new connection an iteration, and the others wait in the kernel.
    uvicorn.run(service(options.dry_run), port=options.port, loop="asyncio", access_log=False)
