"""A client that keeps to somebody's quota: twenty pages, five at a time, four a second.

    python examples/client.py http://127.0.0.1:8000/search?q=ants

The limiter stands inside the loop, around each request: a task that is over the rate waits there
for its turn, in order. `host` is the key, so another host would have a quota of its own.
"""

import argparse
import asyncio
import time

import httpx2

from aiolimit import Limiter, RateLimited

limiter = Limiter("4/s", name="client", max_wait=30)


async def fetch(client: httpx2.AsyncClient, url: str, page: int, begun: float) -> None:
    host = httpx2.URL(url).host
    async with limiter.acquire(host) as permit:
        response = await client.get(httpx2.URL(url).copy_merge_params({"page": page}))
    at = time.monotonic() - begun
    print(f"{at:5.2f} s  page {page:2}  {response.status_code}  waited {permit.waited:.2f} s")


async def main(url: str, pages: int) -> None:
    begun = time.monotonic()
    async with httpx2.AsyncClient() as client:
        tasks = [fetch(client, url, page, begun) for page in range(pages)]
        try:
            await asyncio.gather(*tasks)
        except RateLimited as limited:
            print(f"would have to wait too long: {limited}")
        except httpx2.HTTPError as error:
            raise SystemExit(f"{url} does not answer: {error}") from error


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--pages", type=int, default=20)
    options = parser.parse_args()
    asyncio.run(main(options.url, options.pages))
