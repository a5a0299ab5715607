"""What a limiter tells of itself: the counts, and why the limit is what it is."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from math import floor, inf, log10
from typing import Literal

from aiolimit.errors import Reason, shown
from aiolimit.load.gate import Obstacle
from aiolimit.load.law import LoadState
from aiolimit.rate import Rate

__all__ = ["Explanation", "LoadReport", "Statistics"]


@dataclass(frozen=True, slots=True)
class Statistics:
    """The counts of a limiter since it was made, and what it holds now.

    admitted: calls that passed.
    completed: calls that have left their `async with`.
    in_flight: calls inside their `async with` now.
    warmth: how warm the limiter is, 0 to 1; None without a warm-up, or if each key has its own.
    rejected: calls that were refused, by `RateLimited.reason`.
    cancelled: callers that gave up while they waited.
    waiting: callers that wait now.
    keys: keys that are held now.
    evicted: keys that were forgotten because they were idle.
    near_limit: admissions after which a key had used more than 80 % of a limit.
    cost_admitted: the cost of all calls that passed, with what `Permit.adjust` charged on top.
    cost_returned: what was given back of it with `adjust` or `cancel`.
    shadow_rejected: calls that passed because the limiter is in shadow, by why it would have
        refused them; `waiting` are then those that would wait.
    """

    admitted: int
    completed: int
    in_flight: int
    rejected: Mapping[Reason, int]
    cancelled: int
    waiting: int
    keys: int
    evicted: int
    warmth: float | None = None
    near_limit: int = 0
    cost_admitted: float = 0
    cost_returned: float = 0
    shadow_rejected: Mapping[Reason, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What the load controller holds of this process now.

    state: what it has measured and concluded.
    in_flight: calls inside `async with`, of all its limiters.
    obstacle: why a call would be refused or held up: "in_flight", "iteration" or None.
    running: whether it was entered on this event loop.
    dry_run: whether it refuses nobody.
    age: seconds since the last change worth telling, `state.change`; infinite without one.
    """

    state: LoadState
    in_flight: int
    obstacle: Obstacle | None
    running: bool
    dry_run: bool
    age: float

    def __str__(self) -> str:
        state = self.state
        if not self.running:
            return "The load controller is not running, so a call raises an error"
        if state.cost is None:
            text = "What this process can do is not known yet"
        else:
            cost = f"{_milliseconds(state.cost)} ms CPU a request"
            text = (
                f"This process can do about {_per_second(state.rate)} "
                f"({cost}, core shared {_percent(state.share)})"
            )
        text += f"; {self.in_flight}{'' if state.cap == inf else f' of {state.cap:g}'} in flight"
        if state.factor < 1:
            pressure = state.pressures[state.binding]
            leaves = f"leaves {_percent(state.factor)}"
            text += f" ({state.binding} at {pressure:.2f} of its target {leaves})"
        if self.obstacle is not None:
            text += ", the event loop is behind" if self.obstacle == "iteration" else ""
            text += f", so new requests {'would be' if self.dry_run else 'are'} refused"
        if state.blind:
            text += f". The CPU could not be measured for {state.blind:.1f} s"
        if state.change is not None:
            verb = "rose" if state.change.after > state.change.before else "fell"
            before, after = _milliseconds(state.change.before), _milliseconds(state.change.after)
            text += f". Last change {self.age:.1f} s ago: cost {verb} from {before} to {after} ms"
        return text


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a call for this key would pass or not, now. `str()` of it is a sentence for a person.

    binding: what decides: "quota" (the window is full), "pace" (the burst is spent), "warm_up"
        (the whole limit would let it pass), "hold" (`Limiter.hold` or `restrict`: a server has
        asked to wait), "queue" (others wait for this key), "load" (the process is overloaded) or
        "nothing" (a call would pass).
    limit: what the limit of `rate` is now, as cost in `rate.per` seconds.
    waiting: callers that wait for this key.
    retry_after: seconds until a call of cost 1 would pass, behind those who wait; None if it
        never would, as with a limit of 0. Of what the load controller refuses it is an estimate.
    warmth: how warm it is, 0 to 1; None without a warm-up.
    load: what the load controller says; None without one.
    shadow: whether the limiter only counts: every call passes, whatever would become of it.
    own_limits: whether calls have come with a `limit=` of their own, which this knows nothing of.
    """

    limiter: str
    key: Hashable
    rates: tuple[Rate, ...]
    binding: Literal["nothing", "quota", "pace", "warm_up", "hold", "queue", "load"]
    rate: Rate
    limit: float
    remaining: float
    waiting: int
    retry_after: float | None
    burst: float | None
    warmth: float | None = None
    load: LoadReport | None = None
    shadow: bool = False
    own_limits: bool = False

    def configured(self) -> str:
        """The part of the sentence that holds for any key: the rates, and how warm it is."""
        start = f"{self.limiter}: {' and '.join(str(rate) for rate in self.rates)} configured"
        if self.burst is not None:
            start += f", burst {self.burst:g}"
        if self.own_limits:
            start += ", where a call brings no limit of its own"
        if self.shadow:
            start += ", in shadow: it refuses nobody"
        if self.warmth is not None:
            warmth = _percent(floor(self.warmth * 100) / 100)
            cold = f"; {warmth} warm, so {self.limit:g} of {self.rate} now"
            start += "; warm" if self.warmth >= 1 else cold
        return start

    def __str__(self) -> str:
        start = self.configured()
        if self.retry_after is None:
            return f"{start}; no call {'would' if self.shadow else 'can'} pass."
        if self.load is None:
            return f"{start}; {self._why()}."
        why = "" if self.binding in ("nothing", "load") else f"; {self._why()}"
        if self.binding == "load" and self.waiting:
            why = f"; {_callers(self.waiting)} for {shown(self.key)}"
        return f"{start}{why}. {self.load}."

    def _why(self) -> str:
        key = shown(self.key)
        left = f"{_round(self.remaining)} of {self.limit:g} left of {self.rate} for {key}"
        after = self.retry_after or 0.0
        wait = f"{'would pass' if self.shadow else 'passes'} in "
        wait += f"{after:.0f} s" if after >= 1000 else f"{after:.3g} s"
        match self.binding:
            case "nothing" if self.burst is not None:
                why = f"{_round(self.remaining)} may pass now for {key}, so a call passes"
            case "nothing":
                why = f"{left}, so a call passes"
            case "quota":
                why = f"{left}, so a new call {wait}"
            case "pace":
                why = f"{key} is ahead of its even pace, so a new call {wait}"
            case "hold":
                why = f"{key} is held back from outside, so a new call {wait}"
            case "warm_up":
                why = f"{left} while it warms, so a new call {wait}"
            case _:
                why = f"{_callers(self.waiting)} for {key}, so a new call {wait}, behind them"
        return why


def _callers(waiting: int) -> str:
    return "1 caller waits" if waiting == 1 else f"{waiting} callers wait"


def _milliseconds(seconds: float) -> str:
    """A time for a person: three digits, never an exponent."""
    return f"{seconds * 1e3:.{max(0, 2 - floor(log10(max(seconds * 1e3, 1e-3))))}f}"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _per_second(rate: float) -> str:
    return f"{rate:.2g}/s" if rate < 10 else f"{rate:.0f}/s"


def _round(cost: float) -> str:
    """A cost for a person: whole, or to a tenth below, so that it is not more than there is."""
    tenths = floor(cost * 10)
    return str(tenths // 10 if tenths % 10 == 0 else tenths / 10)
