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
import contextvars
import functools
import importlib
import os
import random
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, ClassVar, Final, Self, get_args

from aiolimit.admission import Admission
from aiolimit.arguments import check_count, number
from aiolimit.clock import LoopClock
from aiolimit.identity import OneOfAKind
from aiolimit.shared.address import Place, closing, is_cluster, package_of
from aiolimit.shared.admission import SharedAdmission, SharedShadowAdmission
from aiolimit.shared.breaker import Breaker
from aiolimit.shared.script import SCRIPT, SHA, Call, answers_of, batch_of
from aiolimit.shared.sender import Sender
from aiolimit.shared.sharing import Policy, Sharing

__all__ = ["RedisStore"]

_AT_ONCE: Final = 64  # calls in one run of the script: about a millisecond of the engine's
_LEARNING: Final = 10.0  # seconds that it may take to learn which node of a cluster has what


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
        self._link: _Link | None = None

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

    def _linked(self) -> "_Link":
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
            link = _ClusterLink if is_cluster(client) else _Link
            self._link = link(client, self._place, self.timeout)
        return self._link


class _Link:
    """The connections to the engine on one event loop, and what is sent there."""

    at_once: ClassVar[int] = _AT_ONCE

    def __init__(self, client: Any, place: Place, timeout: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.member = f"{os.getpid()}-{random.getrandbits(64):016x}".encode()
        self.listeners: weakref.WeakSet[Sharing] = weakref.WeakSet()
        self.client = client
        self._place = place
        self._timeout = timeout
        self._senders: dict[str, Sender] = {}
        self._keeper: AsyncGenerator[None] | None = None
        self._clock = LoopClock()
        self._errors = importlib.import_module(f"{package_of(client)}.exceptions")
        self.only: Sender | None = self._sender_to("")

    def time(self) -> float:
        """The time by which the engine is tried again."""
        return time.monotonic()

    def sender(self, key: bytes) -> Sender:  # noqa: ARG002
        """What sends to the node that has the key."""
        return self._sender_to("")

    def _sender_to(self, node: str) -> Sender:
        sender = self._senders.get(node)
        if sender is None:
            name = f"{self._place.shown} ({node})" if node else self._place.shown
            sender = self._senders[node] = Sender(
                *(
                    name,
                    self._run,
                    self._timeout,
                    self._clock,
                    Breaker(),
                    self._silenced,
                    self._recovered,
                )
            )
        return sender

    @property
    def senders(self) -> Sequence[Sender]:
        """All there are."""
        return tuple(self._senders.values())

    async def delete(self, keys: list[bytes]) -> None:
        """Delete keys that are in one slot."""
        await self._begin()
        async with asyncio.timeout(self._timeout):
            await self._do("DEL", keys)

    async def delete_all(self, start: str) -> None:
        """Delete all keys of windows that begin like that."""
        await self._begin()
        escaped = "".join(f"\\{sign}" if sign in "*?[]\\^" else sign for sign in start)
        pattern = f"{escaped}{{*".encode("utf-8", "surrogatepass")
        for node in await self._nodes():
            cursor = None
            while cursor != 0:
                async with asyncio.timeout(self._timeout):
                    scan = ("SCAN", cursor or 0, "MATCH", pattern, "COUNT", 1000)
                    cursor, keys = await node.execute_command(*scan, NEVER_DECODE=True)
                    await self._do("UNLINK", keys)

    async def _do(self, verb: str, keys: Sequence[bytes]) -> None:
        for answer in await self._execute([[verb, key] for key in keys]):
            if isinstance(answer, Exception):
                raise answer

    async def close(self) -> None:
        """Send what is left, and close what was opened."""
        for sender in self.senders:
            await sender.close()
        if self._keeper is not None:
            await self._keeper.aclose()

    def forget_connections(self) -> None:
        """The event loop of the connections has ended."""
        if self.only and self.loop.is_closed():
            self.client.connection_pool.reset()

    def _silenced(self) -> None:
        for sharing in list(self.listeners):
            sharing.on_silence()

    def _recovered(self) -> None:
        for sharing in list(self.listeners):
            sharing.recovered()

    async def _begin(self) -> None:
        """Connections are closed when the event loop shuts its asynchronous generators down."""
        if self._place.owns and self._keeper is None:
            self._keeper = closing(self.client)
            await anext(self._keeper)

    async def _run(self, calls: Sequence[Call]) -> Sequence[bytes | Exception]:
        """Run calls, on a single server some in one run of the script."""
        await self._begin()
        starts = range(0, len(calls), self.at_once)
        groups = [calls[start : start + self.at_once] for start in starts]
        found = await self._execute([_command(group, SHA) for group in groups])
        no_script = self._errors.NoScriptError
        again = [at for at, one in enumerate(found) if isinstance(one, no_script)]
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
        errors = [str(one) for one in answers if isinstance(one, Exception)]
        if self.only and any("READONLY" in error for error in errors):  # it is master no more
            await self.client.connection_pool.disconnect(inuse_connections=False)
        return answers

    async def _execute(self, commands: list[list[Any]]) -> list[Any]:
        """Have commands done: for each the answer, or the error of the engine's."""
        if len(commands) == 1:
            try:
                return [await self.client.execute_command(*commands[0], NEVER_DECODE=True)]
            except self._errors.NoScriptError as error:
                return [error]
        pipeline = self.client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command, NEVER_DECODE=True)
        return list(await pipeline.execute(raise_on_error=False))

    async def _nodes(self) -> Sequence[Any]:
        """What has keys."""
        return (self.client,)


