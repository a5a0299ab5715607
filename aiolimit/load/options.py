"""The options of a load controller, checked one by one. Each error names the value."""

from collections.abc import Callable, Mapping
from typing import Any

from aiolimit.arguments import check_name, number
from aiolimit.load.sensors import BUILT_IN

__all__ = ["check_names", "check_seconds", "check_sensors", "check_share"]


def check_share(value: object, name: str) -> float:
    """A share above 0, at most 1."""
    checked = number(value, name)
    if not 0 < checked <= 1:
        raise ValueError(f"{name} must be a share above 0 and at most 1, not {value!r}")
    return checked


def check_seconds(value: object, name: str) -> float:
    """A time of 0.001 to 10 seconds."""
    checked = number(value, name)
    if not 0.001 <= checked <= 10:
        raise ValueError(f"{name} must be 0.001 to 10 seconds, not {value!r}")
    return checked


def check_names(without: object) -> frozenset[str]:
    """Names of built-in sensors."""
    if isinstance(without, str) or not isinstance(without, set | frozenset | tuple | list):
        raise TypeError(f"without must be a set of sensor names, not {without!r}")
    for name in without:
        if name not in BUILT_IN:
            raise ValueError(f"unknown sensor {name!r} in without; there are {', '.join(BUILT_IN)}")
    return frozenset(without)


def check_sensors(sensors: Mapping[str, Callable[[], Any]] | None) -> dict[str, Callable[[], Any]]:
    """Sensors of the user's own, by name."""
    if sensors is None:
        return {}
    if not isinstance(sensors, Mapping):
        raise TypeError(f"sensors must map names to functions, not {sensors!r}")
    for name, read in sensors.items():
        check_name(name, "the name of a sensor")
        if name in BUILT_IN:
            raise ValueError(f"sensor {name!r} is built in; give yours another name")
        if not callable(read):
            raise TypeError(
                f"sensor {name!r} must be a function that returns a pressure, not {read!r}"
            )
    return dict(sensors)
