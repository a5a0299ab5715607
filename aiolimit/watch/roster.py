"""Whose values are told: the limiters that are watched, and their load controllers.

1. A watched limiter is not kept alive. Its counts stay when it has gone, as a counter that goes
   back looks like a restart; a limiter of the same name that comes later goes on from there.
2. Two of one name are told as one: an application that is built twice, a middleware that its
   framework builds again.
3. Watching never fails a request. What cannot be read of one is left out, counted, and logged
   once; all others are told.
4. A counter never goes back, though a thread may read while the loop counts.
"""

import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from aiolimit.limiter import Limiter
from aiolimit.load.controller import LoadController
from aiolimit.tally import Waits
from aiolimit.watch.instrument import Instrument, Value
from aiolimit.watch.of_limiter import LIMITER
from aiolimit.watch.of_load import LOAD
from aiolimit.watcher import watched_by

__all__ = ["INSTRUMENTS", "Reading", "Roster", "label_names"]

_log = logging.getLogger("aiolimit.metrics")

#: What could not be read, in place of which something is missing above.
_ERRORS: Final[Instrument[Any]] = Instrument(
    "aiolimit_exporter_errors",
    "counter",
    "How often the values of a limiter or a load controller could not be read. The log says why; "
    "what is missing here was not 0.",
    "{error}",
    (),
    lambda _roster: (),
)

_COMBINE: Final[dict[str, Callable[[Iterable[float]], float]]] = {
    "sum": sum,
    "min": min,
    "max": max,
}

#: All metrics there are, in the order in which they are told.
INSTRUMENTS: Final[tuple[Instrument[Any], ...]] = (*LIMITER, *LOAD, _ERRORS)

_OF_LIMITER: Final = frozenset(LIMITER)
_OF_LOAD: Final = frozenset(LOAD)

#: The values of one instrument: by the name of the limiter or the controller, and its labels.
Reading: TypeAlias = dict[tuple[str, ...], Value]


def label_names(instrument: Instrument[Any]) -> tuple[str, ...]:
    """What the values of an instrument are told apart by: names first, then its own labels."""
    if instrument is _ERRORS:
        return ()
    return ("controller" if instrument in _OF_LOAD else "limiter", *instrument.labels)


