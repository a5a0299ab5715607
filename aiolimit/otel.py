"""OpenTelemetry metrics: the numbers of `metrics.py`, as observable instruments.

```python
from aiolimit import Limiter, otel

limiter = Limiter("100/s", name="search")
otel.register(limiter)
```

Needs the extra `otel` (opentelemetry-api). Names are those of Prometheus with dots: what is
`aiolimit_load_rate` there is `aiolimit.load.rate` here, and units are told as units. OpenTelemetry
has no histogram that is read when it is asked for, so the waits are two counters:
`aiolimit.wait.time`, and `aiolimit.wait.count` with the attribute `le`, cumulative as Prometheus'
buckets are.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, Final, TypeAlias

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
from opentelemetry.metrics import get_meter_provider as _global

from aiolimit.limiter import Limiter
from aiolimit.tally import WAIT_BOUNDS, Waits
from aiolimit.watch.instrument import Instrument, Value
from aiolimit.watch.roster import INSTRUMENTS, Roster, label_names

__all__ = ["register"]

_Callback: TypeAlias = Callable[[CallbackOptions], Iterable[Observation]]

_BOUNDS: Final = (*(f"{bound:g}" for bound in WAIT_BOUNDS), "+Inf")
_rosters: weakref.WeakKeyDictionary[object, Roster] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class _Global:
    """Stands for the global provider, whichever that is by now."""


_GLOBAL: Final = _Global()


def register(*limiters: Limiter, meter_provider: MeterProvider | None = None) -> None:
    """Have those limiters told to OpenTelemetry, and the load controllers they have.

    meter_provider: by default the global one.

    As with `metrics.register` a limiter may be registered again, and is not kept alive. Raises
    `TypeError` for what is no `Limiter`; then none is registered.
    """
    for limiter in limiters:
        if not isinstance(limiter, Limiter):
            raise TypeError(f"register takes limiters, not {limiter!r}")
    if meter_provider is not None and not isinstance(meter_provider, MeterProvider):
        raise TypeError(f"meter_provider must be a MeterProvider or None, not {meter_provider!r}")
    with _lock:
        # Before one is set the global one is a stand-in, whose instruments become those of the real
        # one then. So there is one roster for it, whenever somebody registers.
        is_global = meter_provider is None or meter_provider is _global()
        provider = _global() if meter_provider is None else meter_provider
        key: object = _GLOBAL if is_global and provider not in _rosters else provider
        roster = _rosters.get(key)
        if roster is None:
            roster = _rosters[key] = Roster(key)
            meter = provider.get_meter("aiolimit")
            for instrument in INSTRUMENTS:
                _create(meter, instrument, roster)
        roster.add(limiters)


def _create(meter: Meter, instrument: Instrument[Any], roster: Roster) -> None:
    name, unit, told = _name(instrument), instrument.unit, instrument.help

    def callback(of: Callable[[Value], Iterator[tuple[float, dict[str, str]]]]) -> list[_Callback]:
        return [_callback(instrument, roster, of)]

    if instrument.kind == "histogram":
        count, time = f"{name}.count", f"{name}.time"
        meter.create_observable_counter(count, callback(_buckets), "{call}", told)
        meter.create_observable_counter(time, callback(_seconds), unit, told)
    elif instrument.kind == "counter":
        meter.create_observable_counter(name, callback(_plain), unit, told)
    elif instrument.combine == "sum":
        meter.create_observable_up_down_counter(name, callback(_plain), unit, told)
    else:
        meter.create_observable_gauge(name, callback(_plain), unit, told)


def _callback(
    instrument: Instrument[Any],
    roster: Roster,
    of: Callable[[Value], Iterator[tuple[float, dict[str, str]]]],
) -> _Callback:
    names = [f"aiolimit.{label}" for label in label_names(instrument)]

    def observe(_options: CallbackOptions) -> Iterator[Observation]:
        for _, reading in roster.read([instrument]):
            for labels, value in reading.items():
                attributes = dict(zip(names, labels, strict=True))
                for number, more in of(value):
                    yield Observation(number, {**attributes, **more})

    return observe


def _name(instrument: Instrument[Any]) -> str:
    name = instrument.name.removesuffix("_seconds").removesuffix("_ratio")
    return name.replace("aiolimit_load_", "aiolimit.load.").replace("aiolimit_", "aiolimit.")


def _plain(value: Value) -> Iterator[tuple[float, dict[str, str]]]:
    if not isinstance(value, Waits):
        yield value, {}


def _buckets(value: Value) -> Iterator[tuple[float, dict[str, str]]]:
    if isinstance(value, Waits):
        for bound, count in zip(_BOUNDS, accumulate(value.buckets), strict=True):
            yield count, {"le": bound}


def _seconds(value: Value) -> Iterator[tuple[float, dict[str, str]]]:
    if isinstance(value, Waits):
        yield value.seconds, {}
