"""Five users of the demo with their habits, and what became of their requests.

All of it is real HTTP, and everything counted here was seen by a client.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx2

__all__ = ["Tenant", "send", "tenants"]


@dataclass(slots=True)
class Tenant:
    """One user: what its habit is, and what it has seen."""

    name: str
    habit: str
    per_minute: int
    #: When it sends, as seconds from the start, for a demo of so many seconds.
    schedule: Callable[[float], Iterator[float]]
    raised_to: int | None = None
    answers: Counter[int] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    queued: int = 0
    longest_wait: float = 0.0
    retry_after: int | None = None
    by_second: Counter[int] = field(default_factory=Counter)

    @property
    def key(self) -> str:
        """What it sends to say who it is."""
        return f"{self.name}-key"

    @property
    def admitted(self) -> int:
        """How many of its requests were answered by the backend."""
        return self.answers[200]

    @property
    def refused(self) -> int:
        """How many of its requests were over the limit."""
        return self.answers[429]


def _every(gap: float, burst: int = 1, first: float = 0.0) -> Callable[[float], Iterator[float]]:
    def schedule(seconds: float) -> Iterator[float]:
        at = first
        while at < seconds:
            yield from [at] * burst
            at += gap

    return schedule


def tenants() -> list[Tenant]:
    """The users, fresh."""
    return [
        Tenant("alice", "steady", 120, _every(0.6)),
        Tenant("bob", "bursty", 60, _every(4.0, burst=18)),
        Tenant("carol", "greedy", 30, _every(0.15)),
        Tenant("dave", "raised half-way", 15, _every(0.4), raised_to=45),
        Tenant("erin", "unlimited, in batches", 0, _every(5.0, burst=45, first=2.5)),
    ]


async def send(client: httpx2.AsyncClient, tenant: Tenant, seconds: float) -> None:
    """Send what the user's habit is for so long, each request in its own time."""
    clock = asyncio.get_running_loop().time
    begun = clock()
    async with asyncio.TaskGroup() as group:
        for number, at in enumerate(tenant.schedule(seconds)):
            await asyncio.sleep(max(0.0, begun + at - clock()))
            group.create_task(_request(client, tenant, number, begun))


async def _request(client: httpx2.AsyncClient, tenant: Tenant, number: int, begun: float) -> None:
    try:
        answer = await client.get(
            f"/things/{number}", headers={"authorization": f"Bearer {tenant.key}"}
        )
    except httpx2.HTTPError as error:
        tenant.failures[type(error).__name__] += 1
        return
    tenant.answers[answer.status_code] += 1
    if answer.status_code == 200:
        tenant.by_second[int(asyncio.get_running_loop().time() - begun)] += 1
        waited = float(answer.headers["x-waited"])
        tenant.queued += waited > 0
        tenant.longest_wait = max(tenant.longest_wait, waited)
    elif answer.status_code == 429:
        tenant.retry_after = int(answer.headers["retry-after"])
