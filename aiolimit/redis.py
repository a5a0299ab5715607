"""Limits that processes and machines share, by way of Redis or Valkey.

```python
from aiolimit.redis import RedisStore

store = RedisStore("redis://localhost:6379/0")
limiter = Limiter("100/s", name="search", store=store)

async with limiter.acquire("user:42"):
    ...
```

`docs/distributed.md` tells which store to choose, and what is exact.
"""

import asyncio
import functools
from collections.abc import Callable
from typing import Any, Self, get_args

from aiolimit.admission import Admission
from aiolimit.arguments import check_count, number
from aiolimit.identity import OneOfAKind
from aiolimit.shared.address import Place, is_cluster
from aiolimit.shared.admission import SharedAdmission, SharedShadowAdmission
from aiolimit.shared.links import ClusterLink, Link
from aiolimit.shared.sharing import Policy, Sharing

__all__ = ["RedisStore"]


class RedisStore(OneOfAKind):
    """Counts in Redis (6.2 and later) or Valkey, shared by all who use the same prefix and name.

    url_or_client: where it is, or a client of `redis.asyncio` or `valkey.asyncio`, which is then
        used as it is. URLs: "redis://host:6379/0", "rediss://" for TLS, "unix:///path",
        "redis+cluster://host1,host2", "redis+sentinel://host1:26379,host2:26379/service/0"; with
        user and password as usual. "valkey" in place of "redis" prefers that client.
    prefix: what all keys begin with; the limiter's name follows. No braces.
    timeout: seconds that the engine has to answer, above 0 up to 60. Nothing is tried again.
    on_store_error: what to do while it does not answer. "local" lets pass this process's share, the
        limit divided by the processes; "open" everybody; "closed" nobody, with
        `aiolimit.StoreUnavailable`; "raise" raises `aiolimit.StoreError`.
    processes: how many share the limits, 1 or more; None counts those that tell the engine so. Give
        it where the engine may be away when they start, as nobody has been counted then.
    lease: None asks the engine for each call. A share, above 0 up to 1, lets a process take some of
        a limit ahead and spend it without asking, for a tenth of the window: in a window may pass
        at most that share of the limit more than the limit. It pays where a limit is more than
        some fifty times the number of processes in a window.

    A store serves any number of limiters, on one event loop at a time. `async with` it, or
    `await store.aclose()`, gives leases back and closes what it opened; where `asyncio.run` ends
    without, connections are closed all the same.
    Raises `ValueError` or `TypeError` for options out of range, `ImportError` without a client.
    """

    __slots__ = (
        "__weakref__",
        "_link",
        "_place",
        "lease",
        "on_store_error",
        "prefix",
        "processes",
        "timeout",
    )

    def __init__(
        self,
        url_or_client: Any,
        *,
        prefix: str = "aiolimit:",
        timeout: float = 0.2,
        on_store_error: Policy = "local",
        processes: int | None = None,
        lease: float | None = None,
    ) -> None:
        if not isinstance(prefix, str) or "{" in prefix or "}" in prefix:
            raise ValueError(f"prefix must be text without braces, not {prefix!r}")
        if not 0 < number(timeout, "timeout") <= 60:
            raise ValueError(f"timeout must be seconds above 0 up to 60, not {timeout!r}")
        if on_store_error not in get_args(Policy):
            policies = ", ".join(map(repr, get_args(Policy)))
            raise ValueError(f"on_store_error must be one of {policies}, not {on_store_error!r}")
        if lease is not None and not 0 < number(lease, "lease") <= 1:
            raise ValueError(f"lease must be a share above 0 up to 1, or None, not {lease!r}")
        self.prefix = prefix
        self.timeout = timeout
        self.on_store_error: Policy = on_store_error
        self.processes = check_count(processes, "processes", 1)
        self.lease = lease
        self._place = Place(url_or_client, timeout)
        self._link: Link | None = None

    def __repr__(self) -> str:
        return f"<RedisStore {self._place.shown}>"

    def admission(self, limiter: str, *, shadow: bool) -> Callable[..., Admission]:
        """What makes the decisions of a limiter of that name: `Limiter` asks for it."""
        sharing = Sharing(self, limiter, self._linked)
        return functools.partial(
            SharedShadowAdmission if shadow else SharedAdmission, sharing=sharing
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Give back what was taken ahead, tell that this process goes, and close connections.

        A limiter that is used afterwards connects anew.
        """
        link, self._link = self._link, None
        if link is not None and link.loop is asyncio.get_running_loop():
            for sharing in list(link.listeners):
                sharing.depart()
            await link.close()

    def _linked(self) -> "Link":
        """The way to the engine on the running loop."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            what = f"{self!r} is asked from a running event loop only: call it from `async def`"
            raise RuntimeError(what) from None
        if self._link is None or self._link.loop is not loop:
            if self._link is not None and not self._place.owns:
                self._link.forget_connections()
            client = self._place.client()
            link = ClusterLink if is_cluster(client) else Link
            self._link = link(client, self._place, self.timeout)
        return self._link
