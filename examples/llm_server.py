"""A server as strict as those of large language models: requests and tokens a minute, by API key.

    python examples/llm_server.py --port 9100 --requests 60 --tokens 20000

It answers `/v1/chat/completions` with the headers of OpenAI, and `/v1/messages` with those of
Anthropic. It keeps each request for a whole window and lets nothing pass above the limits: a
request is charged its prompt and all the tokens it may generate, and settled when it has. What it
let through is at `/-/log`, by key: when, and with how many tokens.
"""

import argparse
import asyncio
import math
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


@dataclass
class Entry:
    at: float
    tokens: int


@dataclass
class Account:
    """What one API key was let through, the oldest first, and how often it was refused."""

    entries: list[Entry] = field(default_factory=list)
    refused: int = 0


class Server:
    def __init__(self, requests: int, tokens: int, window: float) -> None:
        self.limits = {"requests": requests, "tokens": tokens}
        self.window = window
        self.accounts: defaultdict[str, Account] = defaultdict(Account)

    def used(self, account: Account, now: float) -> list[Entry]:
        return [entry for entry in account.entries if entry.at > now - self.window]

    def wait(self, account: Account, tokens: int, now: float) -> float:
        """Seconds until a request with so many tokens may pass."""
        inside = self.used(account, now)
        if self.fits(inside, tokens):
            return 0.0
        for index, entry in enumerate(inside):
            if self.fits(inside[index + 1 :], tokens):
                return entry.at + self.window - now
        return self.window

    def fits(self, inside: list[Entry], tokens: int) -> bool:
        total = sum(entry.tokens for entry in inside) + tokens
        return len(inside) < self.limits["requests"] and total <= self.limits["tokens"]

    def headers(self, account: Account, style: str) -> dict[str, str]:
        now = time.time()
        inside = self.used(account, now)
        used = {"requests": len(inside), "tokens": sum(entry.tokens for entry in inside)}
        full = max((entry.at + self.window - now for entry in inside), default=0.0)
        made = {}
        for name, limit in self.limits.items():
            left = str(max(0, limit - used[name]))
            if style == "openai":
                made[f"x-ratelimit-limit-{name}"] = str(limit)
                made[f"x-ratelimit-remaining-{name}"] = left
                made[f"x-ratelimit-reset-{name}"] = f"{full:.3f}s"
            else:
                reset = datetime.fromtimestamp(math.ceil(now + full), UTC)
                made[f"anthropic-ratelimit-{name}-limit"] = str(limit)
                made[f"anthropic-ratelimit-{name}-remaining"] = left
                made[f"anthropic-ratelimit-{name}-reset"] = f"{reset:%Y-%m-%dT%H:%M:%SZ}"
        return made

    async def answer(self, request: Request) -> JSONResponse:
        style = "openai" if request.url.path.endswith("completions") else "anthropic"
        key = request.headers.get("x-api-key", request.headers.get("authorization", ""))
        account = self.accounts[key]
        body: dict[str, Any] = await request.json()
        prompt = sum(len(message["content"]) // 4 + 1 for message in body["messages"])
        most = int(body["max_tokens"])
        now = time.time()
        wait = self.wait(account, prompt + most, now)
        if wait > 0:
            account.refused += 1
            headers = self.headers(account, style) | {"retry-after": str(math.ceil(wait))}
            if style == "openai":
                headers["retry-after-ms"] = str(math.ceil(wait * 1000))
            return JSONResponse({"error": {"type": "rate_limit_error"}}, 429, headers)
        entry = Entry(now, prompt + most)
        account.entries.append(entry)
        generated = random.randint(most // 4, most)
        await asyncio.sleep(generated / 4000)
        entry.tokens = prompt + generated
        usage = {"prompt_tokens": prompt, "completion_tokens": generated}
        if style == "anthropic":
            usage = {"input_tokens": prompt, "output_tokens": generated}
        return JSONResponse({"usage": usage}, headers=self.headers(account, style))

    async def log(self, _request: Request) -> JSONResponse:
        return JSONResponse(
            {
                key: {
                    "refused": account.refused,
                    "entries": [(entry.at, entry.tokens) for entry in account.entries],
                }
                for key, account in self.accounts.items()
            }
        )

    def app(self) -> Starlette:
        paths = ("/v1/chat/completions", "/v1/messages")
        routes = [Route(path, self.answer, methods=["POST"]) for path in paths]
        return Starlette(routes=[*routes, Route("/-/log", self.log)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=9100, help="0 takes any free one")
    parser.add_argument("--requests", type=int, default=60, help="in a window")
    parser.add_argument("--tokens", type=int, default=20_000, help="in a window")
    parser.add_argument("--window", type=float, default=60.0, help="seconds")
    options = parser.parse_args()
    app = Server(options.requests, options.tokens, options.window).app()
    config = uvicorn.Config(app, port=options.port, log_level="warning")
    listening = config.bind_socket()
    listening.listen()
    print(f"listening on http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run([listening])
