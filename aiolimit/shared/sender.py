"""What goes to one node of the engine: everything of one tick of the loop together.

1. Callers never touch a socket. They leave a job, and are told; so a cancelled caller cannot spoil
   a connection, and nobody waits for a connection to be free.
2. At most two batches are under way. What comes meanwhile goes with the next one.
3. A batch has a deadline. When it fails, nothing of it is sent again: what may have been done is
   counted as done. What was not sent yet fails with it, so that nobody waits for two deadlines.
4. While the breaker is open nothing is sent but one call now and then, which nobody waits for.
"""

import asyncio
import contextvars
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from math import ceil, inf
from typing import Final, Protocol

from aiolimit.clock import Clock, Timer
from aiolimit.shared.breaker import Breaker
from aiolimit.shared.script import Call, NotSent, Refused, touching

__all__ = ["Batch", "Engine", "Job", "Sender"]

_UNDER_WAY: Final = 2
_MOST: Final = 128  # calls in a batch: while the engine does one, the next is made
_FEW: Final = 32  # that are not worth two batches
_COMPLAINTS: Final = 60.0  # seconds between two lines of the log about single calls
_KEPT: Final = 10_000  # corrections that wait for an engine that is silent

_log = logging.getLogger("aiolimit")


class Batch:
    """What is known of one: whether it was sent, or may have been."""

    __slots__ = ("is_sent",)

    def __init__(self) -> None:
        self.is_sent = True


#: Runs calls on a node: one answer each, or the error that one of them met.
Engine = Callable[[Sequence[Call], Batch], Awaitable[Sequence[bytes | Exception]]]


class Job(Protocol):
    """One thing that is asked of the engine.

    keeps: whether it can wait for an engine that is silent, as a correction can.
    leads: whether the one behind it goes in the same batch, as two may overtake each other.
    """

    keeps: bool
    leads: bool

    def compose(self) -> Call | None:
        """The call, as it is wanted by now; None if it is not any more."""
        ...

    def answer(self, raw: bytes) -> None:
        """It was done."""
        ...

    def fail(self, error: Exception) -> None:
        """It was not done, or nobody knows whether it was."""
        ...


