"""The decorator: each call of an async function acquires first."""

import functools
import inspect
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, ParamSpec, TypeVar

from aiolimit.permit import Permit

__all__ = ["limited"]

P = ParamSpec("P")
T = TypeVar("T")


def limited(
    acquire: Callable[[Hashable, float], Permit],
    key: Hashable | Callable[..., Hashable],
    cost: float | Callable[..., float],
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """What `Limiter.limited` returns."""
    if inspect.iscoroutinefunction(key):
        raise TypeError("limited takes the key: write @limiter.limited() with parentheses")

    def decorate(
        function: Callable[P, Coroutine[Any, Any, T]],
    ) -> Callable[P, Coroutine[Any, Any, T]]:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"limited() decorates async functions, not {function!r}")

        @functools.wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            its_key = key(*args, **kwargs) if callable(key) else key
            its_cost = cost(*args, **kwargs) if callable(cost) else cost
            async with acquire(its_key, its_cost):
                return await function(*args, **kwargs)

        return wrapper

    return decorate
