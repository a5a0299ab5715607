"""What there is to measure of a limiter."""

from typing import Final

from aiolimit.limiter import Limiter
from aiolimit.watch.instrument import Instrument, Values, one

__all__ = ["LIMITER"]


def _admitted(limiter: Limiter) -> int:
    return limiter._entered + limiter._passed


def _rejected(limiter: Limiter) -> Values:
    for reason, count in limiter._admission.tally.rejected().items():
        yield (reason,), count
    yield ("cancelled",), limiter._queues.cancelled


def _shadow_rejected(limiter: Limiter) -> Values:
    if limiter.shadow:
        for reason, count in limiter._admission.tally.shadow_rejected().items():
            yield (reason,), count


def _decisions(limiter: Limiter) -> Values:
    sources = limiter._admission.tally.sources
    if sources:
        for source, count in sources.items():
            yield (source,), count
    else:
        yield ("local",), _admitted(limiter) + sum(limiter._admission.tally.rejected().values())


def _restricted(limiter: Limiter) -> int:
    restrictions = limiter._admission.restrictions
    return 0 if restrictions is None else len(restrictions.by_key)


def _limits(limiter: Limiter, *, now: bool) -> Values:
    """The limit of each rate by its period; of two with one period the lower, which binds."""
    rates = limiter._store.rates
    limits = tuple(rate.limit for rate in rates)
    ramps = limiter._admission.ramps
    if now and ramps is not None and not ramps.warm_up.per_key:
        bent = ramps.in_force("", limits, limiter._time())
        limits = tuple(0.0 if limit is None else limit for limit in bent)
    found: dict[tuple[str, ...], float] = {}
    for rate, limit in zip(rates, limits, strict=True):
        found[(rate.period,)] = min(limit, found.get((rate.period,), limit))
    return found.items()


def _periods(limiter: Limiter) -> Values:
    return {(rate.period,): rate.per for rate in limiter._store.rates}.items()


def _warm_up(limiter: Limiter) -> Values:
    ramps = limiter._admission.ramps
    if ramps is None:
        yield (), 1.0
    elif not ramps.warm_up.per_key:
        yield (), ramps.warmth("", limiter._time())


#: What is told of each limiter.
LIMITER: Final[tuple[Instrument[Limiter], ...]] = (
    Instrument(
        "aiolimit_rejected",
        "counter",
        "Calls that were refused, by reason. quota, cost_too_high: over a limit. timeout: the wait "
        "would have been longer than max_wait; queue_full: max_waiters wait; raise those or the "
        "limit. overload: the process is busy; add processes. cancelled: the caller gave up.",
        "{call}",
        ("reason",),
        _rejected,
    ),
    Instrument(
        "aiolimit_admitted",
        "counter",
        "Calls that passed. Together with those rejected, all that were made.",
        "{call}",
        (),
        one(_admitted),
    ),
    Instrument(
        "aiolimit_shadow_rejected",
        "counter",
        "Calls that passed only because the limiter is in shadow, by why it would have refused "
        "them. Where this is what you want to refuse, take shadow=True away.",
        "{call}",
        ("reason",),
        _shadow_rejected,
    ),
    Instrument(
        "aiolimit_near_limit",
        "counter",
        "Admissions after which a key had used more than 80 % of a limit. Rises before anyone is "
        "refused; tell those callers, or raise the limit.",
        "{call}",
        (),
        one(lambda limiter: limiter._near + limiter._store.near),
    ),
    Instrument(
        "aiolimit_cost_admitted",
        "counter",
        "The cost of all calls that passed, with what was charged afterwards. Held against the "
        "limit it tells how much of it is used.",
        "{cost}",
        (),
        one(lambda limiter: _admitted(limiter) + limiter._admission.tally.cost_beyond),
    ),
    Instrument(
        "aiolimit_cost_returned",
        "counter",
        "Cost that callers gave back, as they used less or cancelled. Where it is much of what "
        "is admitted, ask for less in the first place.",
        "{cost}",
        (),
        one(lambda limiter: limiter._admission.tally.cost_returned),
    ),
    Instrument(
        "aiolimit_wait_seconds",
        "histogram",
        "How long the calls waited that passed; most have not waited at all. Where it nears "
        "max_wait, calls are about to be refused.",
        "s",
        (),
        one(lambda limiter: limiter._admission.tally.waits(_admitted(limiter))),
    ),
    Instrument(
        "aiolimit_waiting",
        "gauge",
        "Callers that wait for their turn now. If it only grows, more comes than the limit lets "
        "pass; set max_wait or max_waiters, or raise the limit.",
        "{call}",
        (),
        one(lambda limiter: limiter._queues.waiting),
    ),
    Instrument(
        "aiolimit_in_flight",
        "gauge",
        "Calls inside their `async with` now. If it grows while admissions do not, what is done "
        "inside has become slow.",
        "{call}",
        (),
        one(lambda limiter: limiter._entered - limiter._completed),
    ),
    Instrument(
        "aiolimit_limit",
        "gauge",
        "The limit of each rate that is in force now, as cost in its period. Below the configured "
        "one while the limiter warms up.",
        "{cost}",
        ("per",),
        lambda limiter: _limits(limiter, now=True),
    ),
    Instrument(
        "aiolimit_limit_configured",
        "gauge",
        "The limit of each rate as it is configured, for each key, as cost in its period. "
        "Limiter.update changes it.",
        "{cost}",
        ("per",),
        lambda limiter: _limits(limiter, now=False),
    ),
    Instrument(
        "aiolimit_limit_period_seconds",
        "gauge",
        "The period of each rate. A limit divided by it is a limit per second.",
        "s",
        ("per",),
        _periods,
        "max",
    ),
    Instrument(
        "aiolimit_warm_up_ratio",
        "gauge",
        "How warm the limiter is, from 0, just started, to 1, where the whole limit is in force. "
        "Where it does not rise there is no traffic. Without a warm-up it is 1.",
        "1",
        (),
        _warm_up,
        "min",
    ),
    Instrument(
        "aiolimit_decisions",
        "counter",
        "Calls that were decided, by where. store: in the store that processes share. local: in "
        "this process; with a store, because it did not answer, and then by this "
        "process's share of the limit. open, closed: what is chosen for that case.",
        "{call}",
        ("source",),
        _decisions,
    ),
    Instrument(
        "aiolimit_store_up",
        "gauge",
        "1 while the store that processes share answers, and where there is none; 0 while it is "
        "not asked because it did not. Look at the engine, and at the network between.",
        "1",
        (),
        one(lambda limiter: float(limiter._admission.is_store_up())),
        "min",
    ),
    Instrument(
        "aiolimit_keys",
        "gauge",
        "Keys that are held in memory now, some 300 bytes each. Bound them with max_keys.",
        "{key}",
        (),
        one(len),
    ),
    Instrument(
        "aiolimit_keys_restricted",
        "gauge",
        "Keys that are held back from outside now: a server has asked to wait, or has told of "
        "less than the limit. They wait it out; if it stays, configure less than it allows.",
        "{key}",
        (),
        one(_restricted),
    ),
    Instrument(
        "aiolimit_keys_evicted",
        "counter",
        "Keys that were forgotten because they were idle. Many a second come once and never "
        "again: check that the key is what you want to limit by.",
        "{key}",
        (),
        one(lambda limiter: limiter._store.evicted),
    ),
)
