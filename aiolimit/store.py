"""What `Limiter(store=)` takes: counts that are kept elsewhere, for many processes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from aiolimit.admission import Admission

__all__ = ["Store", "check_store"]


class Store(Protocol):
    """Counts that processes share, such as `aiolimit.redis.RedisStore`."""

    def admission(self, limiter: str, *, shadow: bool) -> "Callable[..., Admission]":
        """What makes the decisions of a limiter of that name."""
        ...


def check_store(store: Any) -> Store:
    """A store; raises `TypeError` for what is none."""
    if not callable(getattr(store, "admission", None)) or isinstance(store, type):
        raise TypeError(f"store must be a store such as RedisStore(...) or None, not {store!r}")
    return cast(Store, store)
