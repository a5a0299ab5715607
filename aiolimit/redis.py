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
import importlib
import os
import random
import time
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from math import inf
from typing import Any, Final, Self, get_args

from aiolimit.admission import Admission
from aiolimit.arguments import check_count, number
from aiolimit.clock import LoopClock
from aiolimit.identity import OneOfAKind
from aiolimit.shared.address import Address, address_of
from aiolimit.shared.admission import SharedAdmission, SharedShadowAdmission
from aiolimit.shared.breaker import Breaker
from aiolimit.shared.script import SCRIPT, SHA, Call, answers_of, batch_of
from aiolimit.shared.sender import Sender
from aiolimit.shared.sharing import Policy, Sharing

__all__ = ["RedisStore"]

_AT_ONCE: Final = 64  # calls in one run of the script: about a millisecond of the engine's
_CONNECTIONS: Final = 8
_INSTALL: Final = "pip install 'aiolimit-core[redis]', or 'aiolimit-core[valkey]'"


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
        "_address",
        "_given",
        "_link",
        "_shared",
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
        self._address: Address | None = None
        self._given: Any = None
        if isinstance(url_or_client, str):
            self._address = address_of(url_or_client)
            _package(self._address.package)
        else:
            self._given = _checked(url_or_client)
        self._link: _Link | None = None
        self._shared: weakref.WeakSet[Admission] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"<RedisStore {self._name}>"

    @property
    def _name(self) -> str:
        return repr(self._given) if self._address is None else self._address.shown

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
            for sharing in list(link.on_recovery):
                sharing.depart()
            await link.close()

    def _linked(self) -> "_Link":
        """The way to the engine on the running loop."""
        loop = asyncio.get_running_loop()
        if self._link is None or self._link.loop is not loop:
            if self._link is not None and self._given is not None:
                self._link.forget_connections()
            client = self._given if self._address is None else _connected(self._address, self)
            self._link = _Link(client, self._name, self.timeout, owns=self._given is None)
        return self._link


class _Link:
    """The connections to the engine on one event loop, and what is sent there."""

    def __init__(self, client: Any, name: str, timeout: float, *, owns: bool) -> None:
        self.loop = asyncio.get_running_loop()
        self.member = f"{os.getpid()}-{random.getrandbits(64):016x}".encode()
        self.on_recovery: weakref.WeakSet[Sharing] = weakref.WeakSet()
        self.client = client
        self.is_cluster = hasattr(client, "keyslot")
        self._name = name
        self._timeout = timeout
        self._owns = owns
        self._senders: dict[str, Sender] = {}
        self._keeper: AsyncGenerator[None] | None = None
        self._clock = LoopClock()
        module = type(client).__module__.split(".")[0]
        self._no_script = importlib.import_module(f"{module}.exceptions").NoScriptError
        self.only: Sender | None = None if self.is_cluster else self.sender(b"")

    def time(self) -> float:
        """The time by which the engine is tried again."""
        return time.monotonic()

    def sender(self, key: bytes) -> Sender:
        """What sends to the node that has the key."""
        node = ""
        if self.is_cluster:
            try:
                node = self.client.get_node_from_key(key).name
            except Exception:  # noqa: BLE001 (nothing is known of the cluster yet, or not of this)
                node = ""
        sender = self._senders.get(node)
        if sender is None:
            name = f"{self._name} ({node})" if node else self._name
            run = self._run_in_cluster if self.is_cluster else self._run
            sender = self._senders[node] = Sender(
                *(name, run, self._timeout, self._clock, Breaker(), self._recovered)
            )
        return sender

    @property
    def senders(self) -> Sequence[Sender]:
        """All there are."""
        return tuple(self._senders.values())

    async def delete(self, keys: list[bytes]) -> None:
        """Delete keys that are in one slot."""
        async with asyncio.timeout(self._timeout):
            await self.client.delete(*keys)

    async def delete_all(self, start: str) -> None:
        """Delete all keys of windows that begin like that."""
        escaped = "".join(f"\\{sign}" if sign in "*?[]\\^" else sign for sign in start)
        found = []
        async for key in self.client.scan_iter(match=f"{escaped}{{*", count=1000):
            found.append(key)
            if len(found) == 500:
                await self._unlink(found)
                found.clear()
        await self._unlink(found)

    async def _unlink(self, keys: list[Any]) -> None:
        for key in keys if self.is_cluster else ():
            await self.client.unlink(key)
        if keys and not self.is_cluster:
            await self.client.unlink(*keys)

    async def close(self) -> None:
        """Send what is left, and close what was opened."""
        for sender in self.senders:
            await sender.close()
        if self._keeper is not None:
            await self._keeper.aclose()

    def forget_connections(self) -> None:
        """The event loop of the connections has ended."""
        pool = getattr(self.client, "connection_pool", None)
        if pool is not None and self.loop.is_closed():
            pool.reset()

    def _recovered(self) -> None:
        for sharing in list(self.on_recovery):
            sharing.recovered()

    async def _begin(self) -> None:
        """Connections are closed when the event loop shuts its asynchronous generators down."""
        if self._owns and self._keeper is None:
            self._keeper = _closing(self.client)
            await anext(self._keeper)

    async def _run(self, calls: Sequence[Call]) -> Sequence[bytes | Exception]:
        """Run calls on a single server, some in one run of the script."""
        await self._begin()
        groups = list(_grouped(calls))
        commands = [_command(group, SHA) for group in groups]
        found = await self._execute(commands)
        again = [at for at, one in enumerate(found) if isinstance(one, self._no_script)]
        if again:  # nothing was done: the only error after which it is sent once more
            scripts = [_command(groups[at], SCRIPT) for at in again]
            for at, one in zip(again, await self._execute(scripts), strict=True):
                found[at] = one
        answers: list[bytes | Exception] = []
        for group, one in zip(groups, found, strict=True):
            if isinstance(one, Exception):
                answers += [one] * len(group)
            else:
                answers += answers_of(one)
        if any("READONLY" in str(one) for one in answers if isinstance(one, Exception)):
            await self.client.connection_pool.disconnect(inuse_connections=False)
        return answers

    async def _execute(self, commands: list[list[Any]]) -> list[Any]:
        if len(commands) == 1:
            try:
                return [await self.client.execute_command(*commands[0], NEVER_DECODE=True)]
            except self._no_script as error:
                return [error]
        pipeline = self.client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command, NEVER_DECODE=True)
        return list(await pipeline.execute(raise_on_error=False))

    async def _run_in_cluster(self, calls: Sequence[Call]) -> Sequence[bytes | Exception]:
        """Run calls on one node of a cluster, each by itself: they are in different slots."""
        await self._begin()
        await self.client.initialize()
        found = await self._execute_in_cluster([_command([call], SHA) for call in calls])
        again = [at for at, one in enumerate(found) if isinstance(one, self._no_script)]
        if again:
            scripts = [_command([calls[at]], SCRIPT) for at in again]
            for at, one in zip(again, await self._execute_in_cluster(scripts), strict=True):
                found[at] = one
        return [one if isinstance(one, Exception) else answers_of(one)[0] for one in found]

    async def _execute_in_cluster(self, commands: list[list[Any]]) -> list[Any]:
        pipeline = self.client.pipeline()
        for command in commands:
            pipeline.execute_command(*command, NEVER_DECODE=True)
        return list(await pipeline.execute(raise_on_error=False))


