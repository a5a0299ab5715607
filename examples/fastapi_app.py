"""A FastAPI service in which each client may ask ten times a minute.

    uvicorn --no-proxy-headers --app-dir examples fastapi_app:app
    curl -i "http://127.0.0.1:8000/search?q=ants"

The limit is per process: with four workers it is four times as high. Without `--no-proxy-headers`
uvicorn believes X-Forwarded-For of whoever connects from 127.0.0.1, and takes that for the peer.
"""

from fastapi import FastAPI

from aiolimit import Limiter
from aiolimit.http.asgi import RateLimitMiddleware

limiter = Limiter("10/min", name="search", max_keys=100_000)

app = FastAPI()
# One limit for each address that connects. Behind a proxy that is the proxy's: pass `key=`, a
# function of the ASGI scope, and read there what your own proxy writes, such as a user's id.
app.add_middleware(RateLimitMiddleware, limiter=limiter, exempt={"/health"})


@app.get("/search")
async def search(q: str) -> dict[str, str]:
    return {"found": f"something about {q}"}


@app.get("/health")
async def health() -> dict[str, str]:
    """Never limited: the probe of an orchestrator must not be refused."""
    return {"status": "ok", "why": str(limiter.explain("127.0.0.1"))}
