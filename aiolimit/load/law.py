"""The law of load control: what one event loop can do, worked out from what was measured.

Pure: a frozen sample in, a frozen state out (`advance`), so that a recorded trace of samples
replays every decision. All times are seconds.

1. **Cost.** CPU time of the loop's thread = a * requests + b * refusals, by least squares that
   forget in 4 s of work (of work, not of time: a quiet minute teaches nothing). Blocking that is
   not CPU counts as if it were: the loop can do nothing else meanwhile.
2. **Rate.** What is left of the thread's share of a core after the refusals, by the cost of a
   request: (share * 0.97 - b * offered) / (a - b).
3. **Cap.** By Little's law, so many may be in flight as the rate fills in the shortest time a
   request takes, and a queue: rate * (shortest + queue). The queue is shorter while refusing, and
   the shortest time is frozen then, as it drifts upward under lasting overload.
4. **Stretch.** Where requests wait for something else, the shortest time is far below the usual
   one, and the cap would refuse while the CPU is idle. So the cap, and the pace of those who only
   acquire, grow while somebody is refused and the CPU has been idle for a while.
5. **Pressure** from elsewhere (memory, collection of garbage, sensors of the user's own) caps rate
   and cap by a fixed map, never integrated. The highest pressure binds; nothing is multiplied.
6. **Blind.** Without a measure of the CPU the state is held for 5 s and then opened, 5 % a second.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, exp, inf, isfinite
from typing import Final

__all__ = ["Change", "LoadState", "Sample", "Targets", "advance", "factor"]

_FORGET: Final = 4.0  # seconds of work
_ALIKE: Final = 0.5
_AT_MOST: Final = 16  # steps
_FROZEN: Final = 2.0  # seconds: a step that long is no usual one
_PRIOR: Final = 50e-6  # seconds: what a refusal costs, until more is known
_MOST_REFUSAL: Final = 500e-6
_PRIOR_WEIGHT: Final = 300.0**2  # as one step with so many refusals
_FLOOR: Final = 0.05  # of a core: the least that is done, whatever is measured
_LEAST_CAP: Final = 4
_FIRST_RATE: Final = 100.0
_FIRST_CAP: Final = 20  # while nothing is known, which is for the first 20 requests
_ENOUGH_REQUESTS: Final = 20.0  # or
_ENOUGH_WORK: Final = 0.5  # seconds: then the cost of a request is known
_BUCKET: Final = 10.0  # the shortest time is that of two such buckets
_REFUSING: Final = 0.2  # share of a step that was refused from which the queue is shorter
_BUSY: Final = 0.7  # of the thread's share, below which it does not
_REFUSING_FOR: Final = 1.0  # and for so long after
_SHORTER: Final = 0.5  # of the queue
_SATURATED: Final = 0.92  # of the thread's share
_CALM: Final = 1.0  # seconds without a busy moment, after which a full cap is too low
_STRETCH: Final = 1.25
_FIRST_STRETCH: Final = 2.0  # while the cost is not known
_MOST_STRETCH: Final = 64.0
_SHARE_OVER: Final = 1.0  # seconds of running and waiting over which the share is averaged
_HOLD: Final = 5.0
_OPEN: Final = 0.05  # a second
_TELL: Final = 0.25  # a change of the cost by that much is told


@dataclass(frozen=True, slots=True)
class Targets:
    """What the process is held to.

    cpu: of the part of a core that the loop's thread can get, 0 to 1.
    queue: how long an admitted request may queue for the CPU, seconds.
    iteration: how old the loop's current iteration may be when a call asks, seconds.
    """

    cpu: float = 0.97
    queue: float = 0.1
    iteration: float = 0.1


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen in one step of so many `seconds`, which ended `at` that time.

    cpu: CPU time of the loop's thread, seconds; None if it cannot be read.
    blocked: time in which an iteration of the loop neither ran nor waited for a core, seconds.
    waited: time in which the thread was ready to run and waited for a core, seconds.
    quota: what others leave of the cores that the process may use; infinite if unknown.
    admitted, completed, refused: calls; capped: refused because of the cap, or waiting for it.
    shortest: the shortest that one of the completed was held, seconds; infinite without one.
    longest: the longest iteration of the loop that was seen, seconds.
    oldest: how long the oldest that is in flight has been held, seconds.
    pressures: by name, 1.0 at its target.
    """

    at: float
    seconds: float
    cpu: float | None
    blocked: float = 0.0
    waited: float = 0.0
    quota: float = inf
    admitted: float = 0
    completed: float = 0
    refused: float = 0
    capped: float = 0
    shortest: float = inf
    longest: float = 0.0
    oldest: float = 0.0
    pressures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """A change worth telling: what changed at that time, from what to what."""

    at: float
    what: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class _Fit:
    """The sums of the least squares: requests, refusals and time, weighted."""

    rr: float = 0.0
    rf: float = 0.0
    ff: float = 0.0
    rt: float = 0.0
    ft: float = 0.0
    requests: float = 0.0
    work: float = 0.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """Steps that are not in the sums yet."""

    steps: int = 0
    work: float = 0.0
    admitted: float = 0
    completed: float = 0
    refused: float = 0


