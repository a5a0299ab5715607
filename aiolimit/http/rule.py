"""What a service limits, and how, in any framework: its options, checked once, and asked each time.

Each option that depends on the request is a function of it, plain or async. What a request is, the
framework says: R stands for it.
"""

from collections.abc import Awaitable, Callable, Collection, Hashable
from inspect import isawaitable
from typing import Any, Generic, TypeAlias, TypeVar

from aiolimit.arguments import check_cost, check_wait
from aiolimit.errors import RateLimited
from aiolimit.http.answers import Answers
from aiolimit.http.fields import Dialect
from aiolimit.http.paths import Paths
from aiolimit.limiter import Limiter
from aiolimit.permit import Permit
from aiolimit.rate import Limit

__all__ = ["Call", "Exempt", "Limits", "Rule", "Told", "told"]

R = TypeVar("R")
T = TypeVar("T")

#: The limit of one call; None for that of the limiter.
Limits: TypeAlias = Limit | tuple[Limit, ...] | None

#: A function of the request, plain or async.
Told: TypeAlias = Callable[[R], T | Awaitable[T]]

#: Paths and functions that tell what is never limited, or one such function. "/metrics/*" is all
#: below a path, and the path itself.
Exempt: TypeAlias = Collection[str | Told[R, bool]] | Told[R, bool] | None


async def told(value: Any, request: object) -> Any:
    """A value, or what it tells of the request if it is a function."""
    if not callable(value):
        return value
    found = value(request)
    return await found if isawaitable(found) else found


class Call:
    """One request's call: under which key and limit it asks, and the permit to ask with."""

    __slots__ = ("key", "limit", "permit")

    def __init__(self, key: Hashable, limit: Limits, permit: Permit) -> None:
        self.key = key
        self.limit = limit
        self.permit = permit


class Rule(Generic[R]):
    """The options of a limit in a service. Raises `TypeError` or `ValueError` for what is none."""

    __slots__ = (
        "_functions",
        "_paths",
        "answers",
        "cost",
        "has_exempt",
        "is_usual",
        "key",
        "limit",
        "limiter",
        "max_wait",
        "on_refuse",
    )

    def __init__(
        self,
        limiter: Limiter,
        *,
        key: Told[R, Hashable],
        cost: float | Told[R, float],
        limit: Told[R, Limits] | None,
        exempt: Exempt[R],
        max_wait: float | None,
        headers: Dialect,
        on_refuse: Callable[[R, RateLimited], Any] | None,
    ) -> None:
        if not isinstance(limiter, Limiter):
            raise TypeError(f"limiter must be a Limiter, not {limiter!r}")
        if not callable(key):
            raise TypeError(f"key must be a function of the request, not {key!r}")
        for name, function in (("limit", limit), ("on_refuse", on_refuse)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a function or None, not {function!r}")
        self.limiter = limiter
        self.key = key
        self.cost = cost if callable(cost) else check_cost(cost)
        self.limit = limit
        self._paths, self._functions = _exempt(exempt)
        self.has_exempt = bool(self._paths or self._functions)
        self.max_wait = check_wait(max_wait)
        self.answers = Answers(limiter, headers)
        self.on_refuse = on_refuse
        # What most services do, and has a quick way to be refused.
        self.is_usual = cost == 1 and limit is None and max_wait == 0 and on_refuse is None

    async def is_exempt(self, request: R, *paths: str) -> bool:
        """Whether the request, which may have several names, is never limited."""
        if any(path in self._paths for path in paths):
            return True
        for function in self._functions:
            if await told(function, request):
                return True
        return False

    async def ask(self, request: R) -> Call:
        """The call that the request makes, to be entered."""
        key = self.key(request)
        if type(key) is not str and isawaitable(key):
            key = await key
        cost: Any = self.cost
        limit: Any = self.limit
        if callable(cost):
            cost = await told(cost, request)
        if limit is not None:
            limit = await told(limit, request)
        return Call(key, limit, self.limiter.acquire(key, cost, self.max_wait, limit))

    async def own_response(self, request: R, refused: RateLimited) -> Any:
        """The user's own response to a refusal; None for the usual one."""
        if self.on_refuse is None:
            return None
        found = self.on_refuse(request, refused)
        return await found if isawaitable(found) else found


def _exempt(exempt: Any) -> tuple[Paths, tuple[Callable[[Any], Any], ...]]:
    """The paths that are exempt, and the functions that tell."""
    if exempt is None:
        return Paths(()), ()
    if callable(exempt):
        return Paths(()), (exempt,)
    is_many = isinstance(exempt, Collection) and not isinstance(exempt, str)
    if not is_many or not all(isinstance(one, str) or callable(one) for one in exempt):
        raise TypeError(f"exempt must be paths or functions of the request, not {exempt!r}")
    paths = Paths(one for one in exempt if isinstance(one, str))
    return paths, tuple(one for one in exempt if not isinstance(one, str))
