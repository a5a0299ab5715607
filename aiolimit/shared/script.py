"""The words between this process and the script in the engine: packed calls, and their answers.

What a window holds is decoded into the same `Window` that counts in this process, in this
process's time. So everything that is told of a key, from `retry_after` to what is left, is worked
out by the same lines, whoever counts.
"""

from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files
from math import ceil, inf
from struct import Struct, unpack_from
from time import monotonic
from typing import Final, NamedTuple

from aiolimit.counts import Limits
from aiolimit.pacer import Pacer
from aiolimit.rate import Rate
from aiolimit.window import Window

__all__ = [
    "PACE",
    "SCRIPT",
    "SHA",
    "Answer",
    "Call",
    "HeardWindow",
    "NotSent",
    "Refused",
    "Shape",
    "answers_of",
    "batch_of",
    "beat",
    "census_of",
    "leave",
    "reset",
    "touching",
    "was_refused",
]

SCRIPT: Final = files("aiolimit.shared").joinpath("engine.lua").read_text("utf-8")
SHA: Final = sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()

_TAKE, _CHARGE, _GIVE_BACK, _DEBIT, _BEAT, _LEAVE, _RESET, _MOVE = range(8)
#: How the name of a pacer ends.
PACE: Final = b":pace"
_MICRO: Final = 1e6
_DOUBLE: Final = Struct("<d")
_WINDOW: Final = Struct("<ddI")
_PACER: Final = Struct("<dd")
_RUN: Final = Struct("<dI")
_ENTRY: Final = Struct("<dd")
_GIVE: Final = Struct("<dddd")
_CENSUS: Final = Struct("<dddd")
_COUNT: Final = Struct("<H")
_SINCE: Final = Struct("<dH")
_LENGTH: Final = Struct("<I")
_STATE: Final = Struct("<ddddddd")
_PACER_STATE: Final = Struct("<ddd")
_MOST: Final = 4_000_000_000  # of one cost in a run

#: A cost, and how many callers in a row ask for just that.
Run = tuple[float, int]
#: Seconds ago, and the cost that was admitted then.
Past = tuple[float, float]


class Refused(Exception):
    """The engine could not do one call of a batch, and did nothing of it."""

    @property
    def is_of_its_key(self) -> bool:
        """Whether the key holds something that is not ours; else the engine can do none."""
        return "WRONGTYPE" in str(self)


class NotSent(Exception):
    """A batch failed before anything of it was sent; why is its cause."""


def was_refused(error: Exception) -> bool:
    """Whether it was not done for sure: not sent, or the engine said so. Else nobody knows."""
    # The clients have their own classes of that name, and none of them is imported here.
    names = (kind.__name__ for kind in type(error).__mro__)
    return isinstance(error, Refused | NotSent) or "ResponseError" in names


class Call(NamedTuple):
    """One call of the script: its keys, and the rest packed."""

    keys: Sequence[bytes]
    text: bytes


class HeardWindow(Window):
    """A window as the engine has told of it.

    heard: when it did, by `time.monotonic`.
    told_at: when it did, by its own clock, microseconds: it has known the key then.
    born: since when it knows the key, by that clock; infinite if it does not.
    """

    __slots__ = ("born", "heard", "told_at")

    born: float
    heard: float
    told_at: float


class Answer(NamedTuple):
    """What the engine answered: the windows are those that were asked about, in order.

    granted: how many callers were let in; of what was given back how much was taken.
    at: the engine's time of it, microseconds: it means something to that engine only.
    heard: this process's time when the answer came.
    """

    granted: float
    at: float
    heard: float
    windows: list[HeardWindow]
    pacer: Pacer | None


