"""Ask a large language model as fast as its limits allow: requests and tokens a minute, both.

    python examples/llm_server.py --port 9100 --requests 60 --tokens 20000
    python examples/llm_client.py --calls 120                            (in a second terminal)

All calls start at once, and wait for their turn in the transport, in order. What a call will cost
is estimated before: its prompt, and all the tokens it may generate. Once the answer tells what it
was, the difference is given back with `adjust`. The server's own headers are obeyed: if somebody
else uses the same API key, there is less for us, and after a refusal nobody asks before its time.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass

import httpx2

from aiolimit import Limiter, Rate, RateLimited
from aiolimit.http.httpx2 import Charge, RateLimitTransport, permits_of

PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}


def estimate(request: httpx2.Request) -> int:
    """The most tokens a call can cost: its prompt, and what it may generate."""
    body = json.loads(request.content)
    return int(body["max_tokens"]) + sum(
        len(message["content"]) // 4 + 1 for message in body["messages"]
    )


@dataclass
class Tally:
    answered: int = 0
    refused: int = 0
    tokens: int = 0


async def ask(client: httpx2.AsyncClient, path: str, key: str, tally: Tally) -> None:
    question = {"role": "user", "content": "why? " * random.randint(5, 60)}
    body = {"model": "any", "max_tokens": 200, "messages": [question]}
    headers = {"x-api-key": key}
    try:
        response = await client.post(path, json=body, headers=headers)
        response.raise_for_status()
    except (RateLimited, httpx2.HTTPError) as error:
        tally.refused += 1
        print(f"not answered: {error}", file=sys.stderr)
        return
    cost = sum(response.json()["usage"].values())
    _, tokens = permits_of(response)
    tokens.adjust(cost)
    tally.answered += 1
    tally.tokens += cost


async def main(options: argparse.Namespace) -> int:
    # The server counts a call from when it arrives, we from when it leaves: one that was slow to
    # arrive must not be forgotten here before it is there.
    period = options.window + options.margin
    requests = Limiter(Rate(options.requests, per=period), name="requests")
    tokens = Limiter(Rate(options.tokens, per=period), name="tokens")
    transport = RateLimitTransport(
        requests,
        Charge(tokens, cost=estimate, unit="tokens"),
        retries=5,
        key=lambda request: request.headers["x-api-key"],
    )
    tally, begun = Tally(), time.monotonic()
    timeout = httpx2.Timeout(30, pool=None)  # however long it takes until it is our turn
    async with httpx2.AsyncClient(
        base_url=options.url, transport=transport, timeout=timeout
    ) as client:
        path = PATHS[options.style]
        await asyncio.gather(*(ask(client, path, options.key, tally) for _ in range(options.calls)))
    seconds = time.monotonic() - begun
    print(
        f"{tally.answered} answered, {tally.refused} not, {tally.tokens} tokens in {seconds:.1f} s"
    )
    return 1 if tally.refused else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:9100")
    parser.add_argument("--style", choices=PATHS, default="openai")
    parser.add_argument("--key", default="secret")
    parser.add_argument("--calls", type=int, default=120)
    parser.add_argument("--requests", type=int, default=60, help="of the key, in a window")
    parser.add_argument("--tokens", type=int, default=20_000, help="of the key, in a window")
    parser.add_argument("--window", type=float, default=60.0, help="seconds")
    parser.add_argument("--margin", type=float, default=1.0, help="seconds we count for longer")
    raise SystemExit(asyncio.run(main(parser.parse_args())))