@dataclass(frozen=True, slots=True)
class LoadState:
    """What the controller holds to be true, and what follows.

    at: when it was worked out, by the controller's clock.
    cost: seconds of the loop that a request takes; None until enough was seen.
    refusal_cost: the same for a refusal.
    share: of a core that the loop's thread can get.
    rate: requests a second that this process can do; infinite until the cost is known.
    cap: how many may be in flight; 20 until the cost is known.
    shortest: the shortest time that a request takes, seconds; infinite until one is known.
    queue: how long an admitted request may queue now, seconds.
    busy: of the share, what was used in the last step.
    refusing: whether more than a fifth of the last second's calls were refused, and it was busy.
    stretch: by what the cap, and the pace of those who only acquire, are raised because the CPU is
        idle all the same.
    factor, binding: what pressure leaves of rate and cap, 1 without any, and its name or "cpu".
    pressures: by name, 1.0 at its target.
    blind: seconds without a measure of the CPU.
    change: the last change worth telling.
    """

    at: float = -inf
    cost: float | None = None
    refusal_cost: float = _PRIOR
    share: float = 1.0
    rate: float = inf
    cap: float = _FIRST_CAP
    shortest: float = inf
    queue: float = 0.1
    busy: float = 0.0
    refusing: bool = False
    stretch: float = 1.0
    factor: float = 1.0
    binding: str = "cpu"
    pressures: Mapping[str, float] = field(default_factory=dict)
    blind: float = 0.0
    change: Change | None = None
    _seen: _Seen = field(default=_Seen(), repr=False)
    _fit: _Fit = field(default=_Fit(), repr=False)
    _buckets: tuple[float, float] = field(default=(inf, inf), repr=False)
    _bucket_since: float = field(default=-inf, repr=False)
    _saturated_at: float = field(default=-inf, repr=False)
    _ran_waited: tuple[float, float] = field(default=(0.0, 0.0), repr=False)
    _refused_at: float = field(default=-inf, repr=False)
    _told: float | None = field(default=None, repr=False)


def factor(pressure: float) -> float:
    """What a pressure leaves: all of it up to 1.0, a fifth from 1.1875 on, linear between.

    For memory with its target at .80 that is a fifth at .95.
    """
    return min(1.0, max(0.2, 1.0 - 0.8 * (pressure - 1.0) / 0.1875))


def advance(state: LoadState, sample: Sample, targets: Targets) -> LoadState:
    """The state after one more step."""
    if sample.seconds <= 0:
        return state
    state = _share(state, sample)
    work = None if sample.cpu is None else sample.cpu + sample.blocked
    if work is not None:
        state = replace(state, blind=0.0, busy=work / sample.seconds / state.share)
    state = _refusing(state, sample, targets)
    state = _shortest(state, sample)
    state = _pressure(state, sample)
    if work is None:
        return replace(_blind(state, sample), at=sample.at)
    state = _cost(state, sample, work)
    state = _stretch(state, sample, targets)
    return replace(_limits(state, sample, targets), at=sample.at)


def _refusing(state: LoadState, sample: Sample, targets: Targets) -> LoadState:
    refused_at = state._refused_at
    # Only a busy process is overloaded; an idle one refuses by mistake, and is to refuse less.
    if state.busy > _BUSY and sample.refused > _REFUSING * (sample.refused + sample.admitted):
        refused_at = sample.at
    refusing = sample.at - refused_at <= _REFUSING_FOR
    queue = targets.queue * (_SHORTER if refusing else 1.0)
    return replace(state, _refused_at=refused_at, refusing=refusing, queue=queue)


def _shortest(state: LoadState, sample: Sample) -> LoadState:
    older, newer = state._buckets
    since = state._bucket_since
    if since == -inf:
        since = sample.at
    if state.refusing:
        since += sample.seconds  # no bucket grows old now
    elif sample.at - since >= _BUCKET and newer < inf:
        older, newer, since = newer, inf, sample.at
    newer = min(newer, sample.shortest)
    return replace(state, _buckets=(older, newer), _bucket_since=since, shortest=min(older, newer))


def _share(state: LoadState, sample: Sample) -> LoadState:
    if sample.cpu is None:
        return state
    ran, waited = state._ran_waited
    kept = exp(-(sample.cpu + sample.waited) / _SHARE_OVER)
    ran, waited = ran * kept + sample.cpu, waited * kept + sample.waited
    share = ran / (ran + waited) if ran + waited > 0 else 1.0
    share = max(_FLOOR, min(1.0, share, sample.quota))
    return replace(state, share=share, _ran_waited=(ran, waited))


def _pressure(state: LoadState, sample: Sample) -> LoadState:
    name, highest = max(sample.pressures.items(), key=lambda item: item[1], default=("cpu", 0.0))
    left = factor(highest)
    return replace(
        state,
        pressures=dict(sample.pressures),
        factor=left,
        binding=name if left < 1 else "cpu",
    )