class Shape:
    """Under what calls are made, for any key: the windows that apply, and their limits.

    ends: of the names of the windows, of the pacer if there is one, and of sets of seeds if there
        are some: the windows from before the periods were changed, the oldest set first.
    windows: how many there are, and whether there is a pacer.
    """

    __slots__ = ("_head", "_one", "ends", "has_pacer", "windows")

    def __init__(
        self,
        ends: Sequence[bytes],
        rates: Sequence[Rate],
        limits: Limits,
        sub_windows: int | None,
        burst: float | None,
        seeds: Sequence[Sequence[bytes]] = (),
    ) -> None:
        applied = [
            (end, rate, limit)
            for end, rate, limit in zip(ends, rates, limits, strict=True)
            if limit is not None
        ]
        self.ends = tuple(end for end, _, _ in applied)
        head = b"".join(
            _WINDOW.pack(limit, ceil(rate.per * _MICRO), sub_windows or 0)
            for _, rate, limit in applied
        )
        if burst is not None:
            self.ends += (PACE,)
            slowest = min((limit / rate.per for _, rate, limit in applied), default=inf)
            head += _PACER.pack(slowest / _MICRO, burst)
        for those in seeds:
            pairs = zip(those, limits, strict=True)
            self.ends += tuple(seed for seed, limit in pairs if limit is not None)
        self.windows = len(applied)
        self.has_pacer = burst is not None
        self._head = bytes((self.windows, self.has_pacer, len(seeds))) + head
        self._one = self._text(None, _TAKE, _COUNT.pack(1) + _RUN.pack(1, 1))

    def take(self, key: bytes, now: float | None, runs: Sequence[Run]) -> Call:
        """Let in as many of those callers as fit, in order; none only looks."""
        if now is None and len(runs) == 1 and runs[0] == (1, 1):
            return Call(self._keys(key), self._one)  # most are like that
        packed = [_RUN.pack(cost, min(count, _MOST)) for cost, count in runs]
        return self._call(key, now, _TAKE, _COUNT.pack(len(packed)) + b"".join(packed))

    def charge(self, key: bytes, now: float | None, cost: float) -> Call:
        """Charge the cost, whether it fits or not."""
        return self._call(key, now, _CHARGE, _DOUBLE.pack(cost))

    def move(self, key: bytes, now: float | None) -> Call:
        """Take over what the seeds have, also to a window that there is already."""
        return self._call(key, now, _MOVE, b"")

    def give_back(
        self,
        key: bytes,
        now: float | None,
        cost: float,
        at: float,
        fastest: float,
        born: float = inf,
    ) -> Call:
        """Give back what was granted at that time of the engine's.

        fastest: cost a second, the highest pace there has been since.
        born: since when the engine knows the key, as far as is known. If it has lost it since, it
            is told without what is given back here.
        """
        given = _GIVE.pack(cost, at, fastest / _MICRO, born)
        return self._call(key, now, _GIVE_BACK, given)

    def debit(
        self,
        key: bytes,
        now: float | None,
        since: float,
        everything: Sequence[Past],
        unknown: Sequence[Past],
    ) -> Call:
        """Charge what passed without the engine's knowledge, where it happened.

        since: a time of the engine's at which it has known the key. What it granted itself is in
            `everything`, and counts only if it has lost that since. -1 if nothing is known.
        """
        parts = [_SINCE.pack(since, len(everything))]
        parts += [_ENTRY.pack(age * _MICRO, cost) for age, cost in everything]
        parts.append(_COUNT.pack(len(unknown)))
        parts += [_ENTRY.pack(age * _MICRO, cost) for age, cost in unknown]
        return self._call(key, now, _DEBIT, b"".join(parts))

    def answer(self, raw: bytes, heard: float, into: HeardWindow | None = None) -> Answer:
        """Read an answer; `heard` is the time of this process when it came.

        into: a window to be written anew in place of making the first.
        """
        granted, at = _ENTRY.unpack_from(raw)
        offset = _ENTRY.size
        found: list[HeardWindow] = []
        for _ in range(self.windows):
            (length,) = _LENGTH.unpack_from(raw, offset)
            offset += _LENGTH.size
            if into is None or not length:
                into = HeardWindow()
            _read_window(into, raw, offset, length, at, heard)
            found.append(into)
            into = None
            offset += length
        pacer = None
        if self.has_pacer:
            (length,) = _LENGTH.unpack_from(raw, offset)
            pacer = Pacer()
            if length:
                _, since, ahead = _PACER_STATE.unpack_from(raw, offset + _LENGTH.size)
                pacer.at, pacer.ahead = heard - (at - since) / _MICRO, ahead
        return Answer(granted, at, heard, found, pacer)

    def _keys(self, key: bytes) -> tuple[bytes, ...]:
        ends = self.ends
        return (key + ends[0],) if len(ends) == 1 else tuple([key + end for end in ends])

    def _text(self, now: float | None, verb: int, rest: bytes) -> bytes:
        fixed = -1.0 if now is None else max(0.0, round(now * _MICRO))
        return _DOUBLE.pack(fixed) + bytes((verb,)) + self._head + rest

    def _call(self, key: bytes, now: float | None, verb: int, rest: bytes) -> Call:
        return Call(self._keys(key), self._text(now, verb, rest))


