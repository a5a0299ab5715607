"""How one limiter shares: where its calls go, how many processes there are, what it may ask for.

Each process tells the engine so every second that it lives. So every one knows how many share a
limit, and what its part is while the engine is silent. When the engine is back, some processes
notice before others, who still use their own part: so until all have told that they are back, and
for a while at most, those who are ask for no more than their parts of the limit.
"""

import asyncio
import weakref
from collections.abc import Callable, Hashable, Sequence
from math import floor
from typing import Final, Literal, Protocol, TypeAlias

from aiolimit.counts import Limits
from aiolimit.errors import Source
from aiolimit.rate import Rate
from aiolimit.shared.names import Names
from aiolimit.shared.script import PACE, Call, Census, beat, census_of, leave, reset
from aiolimit.shared.sender import Job, Sender

__all__ = ["Link", "Policy", "Sharing", "StoreOptions"]

_BEAT: Final = 1.0  # seconds
_UNUSED: Final = 60  # beats after the last call: who asks for nothing has no share
_OFTEN: Final = 0.25  # seconds, while others come back
_ON_ITS_WAY: Final = 0.1  # seconds: what an engine that stood still finds in its sockets is older
_COMING_BACK: Final = 13.0  # seconds: nobody tries less often than that

#: What to do while the engine does not answer; see `aiolimit.redis.RedisStore`.
Policy: TypeAlias = Literal["local", "open", "closed", "raise"]

_SOURCE: Final[dict[Policy, Source]] = {
    "local": "local",
    "open": "open",
    "closed": "closed",
    "raise": "closed",
}


class StoreOptions(Protocol):
    """What the user has said of the store."""

    prefix: str
    on_store_error: Policy
    processes: int | None
    lease: float | None


class Link(Protocol):
    """The way to the engine, on one event loop."""

    loop: asyncio.AbstractEventLoop
    member: bytes
    only: Sender | None  # where all calls go, if there is one place
    listeners: "weakref.WeakSet[Sharing]"

    def sender(self, key: bytes) -> Sender:
        """Where calls for that key go."""
        ...

    @property
    def senders(self) -> Sequence[Sender]:
        """All places where calls go."""
        ...

    def time(self) -> float:
        """The time by which the engine is tried again."""
        ...

    async def do(self, calls: Sequence[Call]) -> None:
        """Have calls done, of which nobody wants to know more."""
        ...

    async def reset_all(self, start: str, now: float | None) -> None:
        """Forget what is charged to all keys that begin like that."""
        ...


