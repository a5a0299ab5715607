"""What the live page shows, as numbers: those of the metrics, and the sentence of `explain`."""

import os
import secrets
import time
from collections.abc import Mapping
from itertools import accumulate, islice
from math import isfinite
from typing import Any, Final

from aiolimit.limiter import Limiter
from aiolimit.tally import WAIT_BOUNDS, Waits
from aiolimit.watch.instrument import Value
from aiolimit.watch.of_load import LOAD
from aiolimit.watch.roster import INSTRUMENTS, Roster

__all__ = ["catalogue", "state"]

_OF_LOAD: Final = frozenset(one.name for one in LOAD)
_TOKEN: Final = secrets.token_hex(4)
_SAMPLED: Final = 64  # keys to choose one from that is worth a sentence


def catalogue() -> dict[str, Any]:
    """What the numbers are: for the page, once."""
    return {
        "waitBounds": WAIT_BOUNDS,
        "instruments": {
            one.name: {"kind": one.kind, "help": one.help, "labels": one.labels}
            for one in INSTRUMENTS
        },
    }


def state(roster: Roster, title: str, key: str | None, *, show_keys: bool) -> dict[str, Any]:
    """All numbers as they are now, by limiter and by load controller.

    key: whose sentence to tell; None for one that is worth it.
    show_keys: whether the choice may fall on a key that nobody asked about.
    """
    by_name: dict[str, list[Limiter]] = {}
    for limiter in roster.limiters():
        by_name.setdefault(limiter.name, []).append(limiter)
    found: dict[str, dict[str, Any]] = {"limiters": {}, "controllers": {}}
    for name, alike in by_name.items():
        limiter = alike[0]
        found["limiters"][name] = {
            "shadow": all(one.shadow for one in alike),
            "controller": None if limiter.load is None else limiter.load.name,
            "warmsUp": limiter._admission.ramps is not None,
            "ownLimits": limiter._admission.own_limits,
            "explanation": _explained(limiter, key, show_keys=show_keys),
            "metrics": {},
        }
        if limiter.load is not None:
            found["controllers"][limiter.load.name] = {"metrics": {}}
    for instrument, reading in roster.read():
        group = found["controllers" if instrument.name in _OF_LOAD else "limiters"]
        for (name, *labels), value in ((which, value) for which, value in reading.items() if which):
            if name in group:
                values = group[name]["metrics"].setdefault(instrument.name, {})
                values[",".join(labels)] = _plain(value)
    return {
        "title": title,
        "process": os.getpid(),
        "id": f"{_TOKEN}-{os.getpid()}",  # containers tend to have the same process id, all of them
        # Rates are worked out by the time of here: an answer may be late, and so may the page.
        "at": time.monotonic(),
        **found,
    }


def _worth_telling(limiter: Limiter) -> Any:
    """A key with a long queue, else one with little left, of those that come to hand."""
    queues = limiter._queues.by_key
    if queues:
        return max(islice(queues, _SAMPLED), key=lambda key: len(queues[key]))
    entries: Mapping[Any, Any] = limiter._store.entries
    some = list(islice(entries, _SAMPLED))
    admission = limiter._admission
    limits = admission.queues.limits
    return min(some, key=lambda key: admission.standings.tell(key, 1, limits).remaining, default="")


def _explained(limiter: Limiter, key: str | None, *, show_keys: bool) -> str:
    try:
        if key is not None:
            strange = (
                f" Nothing is held for {key!r}: it has used nothing lately, or is another key."
            )
            return f"{limiter.explain(key)}{'' if _is_held(limiter, key) else strange}"
        if show_keys:
            return str(limiter.explain(_worth_telling(limiter)))
        explanation = limiter.explain()
        if _is_held(limiter, "") or not len(limiter):
            return str(explanation)
        # What it says of the key "" would be true, and of no use to anybody.
        keys, waiting = len(limiter), limiter._queues.waiting
        text = f"{explanation.configured()}; {keys} keys are held, and {waiting} callers wait"
        return f"{text}. {explanation.load}." if explanation.load else f"{text}."
    except Exception as error:  # noqa: BLE001 (the numbers are shown all the same)
        return f"{limiter.name} cannot be explained: {error!r}"


def _is_held(limiter: Limiter, key: str) -> bool:
    """Whether anything is known of the key; one that shares the overflow may be."""
    store, restrictions = limiter._store, limiter._admission.restrictions
    if store.max_keys is not None and len(store) >= store.max_keys:
        return True
    if restrictions is not None and key in restrictions.by_key:
        return True
    return key in store or key in limiter._queues.by_key


def _plain(value: Value) -> Any:
    if isinstance(value, Waits):
        return {"buckets": list(accumulate(value.buckets)), "seconds": value.seconds}
    return value if isfinite(value) else None