def touching(call: Call) -> Call:
    """The same call in so far as it writes, which changes nothing: to see whether that works."""
    verb, windows, pacer = call.text[8:11]
    if verb == _BEAT:
        return call
    head = 12 + windows * _WINDOW.size + pacer * _PACER.size
    text = call.text[:8] + bytes((_MOVE,)) + call.text[9:head]
    return Call(call.keys, text)


def reset(windows: Sequence[bytes], pacers: Sequence[bytes], now: float | None) -> Call:
    """Forget what is charged to some windows, and to a pacer if there is one."""
    fixed = -1.0 if now is None else max(0.0, round(now * _MICRO))
    text = _DOUBLE.pack(fixed) + bytes((_RESET, len(windows), len(pacers), 0))
    return Call((*windows, *pacers), text)


def beat(key: bytes, member: bytes, interval: float, since: float) -> Call:
    """Tell that a process lives; it is answered how many do, and how many have told so since.

    interval: seconds between two such calls. since: a time of the engine's, microseconds.
    """
    return Call((key,), _beat(_BEAT, interval, since) + member)


def leave(key: bytes, member: bytes) -> Call:
    """Tell that a process goes."""
    return Call((key,), _beat(_LEAVE, 1.0, 0.0) + member)


def _beat(verb: int, interval: float, since: float) -> bytes:
    head = _DOUBLE.pack(-1.0) + bytes((verb, 1, 0, 0))
    return head + _ENTRY.pack(interval * _MICRO, since)


class Census(NamedTuple):
    """How many processes live, how many have told so since, and the engine's time.

    is_new: whether the engine did not know the process that tells.
    """

    alive: int
    fresh: int
    at: float
    is_new: bool


def census_of(raw: bytes) -> Census:
    """Read the answer to `beat`."""
    alive, at, fresh, is_new = _CENSUS.unpack_from(raw)
    return Census(int(alive), int(fresh), at, bool(is_new))


def batch_of(calls: Sequence[Call]) -> tuple[list[bytes], bytes]:
    """The keys of those calls, and the calls as one text."""
    keys: list[bytes] = []
    parts: list[bytes] = []
    for its_keys, text in calls:
        keys += its_keys
        parts += (_LENGTH.pack(len(text)), text)
    return keys, b"".join(parts)


def answers_of(raw: bytes) -> list[bytes | Refused]:
    """The answers to such a batch, in order."""
    found: list[bytes | Refused] = []
    offset, end = 0, len(raw)
    while offset < end:
        (length,) = _LENGTH.unpack_from(raw, offset)
        offset += _LENGTH.size
        answer = raw[offset : offset + length]
        offset += length
        (granted,) = _DOUBLE.unpack_from(answer)
        if granted < 0:
            found.append(Refused(answer[_ENTRY.size :].decode("utf-8", "replace")))
        else:
            found.append(answer)
    return found


def _read_window(
    window: HeardWindow, raw: bytes, offset: int, length: int, at: float, heard: float
) -> None:
    window.heard = monotonic()
    window.told_at, window.born = at, inf
    if not length:
        return
    _, window.born, gone, closes, last, total, older = _STATE.unpack_from(raw, offset)
    window.gone = heard - (at - gone) / _MICRO
    window.closes = heard - (at - closes) / _MICRO
    window.last = heard - (at - last) / _MICRO
    # Costs as a user wrote them: whole numbers are told as such.
    window.total = whole if (whole := int(total)) == total else total
    window.older_total = whole if (whole := int(older)) == older else older
    window.first = 0
    cells = (length - _STATE.size) // 8
    if cells:
        flat = list(unpack_from(f"<{cells}d", raw, offset + _STATE.size))
        flat[::2] = [heard - (at - time) / _MICRO for time in flat[::2]]
        window.older = flat
    else:
        window.older = None
