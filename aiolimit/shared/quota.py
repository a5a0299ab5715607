"""The quota of one limiter as an engine keeps it, asked for and spent in this process.

The decisions of a limiter are made at once, and an engine answers later. So what it grants becomes
credit, and credit is spent by the same synchronous function that lets in who waits:

1. `take` spends credit where there is some. Where there is none it looks at what is known of the
   key, and if that lets the cost pass it asks, once per key, and answers "not yet".
2. What is known is the key's windows as the engine told of them last. They say when there will be
   room: until then nobody asks. That is exact while nobody gives back and limits do not rise, and
   is not believed for longer than a second.
3. An answer grants to as many of those who wait as fit, in order. Credit that is left over, as
   somebody was cancelled meanwhile, is given back at once, to the entry that it came from; or it
   is a lease, and stays for a while.
4. While the engine is silent the failure policy decides, at once.
"""

import random
from collections.abc import Callable, Hashable
from math import inf
from time import monotonic
from typing import Final, Protocol, cast

from aiolimit.clock import Clock
from aiolimit.counts import Limits, Look
from aiolimit.errors import Source
from aiolimit.memory import MemoryStore
from aiolimit.ramps import Ramps
from aiolimit.rate import Rate
from aiolimit.shared.calls import Calls
from aiolimit.shared.credit import Credits, Stamp, Ticket
from aiolimit.shared.jobs import Charge, GiveBack, Take
from aiolimit.shared.local import LocalShare, less
from aiolimit.shared.mirror import heard_at, near, windows_of
from aiolimit.shared.script import Answer, HeardWindow, Run
from aiolimit.shared.sender import Sender
from aiolimit.shared.sharing import Sharing
from aiolimit.shared.telling import Telling

__all__ = ["TRUST", "Line", "SharedQuota"]

#: Seconds for which a key that is known to be full is not asked about.
TRUST: Final = 1.0
_AGAIN: Final = 0.001  # seconds after which to ask again where a refusal cannot be explained
_CROWDED: Final = 4  # asks in vain that are counted


class Line(Protocol):
    """Those who wait for a key, as far as the quota has to know them."""

    def wanted(self, key: Hashable) -> tuple[list[Run], Limits] | None:
        """What the first of them ask for, who ask under one set of limits; None if nobody does."""
        ...

    def answered(self, key: Hashable) -> None:
        """The engine has answered, or will not: let in who may go, and tell the others."""
        ...

    def keeps(self, key: Hashable) -> bool:
        """Whether the first keeps what it has, as it waits for the answer of another store."""
        ...

    def fail(self, key: Hashable, most: int) -> None:
        """The engine did not answer, and nobody passes then: end the waiting of the first."""
        ...


