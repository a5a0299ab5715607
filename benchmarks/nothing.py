"""What an `async with` costs that does nothing: the floor under every limiter.

`Reference` is like for like. Its `acquire` takes what the limiter's takes and returns a fresh
object that keeps it all, in the cheapest way there is: without an `__init__`, which would cost a
call. What the limiter takes longer than this is what limiting costs. `Nothing` is the barest
object that an `async with` accepts; it cannot even know its key.
"""

from types import EllipsisType, TracebackType

__all__ = ["Nothing", "Reference"]


class Nothing:
    """An `async with` that does nothing."""

    __slots__ = ()

    async def __aenter__(self) -> "Nothing":
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass


class _Kept:
    """An `async with` that knows what it was asked for, and does nothing."""

    __slots__ = ("cost", "key", "limit", "limiter", "max_wait")

    limiter: "Reference"
    key: str
    cost: float
    max_wait: float | EllipsisType | None
    limit: float | None

    async def __aenter__(self) -> "_Kept":
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass


class Reference:
    """Looks like a limiter from outside, and limits nothing."""

    __slots__ = ()

    def acquire(
        self,
        key: str = "",
        cost: float = 1,
        *,
        max_wait: float | EllipsisType | None = ...,
        limit: float | None = None,
    ) -> _Kept:
        """Keep the arguments in a fresh object."""
        kept = _Kept()
        kept.limiter = self
        kept.key = key
        kept.cost = cost
        kept.max_wait = max_wait
        kept.limit = limit
        return kept