def _grouped(calls: Sequence[Call]) -> Iterator[Sequence[Call]]:
    for start in range(0, len(calls), _AT_ONCE):
        yield calls[start : start + _AT_ONCE]


def _command(calls: Sequence[Call], script: str) -> list[Any]:
    keys, text = batch_of(calls)
    return ["EVALSHA" if script is SHA else "EVAL", script, len(keys), *keys, text]


async def _closing(client: Any) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await client.aclose()


def _package(preferred: str) -> Any:
    """The client that is installed, of two the preferred one."""
    others = ("valkey", "redis") if preferred == "valkey" else ("redis", "valkey")
    for name in others:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ImportError(f"no client for Redis or Valkey is installed: {_INSTALL}")


def _connected(address: Address, store: RedisStore) -> Any:
    """A client with settings of our own: short deadlines, and nothing is tried again."""
    package = _package(address.package).__name__
    asynchronous = importlib.import_module(f"{package}.asyncio")
    retry = importlib.import_module(f"{package}.asyncio.retry").Retry
    no_pause = importlib.import_module(f"{package}.backoff").NoBackoff
    options: dict[str, Any] = {
        "socket_timeout": store.timeout,
        "socket_connect_timeout": store.timeout,
        "retry": retry(no_pause(), 0),
        "max_connections": _CONNECTIONS,
        **address.options,
    }
    if address.kind == "cluster":
        cluster = importlib.import_module(f"{package}.asyncio.cluster")
        nodes = [cluster.ClusterNode(host, port) for host, port in address.hosts]
        made = cluster.ValkeyCluster if package == "valkey" else cluster.RedisCluster
        return made(startup_nodes=nodes, **_cluster_options(options, package))
    if address.kind == "sentinel":
        sentinel = importlib.import_module(f"{package}.asyncio.sentinel")
        of_sentinels = {
            "socket_timeout": store.timeout,
            "socket_connect_timeout": store.timeout,
            **address.sentinel_options,
        }
        watch = sentinel.Sentinel(address.hosts, sentinel_kwargs=of_sentinels, **options)
        return watch.master_for(address.service)
    scheme, _, rest = address.url.partition("://")
    own = "valkey" if package == "valkey" else "redis"
    scheme = scheme.replace("valkey", own).replace("redis", own)
    return asynchronous.from_url(f"{scheme}://{rest}", **options)


def _cluster_options(options: dict[str, Any], package: str) -> dict[str, Any]:
    """What a cluster's client calls those settings."""
    cluster: dict[str, Any] = {**options, "require_full_coverage": False}
    if package == "valkey" or "cluster_error_retry_attempts" in options:
        cluster["cluster_error_retry_attempts"] = 0
    return cluster


def _checked(client: Any) -> Any:
    """A client that was handed in; warns where it would do a call twice."""
    module = type(client).__module__
    if not module.startswith(("redis.asyncio", "valkey.asyncio")):
        raise TypeError(
            f"a store is at a URL, or a client of redis.asyncio or valkey.asyncio, not {client!r}"
        )
    retry = getattr(client, "retry", None) or client.get_retry()
    retries = getattr(retry, "_retries", 0)
    attempts = max(retries, getattr(client, "cluster_error_retry_attempts", 0))
    if attempts > 0 or attempts == -inf:
        warnings.warn(
            f"{client!r} tries failed calls again, up to {attempts} times: what was charged then is "
            f"charged twice. Make it with retry=Retry(NoBackoff(), 0), or give RedisStore the URL",
            RuntimeWarning,
            stacklevel=3,
        )
    return client