def _blind(state: LoadState, sample: Sample) -> LoadState:
    blind = state.blind + sample.seconds
    opened = max(0.0, blind - _HOLD) - max(0.0, state.blind - _HOLD)
    more = (1 + _OPEN) ** min(opened, _HOLD * 100)
    return replace(state, blind=blind, rate=state.rate * more, cap=state.cap * more)


def _cost(state: LoadState, sample: Sample, work: float) -> LoadState:
    if not (isfinite(work) and work >= 0) or sample.seconds > _FROZEN:
        return state  # a module was imported, or the whole process stood still
    # Where many have begun and few have ended, or the other way round, the work of a step belongs
    # to requests of another one. So steps are put together until both are alike.
    seen = _Seen(
        steps=state._seen.steps + 1,
        work=state._seen.work + work,
        admitted=state._seen.admitted + sample.admitted,
        completed=state._seen.completed + sample.completed,
        refused=state._seen.refused + sample.refused,
    )
    fewer, more = sorted((seen.admitted, seen.completed))
    if fewer < _ALIKE * more and seen.steps < _AT_MOST:
        return replace(state, _seen=seen)
    requests, weight = (fewer + more) / 2, 1 / seen.steps
    old = state._fit
    kept = exp(-seen.work / _FORGET)
    fit = _Fit(
        rr=old.rr * kept + weight * requests * requests,
        rf=old.rf * kept + weight * requests * seen.refused,
        ff=old.ff * kept + weight * seen.refused * seen.refused,
        rt=old.rt * kept + weight * requests * seen.work,
        ft=old.ft * kept + weight * seen.refused * seen.work,
        requests=old.requests * kept + requests,
        work=old.work * kept + (seen.work if requests else 0.0),
    )
    state = replace(state, _seen=_Seen())
    state = replace(state, _fit=fit)
    if fit.requests < _ENOUGH_REQUESTS and (fit.work < _ENOUGH_WORK or not fit.requests):
        return state
    ff, ft = fit.ff + _PRIOR_WEIGHT, fit.ft + _PRIOR_WEIGHT * _PRIOR
    determinant = fit.rr * ff - fit.rf * fit.rf
    refusal = _PRIOR
    if determinant > 1e-9 * fit.rr * ff:
        refusal = (fit.rr * ft - fit.rf * fit.rt) / determinant
    refusal = min(_MOST_REFUSAL, max(0.0, refusal))
    cost = max(1e-6, (fit.rt - refusal * fit.rf) / fit.rr)
    change, told = state.change, state._told
    if told is None or abs(cost - told) > _TELL * told:
        if told is not None:
            change = Change(sample.at, "cost", told, cost)
        told = cost
    return replace(state, cost=cost, refusal_cost=refusal, change=change, _told=told)


def _stretch(state: LoadState, sample: Sample, targets: Targets) -> LoadState:
    # Where all wait for the same thing, and then all want the CPU, it is idle and saturated in
    # turns, and more of them make it worse. So it has to have been calm for as long as that takes.
    saturated = state.busy > _BUSY or sample.longest > targets.iteration / 2
    saturated_at = sample.at if saturated else state._saturated_at
    calm = _CALM + 2 * (state.shortest if state.shortest < inf else 0.0)
    stretch = state.stretch
    if state.factor < 1:
        stretch = max(1.0, stretch / _STRETCH)  # the CPU is not what there is too little of
    elif state.cost is None:
        if sample.capped and not saturated:
            stretch = min(_MOST_STRETCH, stretch * _FIRST_STRETCH)
    elif saturated:
        stretch = max(1.0, stretch / _STRETCH)
    elif sample.capped and sample.at - saturated_at > calm:
        stretch = min(_MOST_STRETCH, stretch * _STRETCH)
    return replace(state, stretch=stretch, _saturated_at=saturated_at)


def _limits(state: LoadState, sample: Sample, targets: Targets) -> LoadState:
    if state.cost is None:
        return replace(state, cap=max(1, ceil(_FIRST_CAP * state.stretch * state.factor)))
    offered = (sample.admitted + sample.refused) / sample.seconds
    refusal = min(state.refusal_cost, state.cost / 2)
    floor = _FLOOR / state.cost
    rate = (state.share * targets.cpu - refusal * offered) / (state.cost - refusal)
    if state._fit.work < _ENOUGH_WORK and state.busy > _SATURATED:
        # Of those who only acquire nobody knows yet how much of their work is still to come.
        rate = min(rate, _FIRST_RATE)
    rate = max(floor, rate)
    # Before the first has completed, all that is known is that it takes no less than so far.
    shortest = state.shortest if state.shortest < inf else sample.oldest
    cap = max(_LEAST_CAP, ceil(rate * (shortest + state.queue) * state.stretch))
    cap = max(1, ceil(cap * state.factor - 1e-9))
    return replace(state, rate=max(floor, rate * state.factor), cap=cap)
