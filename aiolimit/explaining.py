"""Why a call would pass now, or not: the facts of `Limiter.explain`, put together."""

from collections.abc import Hashable

from aiolimit.admission import Admission
from aiolimit.load.controller import LoadController
from aiolimit.report import Explanation

__all__ = ["explain"]


def explain(
    name: str, admission: Admission, load: LoadController | None, key: Hashable
) -> Explanation:
    """What stands in the way of a call of cost 1 for this key, now."""
    queues, standings, now = admission.queues, admission.standings, admission.time()
    limits = queues.limits
    rate, limit, look = standings.binding(key, 1, limits)
    home = admission.home(key, now)
    queue = queues.by_key.get(home)
    retry_after = look.retry_after
    if queue is not None:
        retry_after = queues.behind(queue, 1, limits, now)
    report = None if load is None else load.report(now)
    is_held = report is not None and report.obstacle is not None and not report.dry_run
    if report is not None and is_held:
        retry_after = max(retry_after, 1 / report.state.rate)
    ramps = admission.ramps
    return Explanation(
        limiter=name,
        key=key,
        rates=admission.store.rates,
        binding="load" if is_held else look.binding if queue is None else "queue",
        rate=rate,
        limit=rate.limit if limit is None else limit,
        remaining=look.remaining,
        waiting=0 if queue is None else len(queue),
        retry_after=retry_after if standings.fits(1, limits) else None,
        burst=admission.store.burst,
        warmth=None if ramps is None else ramps.warmth(home, now),
        load=report,
        shadow=admission.shadow,
        own_limits=admission.own_limits,
    )