class Roster:
    """The limiters of one registry.

    owner: who reads it; when that has gone nobody will ask any more.
    """

    def __init__(self, owner: object) -> None:
        self._owner = weakref.ref(owner)
        self._limiters: list[weakref.ref[Limiter]] = []
        # These are kept alive: there is one in a process, as a rule, and its counts are those of
        # limiters that go one by one, before it or with it.
        self._controllers: list[LoadController] = []
        self._departed: dict[str, Reading] = {}
        self._last: dict[str, Reading] = {}
        self._told: set[tuple[str, str]] = set()
        self._errors = 0
        self.renew_lock()
        _all.add(self)

    def renew_lock(self) -> None:
        """Have a lock that nobody holds: in a forked child its holder may not exist."""
        # Entered again by the same thread, where a limiter is collected while this is read.
        self._lock = threading.RLock()

    def add(self, limiters: Iterable[Limiter]) -> None:
        """Watch those limiters; one that is watched already is so only once."""
        with self._lock:
            for limiter in limiters:
                if all(reference() is not limiter for reference in self._limiters):
                    self._warn_of_twins(limiter)
                    self._limiters.append(weakref.ref(limiter))
                    limiter._watchers = watched_by(limiter._watchers, self)
                load = limiter.load
                if load is not None and load not in self._controllers:
                    self._controllers.append(load)

    def limiters(self) -> list[Limiter]:
        """All that are watched and alive."""
        return [limiter for reference in tuple(self._limiters) if (limiter := reference())]

    def read(
        self, instruments: Sequence[Instrument[Any]] = INSTRUMENTS
    ) -> Iterator[tuple[Instrument[Any], Reading]]:
        """The values of those instruments as they are now, those of the same name as one."""
        with self._lock:
            limiters = self.limiters()
            in_use = [
                one
                for one in self._controllers
                if one.is_running or any(limiter.load is one for limiter in limiters)
            ]
            found: dict[str, Reading] = {one.name: {} for one in instruments}
            self._read([one for one in instruments if one in _OF_LIMITER], limiters, found)
            of_load = [one for one in instruments if one in _OF_LOAD]
            self._read([one for one in of_load if one.kind == "gauge"], in_use, found)
            self._read([one for one in of_load if one.kind != "gauge"], self._controllers, found)
            if _ERRORS.name in found:
                found[_ERRORS.name][()] = self._errors
            for instrument in instruments:
                reading = found[instrument.name]
                if instrument.kind != "gauge":
                    for labels, value in self._departed.get(instrument.name, {}).items():
                        known = reading.get(labels)
                        reading[labels] = value if known is None else _together(known, value)
                    _never_back(reading, self._last.setdefault(instrument.name, {}))
        return ((instrument, found[instrument.name]) for instrument in instruments)

    def is_over(self) -> bool:
        """Whether nobody will read it any more. See `Watcher`."""
        return self._owner() is None

    def depart(self, limiter: Limiter) -> None:
        """Keep the counts of a limiter that is about to go. See `Watcher`."""
        if self.is_over() or sys.is_finalizing():
            return
        with self._lock:
            self._limiters = [one for one in self._limiters if one() not in (None, limiter)]
            counters = [one for one in LIMITER if one.kind != "gauge"]
            self._read(counters, [limiter], self._departed)
            self._tell_once(
                ("gone", limiter.name),
                "limiter %r is watched for metrics, but nobody holds it any more: it was collected "
                "as garbage, its counts stay as they are",
                limiter.name,
            )

    def _read(
        self,
        instruments: Iterable[Instrument[Any]],
        subjects: Iterable[Limiter | LoadController],
        found: dict[str, Reading],
    ) -> None:
        for subject in subjects:
            name = subject.name
            for instrument in instruments:
                reading = found.setdefault(instrument.name, {})
                try:
                    for labels, value in instrument.read(subject):
                        which = (name, *labels)
                        if which in reading:
                            value = _together(reading[which], value, instrument.combine)
                        reading[which] = value
                except Exception as error:  # noqa: BLE001 (no scrape is to blame, no request either)
                    self._errors += 1
                    self._tell_once(
                        ("error", instrument.name),
                        "%s of %r cannot be read and is left out: %r",
                        *(instrument.name, name, error),
                    )

    def _warn_of_twins(self, limiter: Limiter) -> None:
        """Built again it has the same rates; with others it is somebody else, and has no name."""
        for other in self.limiters():
            if other.name == limiter.name and other._store.rates != limiter._store.rates:
                self._tell_once(
                    ("twins", limiter.name),
                    "two limiters with different rates are called %r, and are told as one: give "
                    "each a name of its own",
                    limiter.name,
                )

    def _tell_once(self, what: tuple[str, str], message: str, *arguments: object) -> None:
        if what not in self._told:
            self._told.add(what)
            _log.warning(message, *arguments)


def _together(one: Value, other: Value, combine: str = "sum") -> Value:
    """Two values as one."""
    if isinstance(one, Waits) and isinstance(other, Waits):
        pairs = zip(one.buckets, other.buckets, strict=True)
        return Waits(tuple(map(sum, pairs)), one.seconds + other.seconds)
    if isinstance(one, Waits) or isinstance(other, Waits):
        raise TypeError(f"{one!r} and {other!r} are no values of one metric")
    return _COMBINE[combine]((one, other))


def _never_back(reading: Reading, last: Reading) -> None:
    """Raise each count to what was told of it before, and remember what is told now."""
    for labels, value in reading.items():
        before = last.get(labels)
        if isinstance(value, Waits):
            if isinstance(before, Waits):
                pairs = zip(value.buckets, before.buckets, strict=True)
                value = Waits(tuple(map(max, pairs)), max(value.seconds, before.seconds))
        elif before is not None and not isinstance(before, Waits):
            value = max(value, before)
        reading[labels] = last[labels] = value


_all: weakref.WeakSet[Roster] = weakref.WeakSet()


def _renew_locks() -> None:
    for roster in _all:
        roster.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
