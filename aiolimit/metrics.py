"""Prometheus metrics: what limiters admit and refuse, and what bends their limits.

```python
from aiolimit import Limiter, metrics

limiter = Limiter("100/s", name="search")
metrics.register(limiter)
```

Whatever exposes the registry now exposes them, too: `prometheus_client.make_asgi_app()` as a part
of the application, or `prometheus_client.start_http_server(9100)` beside it. Requests pay nothing
for it: limiters count in plain numbers anyway, and these are read when Prometheus asks.

With several processes (`PROMETHEUS_MULTIPROC_DIR`) the same numbers go to prometheus-client's
files instead: see `multiprocess.py`.
"""

import threading
import weakref
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final, TypeAlias

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import Metric, Sample
from prometheus_client.registry import Collector

from aiolimit.limiter import Limiter
from aiolimit.tally import WAIT_BOUNDS, Waits
from aiolimit.watch.instrument import Instrument
from aiolimit.watch.multiprocess import Flusher, is_multiprocess
from aiolimit.watch.roster import INSTRUMENTS, Roster, label_names

__all__ = ["register"]

_BOUNDS: Final = (*(repr(bound) for bound in WAIT_BOUNDS), "+Inf")


#: The names of the samples of one value, with their labels.
_Heads: TypeAlias = list[tuple[str, dict[str, str]]]


class _Collector(Collector):
    """Reads the limiters of one registry when it is asked to collect."""

    def __init__(self) -> None:
        self.roster = Roster(self)
        # Made once: of what a scrape takes here, they would be the greater part.
        self._heads: dict[tuple[str, tuple[str, ...]], _Heads] = {}

    def describe(self) -> Iterator[Metric]:
        """The metrics, without values: a registry asks when this is registered."""
        for instrument in INSTRUMENTS:
            yield Metric(instrument.name, instrument.help, instrument.kind)

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        for instrument, reading in self.roster.read():
            name = instrument.name
            metric = Metric(name, instrument.help, instrument.kind)
            samples = metric.samples = []
            for labels, value in reading.items():
                heads = self._heads.get((name, labels))
                if heads is None:
                    heads = self._heads[name, labels] = _heads(instrument, labels)
                if not isinstance(value, Waits):
                    samples.append(Sample(*heads[0], value))
                    continue
                counts = (*accumulate(value.buckets), sum(value.buckets), value.seconds)
                samples += [Sample(*head, count) for head, count in zip(heads, counts, strict=True)]
            yield metric


def _heads(instrument: Instrument[Any], values: tuple[str, ...]) -> _Heads:
    name = instrument.name
    labels = dict(zip(label_names(instrument), values, strict=True))
    if instrument.kind == "histogram":
        buckets = [(f"{name}_bucket", {**labels, "le": bound}) for bound in _BOUNDS]
        return [*buckets, (f"{name}_count", labels), (f"{name}_sum", labels)]
    return [(f"{name}_total" if instrument.kind == "counter" else name, labels)]


_collectors: weakref.WeakKeyDictionary[CollectorRegistry, _Collector] = weakref.WeakKeyDictionary()
_flushers: list[Flusher] = []
_lock = threading.Lock()


def register(*limiters: Limiter, registry: CollectorRegistry = REGISTRY) -> None:
    """Have those limiters told to Prometheus, and the load controllers they have.

    registry: of prometheus-client. With `PROMETHEUS_MULTIPROC_DIR` it is not used: there values go
        to files, and what reads them is a registry with a `MultiProcessCollector`.

    A limiter may be registered again, also a second one of the same name: their counts are told as
    one. It is not kept alive; what it has counted stays. Raises `TypeError` for what is no
    `Limiter`, `ValueError` if the registry holds metrics of these names that are not ours, and
    `RuntimeError` if `PROMETHEUS_MULTIPROC_DIR` was set too late; then none is registered.
    """
    for limiter in limiters:
        if not isinstance(limiter, Limiter):
            raise TypeError(f"register takes limiters, not {limiter!r}")
    if not isinstance(registry, CollectorRegistry):
        raise TypeError(f"registry must be a CollectorRegistry, not {registry!r}")
    with _lock:
        if is_multiprocess():
            if not _flushers:
                _flushers.append(Flusher())
            _flushers[0].roster.add(limiters)
            _flushers[0].begin()
            return
        collector = _collectors.get(registry)
        if collector is None:
            collector = _Collector()
        # Whoever cleans a registry between tests has taken it out; it has no public way to ask.
        if collector not in registry._collector_to_names:
            registry.register(collector)
            _collectors[registry] = collector
        collector.roster.add(limiters)