class SharedQuota:
    """See above. Like a `MemoryStore` it is asked with `take`, `charge`, `give_back` and `look`."""

    def __init__(
        self,
        sharing: Sharing,
        mirror: MemoryStore,
        ramps: Ramps | None,
        clock: Clock,
        time: Callable[[], float],
    ) -> None:
        self.sharing = sharing
        self.line: Line  # is set by those who make both
        self.local = LocalShare(mirror.rates, mirror.sub_windows, mirror.burst, mirror.max_keys)
        self.mirror = mirror
        #: Of the latest decision: when it was charged, and where it came from.
        self.charged_at: Stamp | None = None
        self.contention = 0  # asks in a row that came back with nothing, though there was room
        self.time = time
        self._known: MemoryStore | Ramps = ramps or mirror
        self._ramps = ramps
        self.calls = Calls(sharing, mirror, ramps, clock, time)
        self.credits = Credits(clock, self._give_back_credit)
        self._locally: set[Hashable] = set()  # decided without the engine, for this once
        self._unsure: float = 0  # the cost of what was sent for that key, and not answered
        self._refused: Hashable = None  # whom the engine has just refused, with others
        self.telling = Telling(self, mirror)
        self.calls.on_loss = self.telling.lost_key

    def doubt(self, key: Hashable) -> None:
        """What is known of a key is old: ask when it is next wanted."""
        for window in windows_of(self.mirror, key):
            window.heard = -inf

    # --- as a store ------------------------------------------------------------------------

    def take(
        self,
        key: Hashable,
        want: float,
        least: float,
        limits: Limits,
        now: float,
        ahead: float = 0,
    ) -> tuple[float, float]:
        """As `MemoryStore.take`; the wait is infinite while the engine has not answered."""
        ticket = self.credits.of(key)
        if ticket is not None and limits is ticket.limits and 0 < want <= ticket.credit:
            if self._ramps is None and not ticket.is_lease:  # most are: see `Credits.spend`
                ticket.credit -= want
                if not ticket.credit:
                    self.credits.close(key, ticket)
                self.charged_at = ticket.stamp
                return want, 0.0
        if not want:
            if ticket is not None and ticket.covers(ahead + least, limits):
                return 0, 0.0
            return 0, self._wait(key, least, limits, now, ahead)
        if self._ramps is not None:
            self._ramps.attempt(key, now)
        if ticket is not None:
            if ticket.covers(want, limits):
                self.charged_at = self.credits.spend(key, ticket, want, now)
                if self._ramps is not None:
                    self._ramps.spend(key, want, limits, now)
                return want, 0.0
            if ticket.is_asking:
                return 0, inf
        sender = self.sharing.sender(key)
        if sender.breaker.is_open or key in self._locally:
            return self._take_locally(key, want, limits, now)
        entry = self.mirror.entries.get(key)
        has_room = entry is None and self._ramps is None
        if type(entry) is HeardWindow and self._ramps is None:  # most are: see `_wait`
            limit = self.calls.bounded(limits)[0]
            has_room = limit is not None and entry.total + least <= limit
        wait = 0.0 if has_room else self._wait(key, least, limits, now)
        has_just_told = self._refused is not None and self._refused == key
        if wait and (
            entry is None  # it is the ramp of this process
            or has_just_told
            or monotonic() - heard_at(self.mirror, key) < TRUST
        ):
            return 0, wait
        if has_just_told:
            return 0, _AGAIN * (1 + random.random())  # noqa: S311
        self.ask(key, limits, sender, hopeful=entry is not None and not wait)
        return 0, inf

    def charge(self, key: Hashable, cost: float, limits: Limits, now: float) -> float:
        """As `MemoryStore.charge`."""
        self._note(key, cost, limits, now)
        stamp = Stamp(now)
        if self.is_local(key):
            stamp.source = "local"
            self.local.owe(key, cost, limits, now)
        else:
            self.local.note(key, cost, limits, now)
            self.sharing.put(key, Charge(self, key, cost, limits, stamp))
        return stamp

    def give_back(
        self,
        key: Hashable,
        cost: float,
        limits: Limits,
        layout: int | None,
        now: float,
        at: float,
    ) -> None:
        """As `MemoryStore.give_back`."""
        if layout is None:
            limits = tuple(rate.limit for rate in self.mirror.rates)
        elif layout != self.mirror.layout:
            return
        if not isinstance(at, Stamp) or at.source == "open":
            return  # it was not charged
        self._known.give_back(key, cost, limits, layout, now, at)
        is_debt = at.source == "local"
        left = self.local.give_back(key, cost, limits, now, at, is_debt=is_debt)
        if left > 0 and not at.is_unsure:
            self.telling.before(key)
            self.sharing.put(key, GiveBack(self, key, left, limits, at))

    def look(self, key: Hashable, cost: float, limits: Limits, now: float) -> list[Look | None]:
        """As `MemoryStore.look`, as far as this process knows."""
        looks = self._known.look(key, cost, limits, now)
        if not self.is_local(key) or self.sharing.policy != "local":
            return looks
        share = self.local.share(limits, self.sharing.processes)
        own = self.local.look(key, cost, share, now)
        return [one and other and less(one, other) for one, other in zip(looks, own, strict=True)]

    @property
    def layout(self) -> int:
        """As `MemoryStore.layout`."""
        return self.mirror.layout

    def use_rates(self, old: tuple[Rate, ...]) -> None:
        """Take over the rates of the mirror; under the old ones things may have been charged."""
        self.local.counts.change(self.mirror.rates)
        if self.calls.use_rates(old) and self.sharing.is_linked:
            self.telling.move()  # first: what is given back is not taken over again
            self.credits.release_all()

    def forget(self, key: Hashable | None) -> None:
        """Forget what was granted for a key, or for all: the engine has forgotten it."""
        self.local.forget(key)
        self.credits.forget(key)

    def _give_back_credit(self, key: Hashable, ticket: Ticket) -> None:
        stamp = cast(Stamp, ticket.stamp)
        layout = ticket.layout if None in ticket.limits else None
        self.give_back(key, ticket.credit, ticket.limits, layout, self.time(), stamp)

    # --- while the engine is silent --------------------------------------------------------

    def is_local(self, key: Hashable) -> bool:
        """Whether it is decided without the engine."""
        return key in self._locally or self.sharing.is_silent(key)

    @property
    def passes_locally(self) -> bool:
        """Whether anybody passes without the engine."""
        return self.sharing.policy in ("local", "open")

    def source(self, key: Hashable) -> Source:
        """Where decisions for the key come from now."""
        return self.sharing.policy_source if self.is_local(key) else "store"

    def _take_locally(
        self, key: Hashable, cost: float, limits: Limits, now: float
    ) -> tuple[float, float]:
        policy, is_unsure = self.sharing.policy, False
        if policy == "local":
            wait = self._wait(key, cost, limits, now)
            if wait:
                return 0, wait
            self._note(key, cost, limits, now)
            if is_unsure := self._unsure >= cost and key in self._locally:
                self._unsure -= cost  # the engine may have done it, so it counts as done
                self.local.note(key, cost, limits, now)
            else:
                self.local.owe(key, cost, limits, now)
        elif policy != "open":
            return 0, inf  # and is ended by whoever asked
        elif self._ramps is not None:
            self._ramps.spend(key, cost, limits, now)
        self.charged_at = Stamp(now)
        self.charged_at.source, self.charged_at.is_unsure = policy, is_unsure
        return cost, 0.0

    def _note(self, key: Hashable, cost: float, limits: Limits, now: float) -> None:
        """Note in what is known of a key what the engine is not asked about."""
        if key in self.mirror:
            self._known.charge(key, cost, limits, now)
        elif self._ramps is not None:
            self._ramps.spend(key, cost, limits, now)

    def looks_again(self, key: Hashable) -> float | None:
        """Seconds after which to ask again for those who wait longer: what is known grows old."""
        if not self.is_local(key):
            return TRUST
        return None if self.sharing.is_silent(key) else TRUST / 2

    # --- asking ----------------------------------------------------------------------------

    def ask(
        self,
        key: Hashable,
        limits: Limits,
        sender: Sender | None = None,
        *,
        hopeful: bool = False,
    ) -> None:
        """Have the engine asked for what those want who wait for the key, once, if it answers.

        hopeful: whether there was room as far as was known.
        """
        ticket = self.credits.of(key)
        if ticket is not None and ticket.is_asking:
            return
        sender = sender or self.sharing.sender(key)
        if sender.breaker.is_open:
            return
        self.telling.before(key)
        ticket = Ticket(limits)
        ticket.is_hopeful = hopeful
        job = Take(self, key, ticket)
        self.credits.open(key, ticket)
        sender.put(job)

    @property
    def is_paced(self) -> bool:
        """Whether a warm-up lets in one at a time."""
        return self._ramps is not None and not self._ramps.is_warm

    def wanted(self, key: Hashable, ticket: Ticket) -> tuple[list[Run], Limits] | None:
        """What to ask for now; None, and nothing is asked, if nobody wants it any more."""
        found = self.line.wanted(key)
        if found is None:
            self.credits.close(key, ticket)
            return None
        runs, limits = found
        ticket.limits, ticket.layout = limits, self.mirror.layout
        ticket.batch = self.sharing.batch(limits)
        if ticket.batch:
            runs.append((1, ticket.batch))
        return runs, limits

    def granted(self, key: Hashable, ticket: Ticket, runs: list[Run], answer: Answer) -> None:
        """The engine has let in the first so many; the others wait."""
        now, left = answer.heard, int(answer.granted)
        cost: float = 0
        wanted = 0
        for one, count in runs:
            taken = min(count, left)
            cost += one * taken
            left -= taken
            wanted += count
        ticket.is_asking = False
        ticket.credit = cost
        ticket.stamp = stamp = Stamp(now)
        stamp.engine = answer.at
        if ticket.layout == self.mirror.layout:
            callers = runs[:-1] if ticket.batch else runs
            self.mirror.near += near(callers, int(answer.granted), ticket.limits, answer)
        elif None not in ticket.limits:  # else nobody can tell what it is good for now
            ticket.limits, ticket.layout = self.calls.limits, self.mirror.layout
        if answer.granted:
            if ticket.layout == self.mirror.layout:
                self.local.note(key, cost, ticket.limits, now)
            self.contention = 0
        elif ticket.is_hopeful:
            self.contention = min(self.contention + 1, _CROWDED)
        self._refused = key if answer.granted < wanted else None
        try:
            self.line.answered(key)
        finally:
            self._refused = None

    def not_granted(
        self, key: Hashable, ticket: Ticket, runs: list[Run], *, is_unsure: bool
    ) -> None:
        """The engine did not do it; or it is unsure, and counts as done, and is not repeated."""
        self.credits.close(key, ticket)
        if self.passes_locally:
            self._locally.add(key)
            self._unsure = sum(cost * count for cost, count in runs) if is_unsure else 0
            try:
                self.line.answered(key)
            finally:
                self._locally.discard(key)
                self._unsure = 0
        else:
            self.line.fail(key, sum(count for _, count in runs))

    def served(self, key: Hashable) -> None:
        """All have gone who could: what is left of an answer is kept if it may be."""
        ticket = self.credits.of(key)
        if ticket is not None and not ticket.is_asking:
            lease = 0.0
            if ticket.layout == self.mirror.layout:
                lease = self.sharing.lease_life(ticket.limits, self.mirror.rates)
            self.credits.leave(key, lease=lease, keeps=self.line.keeps(key))

    def release(self, key: Hashable) -> None:
        """Give back what was kept for a caller who does not go yet."""
        ticket = self.credits.of(key)
        if ticket is not None and ticket.credit and not ticket.is_lease:
            self.credits.release(key, ticket)

    def _wait(
        self, key: Hashable, cost: float, limits: Limits, now: float, ahead: float = 0
    ) -> float:
        """Seconds until the cost passes, as far as is known."""
        wait = 0.0
        if ahead or self._ramps is not None or key in self.mirror:
            bounded = self.calls.bounded(limits)
            wait = self._known.take(key, 0, cost, bounded, now, ahead=ahead)[1]
        if self.sharing.policy == "local" and self.is_local(key):
            share = self.local.share(limits, self.sharing.processes)
            wait = max(wait, self.local.wait(key, cost, share, now))
            burst = self.local.counts.burst
            if any(one is not None and cost > one for one in (*share, burst)):
                wait = max(wait, self.sharing.retry_after(key))  # too much for a part of it
        return wait
