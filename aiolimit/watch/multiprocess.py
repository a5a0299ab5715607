"""Several processes behind one scrape: values go to prometheus-client's files, twice a second.

In its multiprocess mode prometheus-client asks no collector. It adds up what each process has
written to files in `PROMETHEUS_MULTIPROC_DIR`, and only its own metric objects write there. So the
same numbers as always are read, and what has grown since is added to such objects:

- twice a second, in a thread of its own (an event loop may be busy, or not there yet);
- when the process ends in order, as children of multiprocessing do, too. One that ends by a signal
  loses half a second of counts at most; uvicorn's workers do, as it raises the signal again.

Counts stay when a process has gone. Gauges leave with it, also if it was killed: nobody tells
prometheus-client of that where the workers are uvicorn's, so the living look for the dead.
"""

import logging
import os
import threading
from collections.abc import Callable
from multiprocessing import util
from pathlib import Path
from typing import Any, Final

import psutil
from prometheus_client import Counter, Gauge, Histogram, values
from prometheus_client.multiprocess import mark_process_dead

from aiolimit.tally import WAIT_BOUNDS, Waits
from aiolimit.watch.instrument import Instrument, Value
from aiolimit.watch.roster import INSTRUMENTS, Roster, label_names

__all__ = ["Flusher", "is_multiprocess"]

_log = logging.getLogger("aiolimit.metrics")
_EVERY: Final = 0.5  # seconds
_LOOK_FOR_THE_DEAD: Final = 10  # times that


def is_multiprocess() -> bool:
    """Whether prometheus-client writes files. Raises `RuntimeError` if it was told too late."""
    writes: bool = values.ValueClass._multiprocess
    if not writes and "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        raise RuntimeError(
            "PROMETHEUS_MULTIPROC_DIR was set after prometheus_client was imported, which looks "
            "for it only then: set it before the process starts"
        )
    return writes


class Flusher:
    """Writes the values of one roster to the files of this process, for as long as it lives."""

    def __init__(self) -> None:
        self.roster = Roster(self)
        self._metrics: dict[str, Any] = {one.name: _made(one) for one in INSTRUMENTS}
        self._written: dict[tuple[str, tuple[str, ...]], Value] = {}
        self._lock = threading.RLock()
        self._has_failed = False
        self._folder = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])
        self._end_in_order()
        # A child of multiprocessing forgets what its parent wanted to be done at the end.
        util.register_after_fork(self, Flusher._end_in_order)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._lock.acquire,
                after_in_parent=self._lock.release,
                after_in_child=self._begin_in_child,
            )
        self._start()

    def flush(self) -> None:
        """Write what has changed."""
        self._each(self._write)

    def begin(self) -> None:
        """Write for the first time, in place of those who are no more."""
        self.flush()
        _bury_the_dead(self._folder)

    def _each(self, do: Callable[[Instrument[Any], tuple[str, ...], Value], None]) -> None:
        with self._lock:
            gone = dict.fromkeys(key for key in self._written if _BY_NAME[key[0]].kind == "gauge")
            for instrument, reading in self.roster.read():
                for labels, value in reading.items():
                    gone.pop((instrument.name, labels), None)
                    do(instrument, labels, value)
            # A file knows no "gone", so what has gone is told as what changes nothing for others.
            for name, labels in gone:
                do(_BY_NAME[name], labels, _NOTHING[_BY_NAME[name].combine])

    def _write(self, instrument: Instrument[Any], labels: tuple[str, ...], value: Value) -> None:
        which = instrument.name, labels
        before = self._written.get(which)
        if value == before:
            return
        metric = self._metrics[instrument.name]
        child = metric.labels(*labels) if labels else metric
        if isinstance(value, Waits):
            known = before if isinstance(before, Waits) else Waits((0,) * len(value.buckets), 0.0)
            # It has no public way to take many observations at once.
            for cell, now, then in zip(child._buckets, value.buckets, known.buckets, strict=True):
                cell.inc(now - then)
            child._sum.inc(value.seconds - known.seconds)
        elif instrument.kind == "gauge":
            child.set(value)
        else:
            child.inc(value - (before if isinstance(before, int | float) else 0))
        self._written[which] = value

    def _start(self) -> None:
        self._stop = threading.Event()
        threading.Thread(target=self._run, name="aiolimit metrics", daemon=True).start()

    def _run(self) -> None:
        stop, rounds = self._stop, 0
        while not stop.wait(_EVERY):
            rounds += 1
            try:
                self.flush()
                if rounds % _LOOK_FOR_THE_DEAD == 0:
                    _bury_the_dead(self._folder)
            except Exception:  # noqa: BLE001 (requests go on, whatever it is)
                if not self._has_failed:
                    self._has_failed = True
                    _log.exception("metrics cannot be written to PROMETHEUS_MULTIPROC_DIR")

    def _begin_in_child(self) -> None:
        """After a fork: what the parent has counted so far is the parent's."""

        def take_over(instrument: Instrument[Any], labels: tuple[str, ...], value: Value) -> None:
            if instrument.kind != "gauge":
                self._written[instrument.name, labels] = value

        self._written.clear()
        self._each(take_over)
        self._lock.release()
        self._end_in_order()
        self._start()

    def _end_in_order(self) -> None:
        # Not atexit, which children of multiprocessing do not come to where they are forked.
        util.Finalize(self, _end, args=(self,), exitpriority=0)

    def end(self) -> None:
        """Write what is left, and take the gauges away."""
        self._stop.set()
        self.flush()
        mark_process_dead(os.getpid(), self._folder)  # type: ignore[no-untyped-call]


def _end(flusher: Flusher) -> None:
    flusher.end()


_BY_NAME: Final = {one.name: one for one in INSTRUMENTS}
_NOTHING: Final = {"sum": 0.0, "max": 0.0, "min": 1.0}  # all that are combined so are shares


def _made(instrument: Instrument[Any]) -> Counter | Gauge | Histogram:
    """The object of prometheus-client that writes this metric. No registry needs to know it."""
    name, told, names = instrument.name, instrument.help, label_names(instrument)
    if instrument.kind == "histogram":
        return Histogram(name, told, names, registry=None, buckets=WAIT_BOUNDS)
    if instrument.kind == "counter":
        return Counter(name, told, names, registry=None)
    modes: dict[str, Any] = {"sum": "livesum", "min": "livemin", "max": "livemax"}
    mode = modes[instrument.combine]
    return Gauge(name, told, names, registry=None, multiprocess_mode=mode)


def _bury_the_dead(folder: Path) -> None:
    """Remove the gauges of processes that are no more."""
    # The files are named after something else where ValueClass was given an identifier.
    if not (folder / f"gauge_livesum_{os.getpid()}.db").exists():
        return
    for path in folder.glob("gauge_live*_*.db"):
        number = path.stem.rsplit("_", 1)[1]
        if number.isdecimal() and not psutil.pid_exists(int(number)):
            mark_process_dead(int(number), folder)  # type: ignore[no-untyped-call]
