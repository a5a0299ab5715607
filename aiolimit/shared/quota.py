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
from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from math import inf
from time import monotonic
from typing import Final, Protocol, cast

from aiolimit.clock import Clock
from aiolimit.counts import Limits, Look
from aiolimit.errors import Source
from aiolimit.memory import MemoryStore
from aiolimit.ramps import Ramps
from aiolimit.rate import Rate
from aiolimit.shared.jobs import Charge, Debit, GiveBack, Take
from aiolimit.shared.local import LocalShare, share_of
from aiolimit.shared.mirror import heard_at, learn, windows_of
from aiolimit.shared.script import Answer, HeardWindow, Run, Shape
from aiolimit.shared.sender import Sender
from aiolimit.shared.sharing import Sharing
from aiolimit.shared.ticket import Stamp, Ticket

__all__ = ["TRUST", "Line", "SharedQuota"]

#: Seconds for which a key that is known to be full is not asked about.
TRUST: Final = 1.0
_AGAIN: Final = 0.001  # seconds after which to ask again where a refusal cannot be explained
_CROWDED: Final = 4  # asks in vain that are counted
_KEPT: Final = 0.2  # seconds for which credit is kept for a caller who waits elsewhere, too
_ROUNDING: Final = 1e-9  # of a credit: a sum of fractions
_SHAPES: Final = 256  # sets of limits whose calls are kept packed
_TOLD: Final = 64  # keys whose debts are told at once; then it is the turn of others


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
        self.line: Line
        self.local = LocalShare(mirror.rates, mirror.sub_windows, mirror.burst, mirror.max_keys)
        self.mirror = mirror
        #: Of the latest decision: when it was charged, and where it came from.
        self.charged_at: Stamp | None = None
        self.contention = 0  # asks in a row that came back with nothing, though there was room
        self.time = time
        self._known: MemoryStore | Ramps = ramps or mirror
        self._ramps = ramps
        self._clock = clock
        self._tells_time = clock.time is not monotonic
        self._tickets: dict[Hashable, Ticket] = {}
        self._locally: set[Hashable] = set()  # decided without the engine, for this once
        self._refused: Hashable = None  # whom the engine has just refused, with others
        self._untold: dict[Hashable, None] = {}  # keys of which the engine may have lost the counts
        self._untold_until = -inf
        self._offset = 0.0  # the engine's clock less this process's, seconds
        self._former: tuple[tuple[Rate, ...], float] = ((), -inf)  # rates until then
        self._shapes: dict[Limits, Shape] = {}

    def doubt(self, key: Hashable) -> None:
        """What is known of a key is old: ask when it is next wanted."""
        for window in windows_of(self.mirror, key):
            window.heard = -inf

    def begin_anew(self) -> None:
        """Another event loop is in use: what was asked on the old one is not answered any more."""
        for ticket in self._tickets.values():
            ticket.sleep()
        self._tickets.clear()

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
        ticket = self._tickets.get(key)
        if ticket is not None and limits is ticket.limits and 0 < want < ticket.credit:
            if self._ramps is None and not ticket.is_lease:  # most are: see `_spend`
                ticket.credit -= want
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
                self._spend(key, ticket, want, limits, now)
                return want, 0.0
            if ticket.is_asking:
                return 0, inf
        sender = self.sharing.sender(key)
        if sender.breaker.is_open or key in self._locally:
            return self._take_locally(key, want, limits, now)
        entry = self.mirror.entries.get(key)
        wait = 0.0
        if self._ramps is not None or (
            entry is not None
            and not (
                type(entry) is HeardWindow
                and entry.total + least <= cast(float, self.bounded(limits)[0])
            )
        ):
            wait = self._wait(key, least, limits, now)
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
        self.local.give_back(key, cost, limits, now, at, is_debt=is_debt)
        if not is_debt:
            self.sharing.put(key, GiveBack(self, key, cost, limits, at))

    def look(self, key: Hashable, cost: float, limits: Limits, now: float) -> list[Look | None]:
        """As `MemoryStore.look`, as far as this process knows."""
        looks = self._known.look(key, cost, limits, now)
        if not self.is_local(key) or self.sharing.policy != "local":
            return looks
        return [
            look and own and _less(look, own)
            for look, own in zip(
                looks, self.local.look(key, cost, self._share(limits), now), strict=True
            )
        ]

    @property
    def layout(self) -> int:
        """As `MemoryStore.layout`."""
        return self.mirror.layout

    def use_rates(self, old: tuple[Rate, ...], now: float) -> None:
        """Take over the rates of the mirror; under the old ones things may have been charged."""
        rates = self.mirror.rates
        self._shapes.clear()
        self.local.counts.change(rates)
        if [rate.per for rate in old] != [rate.per for rate in rates]:
            self._former = old, now + max(rate.per for rate in old)
            if self.sharing.is_linked:
                known = [key for keys in self.mirror.tables() for key in keys]
                self._put_some(iter(known), self._move)

    def forget(self, key: Hashable | None) -> None:
        """Forget what was granted for a key, or for all: the engine has forgotten it."""
        self.local.forget(key)
        for one in list(self._tickets) if key is None else [key]:
            ticket = self._tickets.get(one)
            if ticket is not None and not ticket.is_asking:
                self._close(one, ticket)

    # --- while the engine is silent --------------------------------------------------------

    def is_local(self, key: Hashable) -> bool:
        """Whether it is decided without the engine."""
        return key in self._locally or self.sharing.is_silent(key)

    @property
    def source_of_grant(self) -> Source:
        """Where the latest grant came from."""
        return "store" if self.charged_at is None else self.charged_at.source

    def source(self, key: Hashable) -> Source:
        """Where decisions for the key come from now."""
        return self.sharing.policy_source if self.is_local(key) else "store"

    def _take_locally(
        self, key: Hashable, cost: float, limits: Limits, now: float
    ) -> tuple[float, float]:
        policy = self.sharing.policy
        if policy == "local":
            wait = self._wait(key, cost, limits, now)
            if wait:
                return 0, wait
            self._note(key, cost, limits, now)
            self.local.owe(key, cost, limits, now)
        elif policy != "open":
            return 0, inf  # and is ended by whoever asked
        elif self._ramps is not None:
            self._ramps.spend(key, cost, limits, now)
        self.charged_at = Stamp(now)
        self.charged_at.source = policy
        return cost, 0.0

    def _note(self, key: Hashable, cost: float, limits: Limits, now: float) -> None:
        """Note in what is known of a key what the engine is not asked about."""
        if key in self.mirror:
            self._known.charge(key, cost, limits, now)
        elif self._ramps is not None:
            self._ramps.spend(key, cost, limits, now)

    def _share(self, limits: Limits) -> Limits:
        """What this process may use of those limits."""
        processes = self.sharing.processes
        burst = self.mirror.burst
        self.local.counts.burst = burst and max(1, burst / processes)
        return tuple(None if one is None else share_of(one, processes) for one in limits)

    def recovered(self) -> None:
        """The engine answers again: tell it what it does not know."""
        now = self.time()
        self._untold = dict.fromkeys(self.local.keys())
        self._untold_until = now + self.local.longest
        self._put_some(iter(self.local.owing()), self._debit)

    def _put_some(
        self, keys: Iterator[Hashable], job_for: Callable[[Hashable], Charge | Debit]
    ) -> None:
        """Do something for some keys, and for the others when that is done."""
        jobs = [job_for(key) for key in islice(keys, _TOLD)]
        for job in jobs:
            if job is jobs[-1] and len(jobs) == _TOLD:
                job.then = lambda: self._put_some(keys, job_for)
            self.sharing.put(job.key, job)

    def _debit(self, key: Hashable) -> Debit:
        self._untold.pop(key, None)
        return Debit(self, key, tuple(rate.limit for rate in self.mirror.rates))

    def _move(self, key: Hashable) -> Charge:
        """Charge nothing, which takes what is charged over to the new periods."""
        return Charge(self, key, 0, tuple(rate.limit for rate in self.mirror.rates), Stamp(0))

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
        """Have the engine asked for what those want who wait for the key, once.

        hopeful: whether there was room as far as was known.
        """
        ticket = self._tickets.get(key)
        if ticket is not None:
            if ticket.is_asking:
                return
            self._release(key, ticket)
        if self._untold:
            if self.time() > self._untold_until:
                self._untold.clear()
            elif key in self._untold:
                self.sharing.put(key, self._debit(key))
        ticket = Ticket(limits)
        ticket.is_hopeful = hopeful
        job = Take(self, key, ticket)
        self._tickets[key] = ticket
        (sender or self.sharing.sender(key)).put(job)

    def shape(self, key: Hashable, limits: Limits, *, bends: bool = False) -> Shape:
        """Of a call for that key; where it bends, under what is left of the limits by now."""
        if bends:
            limits = self.bounded(limits)
            if self._ramps is not None:
                limits = self._ramps.in_force(key, limits, self.time())
        old, until = self._former
        if old and self.time() >= until:
            self._former = (), -inf
            self._shapes.clear()
        shape = self._shapes.get(limits)
        if shape is None:
            shape = self._shape_of(limits)
        return shape

    def _shape_of(self, limits: Limits) -> Shape:
        mirror, names = self.mirror, self.sharing.names
        rates, parts = mirror.rates, mirror.sub_windows
        old, _ = self._former
        seeds = _seeds(old, names.windows(old, parts), rates) if old else ()
        if len(self._shapes) >= _SHAPES:
            self._shapes.clear()
        ends = names.windows(rates, parts)
        shape = self._shapes[limits] = Shape(ends, rates, limits, parts, mirror.burst, seeds)
        return shape

    @property
    def is_paced(self) -> bool:
        """Whether a warm-up lets in one at a time."""
        return self._ramps is not None and not self._ramps.is_warm

    def covers(self, key: Hashable, cost: float, limits: Limits) -> bool:
        """Whether the cost was granted and is not spent."""
        ticket = self._tickets.get(key)
        return ticket is not None and ticket.covers(cost, limits)

    def bounded(self, limits: Limits) -> Limits:
        """The part of the limits that may be asked for, while other processes come back."""
        part = self.sharing.part()
        return limits if part >= 1 else tuple(one and max(1, one * part // 1) for one in limits)

    def engine_now(self) -> float | None:
        """The time to tell the engine; None where its own is meant."""
        return self.time() if self._tells_time else None

    def engine_time(self, at: float) -> float:
        """What the engine calls a moment of this process, microseconds, as far as is known."""
        return (at + self._offset) * 1e6

    def fastest(self) -> float:
        """The highest pace there has been, cost a second."""
        return self.mirror.fastest

    def wanted(self, key: Hashable, ticket: Ticket) -> tuple[list[Run], Limits] | None:
        """What to ask for now; None, and nothing is asked, if nobody wants it any more."""
        found = self.line.wanted(key)
        if found is None:
            self._close(key, ticket)
            return None
        runs, limits = found
        ticket.limits = limits
        batch = self.sharing.batch(limits)
        if batch > 1:
            runs.append((1, batch))
        return runs, limits

    def read(self, raw: bytes, key: Hashable, limits: Limits, shape: Shape) -> Answer:
        """Read an answer, and note what it tells of the key."""
        heard = self.time()
        answer = shape.answer(raw, heard)
        self._offset = answer.at / 1e6 - heard
        learn(self.mirror, key, limits, answer)
        return answer

    def granted(self, key: Hashable, ticket: Ticket, runs: list[Run], answer: Answer) -> None:
        """The engine has let in the first so many; the others wait."""
        now, left = answer.heard, int(answer.granted)
        cost: float = 0
        for one, count in runs:
            cost += one * min(count, left)
            left -= min(count, left)
        wanted = sum(count for _, count in runs)
        ticket.is_asking = False
        ticket.credit = cost
        ticket.stamp = Stamp(now)
        ticket.stamp.engine = answer.at
        if cost:
            self.local.note(key, cost, ticket.limits, now)
        if answer.granted:
            self.contention = 0
        elif ticket.is_hopeful:
            self.contention = min(self.contention + 1, _CROWDED)
        self._refused = key if answer.granted < wanted else None
        try:
            self.line.answered(key)
        finally:
            self._refused = None

    def not_granted(self, key: Hashable, ticket: Ticket, asked: int) -> None:
        """The engine did not answer. What it may have done counts as done, and is not repeated."""
        self._close(key, ticket)
        if self.sharing.policy in ("local", "open"):
            self._locally.add(key)
            try:
                self.line.answered(key)
            finally:
                self._locally.discard(key)
        else:
            self.line.fail(key, asked)

    # --- credit ----------------------------------------------------------------------------

    def _spend(
        self, key: Hashable, ticket: Ticket, cost: float, limits: Limits, now: float
    ) -> None:
        stamp = ticket.stamp
        if stamp is None or ticket.is_lease:  # it was granted before it is used
            stamp = Stamp(now)
            stamp.engine = ticket.stamp and ticket.stamp.engine
        self.charged_at = stamp
        ticket.credit -= cost
        ticket.is_used = True
        if self._ramps is not None:
            self._ramps.spend(key, cost, limits, now)
        if ticket.credit <= _ROUNDING * cost:
            self._close(key, ticket)

    def served(self, key: Hashable) -> None:
        """All have gone who could: keep what is left of an answer if it may be kept."""
        ticket = self._tickets.get(key)
        if ticket is None or ticket.is_asking or ticket.timer is not None:
            return
        life = self.sharing.lease_life(ticket.limits, self.mirror.rates)
        if ticket.credit and life:
            ticket.is_lease = True
            ticket.keep(self._clock, self.time() + life, lambda: self._expire(key, ticket))
        elif ticket.credit and self.line.keeps(key):
            ticket.keep(self._clock, self.time() + _KEPT, lambda: self._expire(key, ticket))
        else:
            self._release(key, ticket)

    def _expire(self, key: Hashable, ticket: Ticket) -> None:
        """A lease has come to its end, or is not used any more."""
        if self._tickets.get(key) is not ticket:
            return
        if ticket.is_used and self.time() < ticket.expires:
            ticket.keep(self._clock, ticket.expires, lambda: self._expire(key, ticket))
        else:
            self._release(key, ticket)

    def _release(self, key: Hashable, ticket: Ticket) -> None:
        """Give back what was not spent."""
        credit, stamp = ticket.credit, ticket.stamp
        self._close(key, ticket)
        if credit > 0 and stamp is not None:
            mask = ticket.limits
            layout = self.mirror.layout if None in mask else None
            self.give_back(key, credit, mask, layout, self.time(), stamp)

    def release(self, key: Hashable) -> None:
        """Give back what was kept for a caller who does not go yet."""
        ticket = self._tickets.get(key)
        if ticket is not None and ticket.credit and not ticket.is_lease:
            self._release(key, ticket)

    def release_all(self) -> None:
        """Give back all that was not spent: the process goes."""
        for key, ticket in list(self._tickets.items()):
            if not ticket.is_asking:
                self._release(key, ticket)

    def _close(self, key: Hashable, ticket: Ticket) -> None:
        ticket.sleep()
        if self._tickets.get(key) is ticket:
            del self._tickets[key]

    def _wait(
        self, key: Hashable, cost: float, limits: Limits, now: float, ahead: float = 0
    ) -> float:
        """Seconds until the cost passes, as far as is known."""
        wait = 0.0
        if ahead or self._ramps is not None or key in self.mirror:
            bounded = self.bounded(limits)
            wait = self._known.take(key, 0, cost, bounded, now, ahead=ahead)[1]
        if self.sharing.policy == "local" and self.is_local(key):
            share = self._share(limits)
            wait = max(wait, self.local.wait(key, cost, share, now))
            burst = self.local.counts.burst
            if any(one is not None and cost > one for one in (*share, burst)):
                wait = max(wait, self.sharing.retry_after(key))  # too much for a part of it
        return wait


def _less(look: Look, own: Look) -> Look:
    """Of two views of one rate what both let pass."""
    return Look(
        min(look.remaining, own.remaining),
        max(look.retry_after, own.retry_after),
        max(look.reset_after, own.reset_after),
        own.more_after if own.remaining < look.remaining else look.more_after,
        look.binding if look.retry_after >= own.retry_after else own.binding,
    )


def _seeds(
    old: tuple[Rate, ...], ends: tuple[bytes, ...], new: tuple[Rate, ...]
) -> tuple[bytes, ...]:
    """Which former window each rate takes over: that of its period, or the longest."""
    by_period = {rate.per: end for rate, end in zip(old, ends, strict=True)}
    longest = by_period[max(by_period)]
    return tuple(by_period.get(rate.per, longest) for rate in new)
