"""The example for large language models: alone it is never refused, and it shares with others."""

import asyncio
from typing import Any

import httpx2
import pytest

from tests.serving import run, running

KEY = {"x-api-key": "secret"}


def fullest(entries: list[list[float]], window: float) -> tuple[int, float]:
    """The most calls, and the most tokens, in any half-open interval of that length."""
    inside = [
        [tokens for at, tokens in entries if begin <= at < begin + window] for begin, _ in entries
    ]
    return max(map(len, inside)), max(map(sum, inside))


async def log(server: str, key: str = "secret") -> dict[str, Any]:
    async with httpx2.AsyncClient() as client:
        found: dict[str, Any] = (await client.get(f"{server}/-/log")).json()[key]
        return found


def limits(requests: int, tokens: int, window: float) -> tuple[str, ...]:
    return ("--requests", str(requests), "--tokens", str(tokens), "--window", str(window))


@pytest.mark.parametrize(
    ("style", "requests", "tokens"), [("openai", 20, 100_000), ("anthropic", 500, 3000)]
)
async def test_left_alone_it_is_never_refused(style: str, requests: int, tokens: int) -> None:
    """Either of the two quotas binds."""
    quota = limits(requests, tokens, 2)
    async with running("examples/llm_server.py", "--port", "0", *quota) as server:
        command = ("examples/llm_client.py", "--url", server, "--style", style, "--calls", "60")
        status, output = await run(*command, *quota, "--margin", "0.4")
        found = await log(server)
    assert status == 0, output
    assert "60 answered, 0 not" in output
    assert found["refused"] == 0
    calls, used = fullest(found["entries"], 2)
    assert calls <= requests
    assert used <= tokens
    assert max(calls / requests, used / tokens) > 0.7, "and it uses what there is"


async def test_it_shares_with_another_client_and_recovers() -> None:
    quota = limits(20, 100_000, 1)
    async with running("examples/llm_server.py", "--port", "0", *quota) as server:
        command = ("examples/llm_client.py", "--url", server, "--calls", "110")
        ours = asyncio.create_task(run(*command, *quota, "--margin", "0.1"))
        body = {"max_tokens": 20, "messages": [{"role": "user", "content": "mine"}]}
        theirs = 0
        async with httpx2.AsyncClient(base_url=server, headers=KEY) as other:
            while not (await other.get("/-/log")).json():
                await asyncio.sleep(0.05)
            for _ in range(30):  # half of the quota, for three seconds
                answer = await other.post("/v1/chat/completions", json=body)
                theirs += answer.status_code == 200
                await asyncio.sleep(0.1)
        status, output = await ours
        found = await log(server)
    assert status == 0, output
    assert "110 answered, 0 not" in output
    assert theirs > 5
    entries = found["entries"]
    assert len(entries) == 110 + theirs
    assert fullest(entries, 1)[0] <= 20
    assert found["refused"] < 60, "it learns, and does not ask again and again"
    # After the other has left, there is the whole quota again: 20 a second, but for the edges.
    last = entries[-1][0]
    assert sum(last - 2 <= at for at, _ in entries) > 25
