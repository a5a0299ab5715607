"""What the engine is told of its own accord: after it was silent, and when periods change."""

from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from math import inf
from typing import Final, Protocol

from aiolimit.memory import MemoryStore
from aiolimit.shared.jobs import Debit, Move, Quota
from aiolimit.shared.sharing import Sharing

__all__ = ["Telling"]

_AT_ONCE: Final = 64  # keys; then it is the turn of others
_AT_MOST: Final = 1000  # keys that are told though nobody asks for them


class Teller(Quota, Protocol):
    """Whose keys it is about."""

    sharing: Sharing


class Telling:
    """What one limiter tells.

    mirror: what this process knows of the engine's windows.
    """

    def __init__(self, quota: Teller, mirror: MemoryStore) -> None:
        self._quota = quota
        self._mirror = mirror
        self._untold: dict[Hashable, None] = {}  # keys of which the engine may have lost the counts
        self._untold_until = -inf
        self._unmoved: dict[Hashable, None] = {}  # keys that are charged under other periods
        self._is_lost = False  # whether the engine has told that it has lost them

    def recovered(self) -> None:
        """The engine answers again: tell it what it does not know."""
        local = self._quota.local
        self._is_lost = False
        self._untold = dict.fromkeys(local.keys())
        self._untold_until = self._quota.calls.time() + local.longest
        # And of one key that it has known, which tells whether it has lost that.
        known = next(reversed(self._mirror.entries), None)
        owing = local.owing()
        self._put_some(iter(owing if known is None else {*owing, known}), self._debit)

    def lost(self) -> None:
        """The engine has lost what it knew: tell it all, or as much as is no burden, once."""
        if self._is_lost:
            return
        self._is_lost = True
        self._put_some(iter(list(self._untold)[-_AT_MOST:]), self._debit)

    def lost_key(self, key: Hashable, since: float) -> None:
        """An answer shows that the engine, which told of a key at that time, has lost it since."""
        if not self._is_lost:
            self.recovered()
            self.lost()
        now = self._quota.calls.time()
        everything, _ = self._quota.local.past(key, now)
        if everything:
            job = self._debit(key)
            job.lost = since, [(now - age, cost) for age, cost in everything]
            self._quota.sharing.put(key, job)

    def before(self, key: Hashable) -> None:
        """A key is asked for: before that, tell what there is to tell of it."""
        if key in self._unmoved:
            self._quota.sharing.put(key, self._move(key))
        if self._untold:
            if self._quota.calls.time() > self._untold_until:
                self._untold.clear()
            elif key in self._untold:
                self._quota.sharing.put(key, self._debit(key))

    def move(self) -> None:
        """The periods have changed: take what is charged over to them, of the keys known here."""
        self._unmoved = {key: None for keys in self._mirror.tables() for key in keys}
        self._put_some(iter(list(self._unmoved)), self._move)

    def _put_some(
        self, keys: Iterator[Hashable], job_for: Callable[[Hashable], Move | Debit]
    ) -> None:
        """Do something for some keys, and for the others in a turn of the loop after that."""
        jobs = [job_for(key) for key in islice(keys, _AT_ONCE)]
        if len(jobs) == _AT_ONCE:
            loop = self._quota.sharing.link().loop
            jobs[-1].then = lambda: loop.call_soon(self._put_some, keys, job_for)
        for job in jobs:
            self._quota.sharing.put(job.key, job)

    def _debit(self, key: Hashable) -> Debit:
        self._untold.pop(key, None)
        job = Debit(self._quota, key, self._quota.calls.limits)
        job.on_loss = self.lost
        return job

    def _move(self, key: Hashable) -> Move:
        self._unmoved.pop(key, None)
        job = Move(self._quota, key, self._quota.calls.limits)
        job.on_failure = lambda: self._unmoved.setdefault(key)
        return job
