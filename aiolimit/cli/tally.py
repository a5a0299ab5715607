"""The second act by seconds: what its clients have seen, and what the service told of itself.

A request belongs to the second in which it was to be sent, whenever its answer came.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import ceil
from typing import NamedTuple

__all__ = ["DEADLINE", "Phase", "Second", "Status", "merged", "phases", "planned", "whole_phases"]

DEADLINE = 0.5  # seconds from the planned time: later an answer is of no use any more


class Status(NamedTuple):
    """What the service tells its operator. All times are seconds."""

    in_flight: int
    cap: float
    cost: float | None  # CPU of a request, as its load controller has measured it
    rate: float | None
    explain: str
    cpu: float  # that it has used so far
    waited: float  # so far, for a core that others had


@dataclass(frozen=True, slots=True)
class Phase:
    """So many whole seconds with the same load and the same work for each request."""

    name: str
    seconds: int
    per_second: int
    milliseconds: float


def phases(seconds: float) -> list[Phase]:
    """The three phases of the second act, when the first lasts so long.

    A request takes 10 ms of CPU and what HTTP takes. So 55 a second leave a core some room, and
    125 of twice the work are two and a half times what a whole core can do.
    """
    return [
        Phase("calm", max(1, round(seconds * 0.15)), 55, 10),
        Phase("slow", max(2, round(seconds * 0.3)), 125, 20),
        Phase("after", max(1, round(seconds * 0.15)), 55, 10),
    ]


def planned(acts: Iterable[Phase]) -> Iterator[float]:
    """When requests are to be sent: as independent users do, the same in every run."""
    chance = random.Random(1)  # noqa: S311 (no secret)
    begin = 0.0
    for phase in acts:
        at = begin + chance.expovariate(phase.per_second)
        begin += phase.seconds
        while at < begin:
            yield at
            at += chance.expovariate(phase.per_second)


@dataclass(slots=True)
class Second:
    """One second, or several together."""

    phase: Phase
    offered: int = 0
    refused: int = 0
    latencies: list[float] = field(default_factory=list)  # of what was done
    slowest_refusal: float = 0.0
    #: Seconds of CPU that were burnt for answers in time, by when they came; that the service
    #: has used; and in which it had to wait for a core. The latter two of a whole phase only.
    useful: float = 0.0
    cpu: float = 0.0
    waited: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)
    #: The latest planned time, from the start of the act, of a request refused or served late.
    trouble: float | None = None
    statuses: list[Status] = field(default_factory=list)

    def record(self, at: float, took: float, status: int | str) -> None:
        """Count one request: its planned time, its latency, its status or what went wrong."""
        if status == 200:
            self.latencies.append(took)
        elif status == 503:
            self.refused += 1
            self.slowest_refusal = max(self.slowest_refusal, took)
        else:
            self.failures[f"status {status}" if isinstance(status, int) else status] += 1
        if status != 200 or took > DEADLINE:
            self.trouble = max(at, self.trouble or 0.0)

    @property
    def in_time(self) -> int:
        """How many were done within the deadline."""
        return sum(latency <= DEADLINE for latency in self.latencies)

    @property
    def late(self) -> int:
        """How many were done in vain."""
        return len(self.latencies) - self.in_time

    @property
    def fullest(self) -> Status | None:
        """What the service told when most were in flight; None if it told nothing."""
        return max(self.statuses, key=lambda status: status.in_flight, default=None)

    @property
    def share(self) -> float | None:
        """Of a core that the service could get; None if that is not known."""
        return self.cpu / (self.cpu + self.waited) if self.cpu else None

    @property
    def could(self) -> float | None:
        """What could be done at most, a second: the CPU it could get, by what a request burns."""
        return None if self.share is None else self.share * 1e3 / self.phase.milliseconds

    def percentile(self, per_cent: float) -> float | None:
        """Of the latencies of what was done; None if nothing was."""
        if not self.latencies:
            return None
        return sorted(self.latencies)[max(0, ceil(len(self.latencies) * per_cent / 100) - 1)]


def whole_phases(by_second: Iterable[Second]) -> list[Second]:
    """The phases, each as one. The first status of each is from its begin."""
    found = [merged(list(part)) for _, part in groupby(by_second, lambda second: second.phase)]
    for part, after in zip(found, [*found[1:], found[-1]], strict=True):
        if part.statuses and after.statuses:
            begin, end = part.statuses[0], after.statuses[-1 if after is part else 0]
            part.cpu, part.waited = end.cpu - begin.cpu, end.waited - begin.waited
    return found


def merged(seconds: Sequence[Second]) -> Second:
    """Several seconds of one phase as one."""
    whole = Second(seconds[0].phase)
    for each in seconds:
        whole.offered += each.offered
        whole.refused += each.refused
        whole.latencies += each.latencies
        whole.slowest_refusal = max(whole.slowest_refusal, each.slowest_refusal)
        whole.useful += each.useful
        whole.failures += each.failures
        whole.statuses += each.statuses
        if each.trouble is not None:
            whole.trouble = max(each.trouble, whole.trouble or 0.0)
    return whole
