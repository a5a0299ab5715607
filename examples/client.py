"""A client that keeps to somebody's quota: twelve pages, four a second.

    python examples/backend.py --port 9000
    python examples/client.py "http://127.0.0.1:9000/pages?q=ants"       (in a second terminal)

All requests start at once, and wait in the transport for their turn, in order. The host is the key,
so another host would have a quota of its own. With httpx it is the same, from
`aiolimit.http.httpx`; with aiohttp see `examples/aiohttp_client.py`.
"""

import argparse
import asyncio
import time

import httpx2

from aiolimit import Limiter, RateLimited
from aiolimit.http.httpx2 import RateLimitTransport, permits_of

limiter = Limiter("4/s", name="client")


async def fetch(client: httpx2.AsyncClient, url: httpx2.URL, page: int, begun: float) -> bool:
    try:
        response = await client.get(url.copy_merge_params({"page": page}))
    except RateLimited as limited:
        print(f"page {page:2}  not asked for: {limited}")
        return False
    except httpx2.HTTPError as error:
        print(f"page {page:2}  {url} does not answer: {type(error).__name__}")
        return False
    at = time.monotonic() - begun
    waited = permits_of(response)[0].waited
    print(f"page {page:2}  {response.status_code} at {at:5.2f} s, waited {waited:.2f} s")
    return True


async def main(url: httpx2.URL, pages: int) -> int:
    begun = time.monotonic()
    # A refusal is asked again, twice at most, once the server allows it. `pool` bounds the wait.
    transport = RateLimitTransport(limiter, retries=2)
    timeout = httpx2.Timeout(10, pool=30)
    async with httpx2.AsyncClient(transport=transport, timeout=timeout) as client:
        fetched = await asyncio.gather(*(fetch(client, url, page, begun) for page in range(pages)))
    print(f"{sum(fetched)} of {pages} pages")
    return 0 if all(fetched) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url", type=httpx2.URL)
    parser.add_argument("--pages", type=int, default=12)
    options = parser.parse_args()
    raise SystemExit(asyncio.run(main(options.url, options.pages)))