class Sharing:
    """See above. One for each limiter.

    link: gives the way to the engine on the running loop.
    """

    def __init__(self, options: StoreOptions, limiter: str, link: Callable[[], Link]) -> None:
        self.policy: Policy = options.on_store_error
        self.policy_source: Source = _SOURCE[self.policy]
        self.names = Names(options.prefix, limiter)
        self.on_silence: Callable[[], object] = lambda: None
        self.on_recovery: Callable[[], object] = lambda: None
        self.on_close: Callable[[], object] = lambda: None
        self._given = options.processes
        self._lease = options.lease
        self._link_of = link
        self._link: Link | None = None
        self._alive = 1
        self._beats_unused = 0
        self._is_known = False  # to the engine
        self._fresh = 1
        self._coming_back_until = 0.0
        self._back_since = 0.0  # what was told before that may have been on its way for long
        self._registry = f"{self.names.start}processes".encode("utf-8", "surrogatepass")

    # --- where calls go --------------------------------------------------------------------

    def link(self) -> Link:
        """The way to the engine on the running loop; from the first use on this process counts."""
        link = self._link
        if link is None or link.loop.is_closed() or not link.loop.is_running():
            link = self._link_of()
            if link is not self._link:
                self._link = link
                self._is_known = False
                link.listeners.add(self)
                self._beat_on(link)
        return link

    @property
    def is_linked(self) -> bool:
        """Whether the engine has been asked on a loop that runs."""
        return self._link is not None and self._link.loop.is_running()

    def sender(self, key: Hashable) -> Sender:
        """Where calls for that key go."""
        link = self.link()
        self._beats_unused = 0
        return link.only or link.sender(self.names.of(key))

    def put(self, key: Hashable, job: Job) -> None:
        """Ask the engine for something."""
        self.sender(key).put(job)

    def is_silent(self, key: Hashable) -> bool:
        """Whether the engine, or the node that has the key, is not asked for now."""
        link = self._link
        if link is None:
            return False
        return (link.only or link.sender(self.names.of(key))).breaker.is_open

    def is_busy(self) -> bool:
        """Whether an answer is awaited."""
        return self._link is not None and any(sender.is_busy for sender in self._link.senders)

    def is_up(self) -> bool:
        """Whether no part of the engine is silent."""
        return self._link is None or not any(one.breaker.is_open for one in self._link.senders)

    def retry_after(self, key: Hashable) -> float:
        """Seconds until it is tried again, if it is not asked for now."""
        return max(0.05, self.sender(key).breaker.retry_at - self.link().time())

    def recovered(self, *, was_silent: bool) -> None:
        """A node answers again; if it was not asked meanwhile, others may have to come back yet."""
        link = self._link
        if link is None:
            return
        if was_silent:
            self._fresh = 1
            self._back_since = 0.0
            self._coming_back_until = link.time() + _COMING_BACK
            self._beat(link)
        self.on_recovery()

    # --- how many share --------------------------------------------------------------------

    @property
    def processes(self) -> int:
        """How many processes share the limit, this one included: as was said, or as is known."""
        return self._given or self._alive

    def part(self) -> float:
        """Which part of a limit may be asked for: 1 unless others have yet to come back."""
        link = self._link
        if not self._coming_back_until or link is None:
            return 1.0
        if self._fresh >= self.processes or link.time() >= self._coming_back_until:
            self._coming_back_until = 0.0
            return 1.0
        return self._fresh / self.processes

    def counted(self, census: Census) -> None:
        """The engine has told how many live, and how many have told so since it is back.

        If it does not know this process, which has told so, it may have been started anew.
        """
        if census.is_new and self._is_known:
            self.on_recovery()
        self._is_known = True
        if not self._coming_back_until:
            self._alive = max(1, census.alive)
        elif self._back_since:
            self._fresh = max(1, census.fresh)
        else:
            self._back_since = census.at + _ON_ITS_WAY * 1e6

    def _beat(self, link: Link) -> None:
        link.sender(self._registry).put(
            _Beat(self, beat(self._registry, link.member, _BEAT, self._back_since))
        )

    def _beat_on(self, link: Link) -> None:
        """Tell from now on that this process lives, for as long as the limiter is in use."""
        me = weakref.ref(self)

        def again() -> None:
            sharing = me()
            if sharing is None or sharing._link is not link:
                return
            sharing._beats_unused += 1
            is_used = sharing._beats_unused <= _UNUSED
            if is_used and not link.sender(sharing._registry).breaker.is_open:
                sharing._beat(link)
            delay = _OFTEN if sharing._coming_back_until else _BEAT
            link.loop.call_later(delay, again)

        again()

    async def forget(
        self,
        key: Hashable | None,
        sub_windows: int | None,
        layouts: Sequence[tuple[Rate, ...]],
        now: float | None,
    ) -> None:
        """Forget what is charged to one key under all of those rates, or to all keys."""
        link = self.link()
        if key is None:
            await link.reset_all(self.names.start, now)
            return
        base = self.names.of(key)
        ends = {end for rates in layouts for end in self.names.windows(rates, sub_windows)}
        await link.do([reset([base + end for end in ends], [base + PACE], now)])

    def depart(self) -> None:
        """Give back what was taken ahead, and tell that this process goes."""
        if self._link is not None:
            self.on_close()
            sender = self._link.sender(self._registry)
            sender.put(_Beat(self, leave(self._registry, self._link.member)))
            self._link = None

    # --- leases ----------------------------------------------------------------------------

    def batch(self, limits: Limits) -> int:
        """How much may be taken ahead: P batches are at most the share that was allowed."""
        if self._lease is None:
            return 0
        least = min((one for one in limits if one is not None), default=0.0)
        batch = floor(self._lease * least / self.processes)
        return batch if batch > 1 else 0

    def lease_life(self, limits: Limits, rates: tuple[Rate, ...]) -> float:
        """Seconds for which it may be spent: a tenth of the shortest window."""
        if not self.batch(limits):
            return 0.0
        return (
            min(rate.per for rate, one in zip(rates, limits, strict=True) if one is not None) / 10
        )


class _Beat:
    """This process lives, or goes."""

    __slots__ = ("_call", "_sharing")

    keeps = leads = False

    def __init__(self, sharing: Sharing, call: Call) -> None:
        self._sharing = sharing
        self._call = call

    def compose(self) -> Call | None:
        """As it is."""
        return self._call

    def answer(self, raw: bytes) -> None:
        """So many live."""
        self._sharing.counted(census_of(raw))

    def fail(self, _error: Exception) -> None:
        """The next one tells."""