class _ClusterLink(_Link):
    """The same for a cluster: each node has a sender, and fails by itself.

    The client knows which node has what, and follows keys that have moved. But where a node does
    not answer, some of its versions close the connections to all, try again, or never ask who has
    taken over. So nodes are sent to directly, and that is asked here, when a node is tried again.
    """

    at_once = 1  # they are in different slots

    def __init__(self, client: Any, place: Place, timeout: float) -> None:
        super().__init__(client, place, timeout)
        self.only = None
        self._learning: asyncio.Task[Exception | None] | None = None
        module = importlib.import_module(f"{package_of(client)}.asyncio.cluster")
        self._command = module.PipelineCommand
        errors = self._errors
        self._elsewhere = errors.MovedError, errors.AskError, errors.TryAgainError

    def sender(self, key: bytes) -> Sender:
        """What sends to the node that has the key."""
        node = self._node(key)
        return self._sender_to("" if node is None else node.name)

    def _node(self, key: bytes) -> Any:
        try:
            return self.client.get_node_from_key(key)
        except Exception:  # noqa: BLE001 (nothing is known of the cluster yet, or not of this)
            return None

    async def close(self) -> None:
        """As always."""
        for sender in self.senders:
            await sender.close()
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.wait((self._learning,))
        await super().close()

    async def _execute(self, commands: list[list[Any]]) -> list[Any]:
        keys = [command[3 if command[0].startswith("EVAL") else 1] for command in commands]
        nodes = [self._node(key) for key in keys]
        silent = {
            node.name: key
            for node, key in zip(nodes, keys, strict=True)
            if node is not None and self._is_silent(node)
        }
        if None in nodes or any([await self._is_replaced(*one) for one in silent.items()]):
            await self._learn()
            nodes = [self.client.get_node_from_key(key) for key in keys]
        made = [
            self._command(at, *command, NEVER_DECODE=True) for at, command in enumerate(commands)
        ]
        groups: dict[str, tuple[Any, list[Any]]] = {}
        for node, one in zip(nodes, made, strict=True):
            groups.setdefault(node.name, (node, []))[1].append(one)
        await asyncio.gather(*(_execute_on(*group) for group in groups.values()))
        for one in made:
            if isinstance(one.result, self._elsewhere):
                try:
                    one.result = await self.client.execute_command(*one.args, NEVER_DECODE=True)
                except Exception as error:  # noqa: BLE001 (others have their answers)
                    one.result = error
        return [one.result for one in made]

    def _is_silent(self, node: Any) -> bool:
        return self._sender_to(node.name).breaker.is_open

    async def _is_replaced(self, silent: str, key: bytes) -> bool:
        """Whether another node says that the key is not on that one any more, or cannot tell.

        Only then is the client asked to look around: for that it may close connections in use.
        """
        others = [node for node in self.client.get_primaries() if not self._is_silent(node)]
        if not others:
            return True
        asked = self._command(0, "GET", key)
        await _execute_on(random.choice(others), [asked])  # noqa: S311
        is_told = isinstance(moved := asked.result, self._errors.MovedError)
        return not is_told or f"{moved.host}:{moved.port}" != silent

    async def _nodes(self) -> Sequence[Any]:
        if not self.client.get_primaries():
            await self._learn()
        return tuple(self.client.get_primaries())

    async def _learn(self) -> None:
        """Ask which node has what. That goes on where a batch waits for it no longer."""
        if self._learning is None or self._learning.done():
            self._learning = self.loop.create_task(self._ask(), context=contextvars.Context())
        if error := await asyncio.shield(self._learning):
            raise error

    async def _ask(self) -> Exception | None:
        try:
            async with asyncio.timeout(_LEARNING):
                await self.client.nodes_manager.initialize()
        except Exception as error:  # noqa: BLE001 (whoever waits for it raises it)
            return error
        return None


def _command(calls: Sequence[Call], script: str) -> list[Any]:
    keys, text = batch_of(calls)
    return ["EVALSHA" if script is SHA else "EVAL", script, len(keys), *keys, text]


async def _execute_on(node: Any, commands: Sequence[Any]) -> None:
    try:
        await node.execute_pipeline(commands)
    except Exception as error:  # noqa: BLE001 (other nodes have answered)
        for one in commands:
            one.result = one.result or error
