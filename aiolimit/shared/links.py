"""The way to an engine on one event loop: its connections, and the senders that use them."""

import asyncio
import contextvars
import importlib
import os
import random
import time
import weakref
from collections.abc import AsyncGenerator, Sequence
from inspect import Parameter, signature
from math import inf
from typing import Any, ClassVar, Final

from aiolimit.clock import LoopClock
from aiolimit.shared.address import Place, closing, package_of
from aiolimit.shared.breaker import Breaker
from aiolimit.shared.script import PACE, SCRIPT, SHA, Call, answers_of, batch_of, reset
from aiolimit.shared.sender import Batch, Sender
from aiolimit.shared.sharing import Sharing

__all__ = ["ClusterLink", "Link"]

_AT_ONCE: Final = 64  # calls in one run of the script: about a millisecond of the engine's
_LEARNING: Final = 10.0  # seconds that it may take to learn which node of a cluster has what


class Link:
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
        self._named: tuple[str, ...] | None = None  # older clients want to know what it is for
        self._clock = LoopClock()
        self._errors = importlib.import_module(f"{package_of(client)}.exceptions")
        self.only: Sender | None = self._sender_to("")
        pool = getattr(client, "connection_pool", None)  # those of a cluster are its nodes'
        if getattr(pool, "max_connections", inf) == 1:
            self.only.under_way = 1

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

    async def do(self, calls: Sequence[Call]) -> None:
        """Have calls done, of which nobody wants to know more. Raises what went wrong."""
        async with asyncio.timeout(self._timeout):
            for answer in await self._run(calls, Batch()):
                if isinstance(answer, Exception):
                    raise answer

    async def reset_all(self, start: str, now: float | None) -> None:
        """Forget what is charged to all keys that begin like that."""
        await self._begin()
        escaped = "".join(f"\\{sign}" if sign in "*?[]\\^" else sign for sign in start)
        pattern = f"{escaped}{{*".encode("utf-8", "surrogatepass")
        for node in await self._nodes():
            cursor = None
            while cursor != 0:
                async with asyncio.timeout(self._timeout):
                    scan = ("SCAN", cursor or 0, "MATCH", pattern, "COUNT", 1000)
                    cursor, keys = await node.execute_command(*scan, NEVER_DECODE=True)
                pacers = {key for key in keys if key.endswith(PACE)}
                calls = [reset([], [key], now) for key in pacers]
                await self.do([*calls, *(reset([key], [], now) for key in {*keys} - pacers)])

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

    def _recovered(self, was_silent: bool) -> None:
        for sharing in list(self.listeners):
            sharing.recovered(was_silent=was_silent)

    async def _begin(self) -> None:
        """Connections are closed when the event loop shuts its asynchronous generators down."""
        if self._place.owns and self._keeper is None:
            self._keeper = closing(self.client)
            await anext(self._keeper)

    async def _connect(self, batch: Batch) -> None:
        """Have a connection: what fails before that was not sent."""
        batch.is_sent = False
        pool = self.client.connection_pool
        if self._named is None:
            first, *_ = signature(pool.get_connection).parameters.values()
            self._named = ("EVALSHA",) if first.default is Parameter.empty else ()
        await pool.release(await pool.get_connection(*self._named))
        batch.is_sent = True

    async def _run(self, calls: Sequence[Call], batch: Batch) -> Sequence[bytes | Exception]:
        """Run calls, on a single server some in one run of the script."""
        await self._begin()
        await self._connect(batch)
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


class ClusterLink(Link):
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

    async def _connect(self, _batch: Batch) -> None:
        """Each node has connections of its own, so nobody knows."""

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
        made = [self._command(at, *one, NEVER_DECODE=True) for at, one in enumerate(commands)]
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
