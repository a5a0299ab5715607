"""The same client with aiohttp: twelve pages, four a second.

python examples/backend.py --port 9000
python examples/aiohttp_client.py "http://127.0.0.1:9000/pages?q=ants"   (in a second terminal)
"""

import argparse
import asyncio
import time

import aiohttp

from aiolimit import Limiter, RateLimited
from aiolimit.http.aiohttp_client import RateLimitMiddleware, permits_of

# Several sessions may have this middleware: they share the quota, and what is learned.
limit = RateLimitMiddleware(Limiter("4/s", name="client"), retries=2)


async def fetch(session: aiohttp.ClientSession, url: str, page: int, begun: float) -> bool:
    try:
        async with session.get(url, params={"page": page}) as response:
            await response.read()
    except RateLimited as limited:
        print(f"page {page:2}  not asked for: {limited}")
        return False
    except aiohttp.ClientError as error:
        print(f"page {page:2}  {url} does not answer: {type(error).__name__}")
        return False
    at = time.monotonic() - begun
    waited = permits_of(response)[0].waited
    print(f"page {page:2}  {response.status} at {at:5.2f} s, waited {waited:.2f} s")
    return True


async def main(url: str, pages: int) -> int:
    begun = time.monotonic()
    # Time spent waiting counts against `total`: what cannot be in time is not asked for at all.
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(middlewares=(limit,), timeout=timeout) as session:
        fetched = await asyncio.gather(*(fetch(session, url, page, begun) for page in range(pages)))
    print(f"{sum(fetched)} of {pages} pages")
    return 0 if all(fetched) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--pages", type=int, default=12)
    options = parser.parse_args()
    raise SystemExit(asyncio.run(main(options.url, options.pages)))