class Sender:
    """The batches to one node, on one event loop.

    name: of the node, for the log.
    timeout: seconds that a batch may take.
    on_silence: called when the engine is not asked any more.
    on_recovery: called when it answers after it has failed, with whether it was silent meanwhile.
    """

    def __init__(
        self,
        name: str,
        run: Engine,
        timeout: float,
        clock: Clock,
        breaker: Breaker,
        on_silence: Callable[[], object],
        on_recovery: Callable[[bool], object],
    ) -> None:
        self.name = name
        self.breaker = breaker
        self.loop = asyncio.get_running_loop()
        self.batches = 0  # sent so far
        self.calls = 0  # in them
        self.under_way = _UNDER_WAY  # at most, as many as there are connections
        self._run = run
        self._timeout = timeout
        self._clock = clock
        self._on_silence = on_silence
        self._on_recovery = on_recovery
        self._jobs: deque[Job] = deque()
        self._kept: deque[Job] = deque(maxlen=_KEPT)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_due = False
        self._retry: Timer | None = None
        self._failed_call: Call | None = None
        self._complained_at = -inf
        self.last_error: Exception | None = None

    @property
    def is_busy(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self._tasks or self._jobs)

    def put(self, job: Job) -> None:
        """Send a job with the next batch. Who may not wait asks the breaker before."""
        if self.breaker.is_open:
            self._refuse(job, ConnectionError(f"{self.name} does not answer"))
            return
        self._jobs.append(job)
        if not self._is_due and len(self._tasks) < self.under_way:
            self._is_due = True
            self.loop.call_soon(self._flush)

    async def close(self) -> None:
        """Send what is left, and stop trying."""
        if self._retry is not None:
            self._retry.cancel()
        while self.is_busy:
            if self._tasks:
                await asyncio.wait(self._tasks)
            else:
                await asyncio.sleep(0)

    def _flush(self) -> None:
        self._is_due = False
        while self._jobs and (free := self.under_way - len(self._tasks)) > 0:
            self._send_some(min(_MOST, max(_FEW, ceil(len(self._jobs) / free))))

    def _send_some(self, most: int) -> None:
        jobs: list[Job] = []
        calls: list[Call] = []
        leads = False
        while self._jobs and (len(jobs) < most or leads):
            job = self._jobs.popleft()
            leads = job.leads
            try:
                call = job.compose()
            except Exception as error:  # noqa: BLE001 (one key's own methods; the others go on)
                self._report(error)
                self._end(job, error)
                continue
            if call is not None:
                jobs.append(job)
                calls.append(call)
        if jobs:
            # Nobody's context: a batch is sent for many.
            send = self._send(jobs, calls)
            task = self.loop.create_task(send, context=contextvars.Context())
            self._tasks.add(task)
            task.add_done_callback(self._after)

    def _after(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._jobs and not self._is_due:
            self._flush()

    async def _send(self, jobs: Sequence[Job], calls: Sequence[Call]) -> None:
        self.batches += 1
        self.calls += len(calls)
        batch = Batch()
        try:
            async with asyncio.timeout(self._timeout):
                answers = await self._run(calls, batch)
        except Exception as error:  # noqa: BLE001 (whatever it is, the callers' policy decides)
            failure: Exception = error
            if not batch.is_sent:
                failure = NotSent(f"{type(error).__name__}: {error}")
                failure.__cause__ = error
            self._fail(jobs, calls[0], failure)
            return
        except asyncio.CancelledError:
            self._fail(jobs, calls[0], ConnectionError("the batch was cancelled"))
            raise
        errors = [answer for answer in answers if isinstance(answer, Exception)]
        if len(errors) == len(jobs) and not all(map(_is_of_its_key, errors)):
            self._fail(jobs, calls[0], errors[0])
            return
        self._succeed()
        for job, answer in zip(jobs, answers, strict=True):
            if isinstance(answer, Exception):
                self._complain(answer)
                self._end(job, answer)
                continue
            try:
                job.answer(answer)
            except Exception as error:  # noqa: BLE001 (one key's own methods; the others go on)
                self._report(error)
                self._end(job, error)

    def _fail(self, jobs: Sequence[Job], call: Call, error: Exception) -> None:
        self._failed_call, self.last_error = call, error
        now = self._clock.time()
        opens = self.breaker.failed(now, random.random())  # noqa: S311
        if opens:
            _log.warning(
                "%s does not answer (%s: %s): it is not asked for now, and tried again in %.1f s",
                *(self.name, type(error).__name__, error, self.breaker.retry_at - now),
            )
        if self.breaker.is_open:
            self._retry_later(now)
        unsent = list(self._jobs)
        self._jobs.clear()
        for job in jobs:
            self._end(job, error)
        for job in unsent:
            self._refuse(job, error)
        if opens:
            self._on_silence()

    def _refuse(self, job: Job, error: Exception) -> None:
        """A job that was not sent: it fails, or waits until the engine is back."""
        if job.keeps:
            self._kept.append(job)
            if not self.breaker.is_open:
                self._put_kept()
        else:
            self._end(job, error)

    def _end(self, job: Job, error: Exception) -> None:
        """It failed, for good."""
        try:
            job.fail(error)
        except Exception as raised:  # noqa: BLE001
            self._report(raised)

    def _succeed(self) -> None:
        has_failed = self.breaker.failed_in_a_row > 0
        was_silent = self.breaker.succeeded()
        if was_silent:
            _log.warning("%s answers again", self.name)
            self._put_kept()
        if has_failed:
            self._on_recovery(was_silent)

    def _put_kept(self) -> None:
        kept = list(self._kept)
        self._kept.clear()
        for job in kept:
            self.put(job)

    def _retry_later(self, now: float) -> None:
        if self._retry is not None:
            self._retry.cancel()
        delay = max(0.0, self.breaker.retry_at - now)
        self._retry = self._clock.call_later(delay, self._try)

    def _try(self) -> None:
        self._retry = None
        if self._failed_call is not None and not self.loop.is_closed():
            task = self.loop.create_task(self._probe(self._failed_call))
            self._tasks.add(task)
            task.add_done_callback(self._after)

    async def _probe(self, call: Call) -> None:
        """One real call that writes, for nobody."""
        try:
            async with asyncio.timeout(self._timeout):
                (answer,) = await self._run((touching(call),), Batch())
            if isinstance(answer, Exception) and not _is_of_its_key(answer):
                raise answer
        except Exception:  # noqa: BLE001 (it is still silent: that is what was asked)
            now = self._clock.time()
            self.breaker.failed(now, random.random())  # noqa: S311
            self._retry_later(now)
        else:
            self._succeed()

    def _complain(self, error: Exception) -> None:
        """Log that one call failed, and not each time."""
        self.last_error = error
        now = self._clock.time()
        if now - self._complained_at >= _COMPLAINTS:
            self._complained_at = now
            _log.error("%s: one call failed, and others may have: %s", self.name, error)

    def _report(self, error: Exception) -> None:
        message = f"{self.name}: an answer could not be handled"
        self.loop.call_exception_handler({"message": message, "exception": error})


def _is_of_its_key(error: Exception) -> bool:
    """Whether what went wrong is the matter of one key, which holds what is not ours."""
    return isinstance(error, Refused) and error.is_of_its_key
