"""A FastAPI service with two limits: one for all it does, and a lower one for its search.

    uvicorn --no-proxy-headers --app-dir examples fastapi_app:app
    curl -i "http://127.0.0.1:8000/search?q=ants"

Each address may ask a hundred times a minute, and search ten times. What is left is in the headers
of every response, and who is over it gets a 429 that says when to come back. Limits are per
process: with four workers they are four times as high. Without `--no-proxy-headers` uvicorn
believes X-Forwarded-For of whoever connects from 127.0.0.1, and takes that for the peer.
"""

from fastapi import Depends, FastAPI
from fastapi.middleware.cors import CORSMiddleware

from aiolimit import Limiter
from aiolimit.http.asgi import RateLimitMiddleware, is_preflight
from aiolimit.http.fastapi import RateLimit

# Behind a proxy that is its address for all: then pass `key=ClientAddress(trusted_proxies=[...])`
# to both, or a function that knows your users.
service = Limiter("100/min", name="service", max_keys=100_000)
searches = Limiter("10/min", name="search", max_keys=100_000)

app = FastAPI()
app.add_middleware(RateLimitMiddleware, limiter=service, exempt=["/health", is_preflight])
# What is added last stands outermost: so a refusal has CORS headers too, and scripts can read it.
app.add_middleware(
    CORSMiddleware,
    allow_origins=["https://www.example.com"],
    expose_headers=["RateLimit", "RateLimit-Policy", "Retry-After"],
)


@app.get("/search", dependencies=[Depends(RateLimit(searches))])
async def search(q: str) -> dict[str, str]:
    return {"found": f"something about {q}"}


@app.get("/health")
async def health() -> dict[str, str]:
    """Never limited: the probe of an orchestrator must not be refused."""
    return {"status": "ok", "why": str(service.explain("127.0.0.1"))}
