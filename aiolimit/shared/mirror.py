"""What this process knows of the keys in the engine: their windows, as they were told last."""

from collections.abc import Hashable, Sequence
from math import inf

from aiolimit.counts import Limits
from aiolimit.memory import NEAR, Account, MemoryStore
from aiolimit.rate import Rate
from aiolimit.shared.script import Answer, HeardWindow, Run
from aiolimit.window import Window

__all__ = ["heard_at", "learn", "near", "windows_of"]


def learn(store: MemoryStore, key: Hashable, limits: Limits, answer: Answer) -> None:
    """Take over what the engine told of the windows that those limits apply to."""
    if not answer.windows:
        return  # it was asked about none
    first = answer.windows[0]
    if not first.total:
        if not any(window.total for window in answer.windows) and None not in limits:
            store.forget(key)  # there is nothing to know
            return
    entry = store.entries.get(key) or store._find(key)
    if entry is None:
        if store.max_keys is not None and len(store) >= store.max_keys:
            oldest = next(iter(store.entries), None)
            if oldest is not None:
                del store.entries[oldest]  # what is not known of a key is asked again
        store.on_new_key()
    if len(limits) == 1 and store.burst is None:
        store.entries[key] = first
        return
    told = iter(answer.windows)
    known = entry.windows if isinstance(entry, Account) else (None,) * len(limits)
    windows = tuple(
        next(told) if limit is not None else old or Window()
        for limit, old in zip(limits, known, strict=True)
    )
    store.entries[key] = Account(windows, answer.pacer)


def lost_since(
    known: Window | Account, rates: Sequence[Rate], limits: Limits, answer: Answer
) -> float:
    """When the engine had told of what it does not know any more; -1 if it has lost nothing."""
    told, since = iter(answer.windows), -1.0
    old = known.windows if isinstance(known, Account) else ()
    for rate, limit, window in zip(rates, limits, old, strict=False):
        if limit is None:
            continue
        now = next(told)
        if isinstance(window, HeardWindow) and window.total and now.born > window.told_at >= 0:
            if answer.heard - window.last < rate.per:
                since = max(since, window.told_at)
    return since


def near(callers: Sequence[Run], granted: int, limits: Limits, answer: Answer) -> int:
    """How many of those who were granted left the key near a limit, the last of them first.

    What was granted beyond them is a lease, and each of it costs 1.
    """
    told = iter(answer.windows)
    over, count = 0.0, 0
    for limit in limits:
        if limit is not None:
            over = max(over, next(told).total - NEAR * limit)
    if not over:
        return 0
    costs = [cost for cost, number in callers for _ in range(number)][:granted]
    over -= granted - len(costs)
    while costs and over > 0:
        over -= costs.pop()
        count += 1
    return count


def heard_at(store: MemoryStore, key: Hashable) -> float:
    """When the engine told of the key, by `time.monotonic`; for ever ago if it never did."""
    return max((window.heard for window in windows_of(store, key)), default=-inf)


def windows_of(store: MemoryStore, key: Hashable) -> list[HeardWindow]:
    """The windows of a key that the engine told of."""
    entry = store.entries.get(key)
    windows = (entry,) if isinstance(entry, Window) else () if entry is None else entry.windows
    return [window for window in windows if isinstance(window, HeardWindow)]
