"""What the control groups of this process allow it: a container's limits, not the machine's.

A process is in a group, and in all groups above that one. Each may limit it, so for the processor
the tightest one binds, and for memory the one that is closest to its limit. Linux tells the group
in `/proc/self/cgroup`, and in `/proc/self/mountinfo` which part of the tree is mounted where:

    3:cpu,cpuacct:/docker/ab                the group, in version 1: one tree per controller
    0::/docker/ab                           the group, in version 2: one tree for all
    ... /docker/ab /sys/fs/cgroup ... - cgroup2 ...     what is mounted, and where

A hybrid machine has both. A container sees its own group mounted as if it were the whole tree, and
in a namespace of its own the names begin there too; what lies above is then out of sight.

Which files there are is found out once. Each reading reads them anew, as limits change live. What
is missing, unreadable or makes no sense limits nothing: a guess would slow down a whole service.
"""

import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

__all__ = ["Cgroup", "CpuReading", "MemoryReading"]

_UNLIMITED: Final = 1 << 60  # bytes no machine has; version 1 says 9223372036854771712 for none
_SOME: Final = re.compile(rb"^some avg10=([0-9]{1,3}(?:\.[0-9]+)?) ", re.MULTILINE)
_ESCAPED: Final = re.compile(r"\\([0-3][0-7]{2})")

_Names: TypeAlias = tuple[str, ...]  # of a group and those above it, from the top


@dataclass(frozen=True, slots=True)
class CpuReading:
    """What the group with the tightest limit allows, and what it has had so far.

    limit: cores it allows, None without a limit.
    used: CPU seconds used so far by all its processes, None if not told.
    periods, throttled: periods so far, and those in which it had to stop; 0 if not told.
    throttled_for: seconds it stood still so far.
    """

    limit: float | None
    used: float | None
    periods: int
    throttled: int
    throttled_for: float


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """The group closest to its limit.

    used: bytes, without what the kernel can drop at once (inactive file pages).
    limit: bytes; the lower one where there are two.
    """

    used: int
    limit: int


class Cgroup:
    """The control groups of this process; on a system without them there is nothing to tell."""

    __slots__ = ("_cpu", "_memory", "_pressure")

    def __init__(self, root: Path = Path("/")) -> None:
        groups = _groups(_text(root / "proc/self/cgroup"))
        mounts = _mounts(_text(root / "proc/self/mountinfo")) or _usual_mounts(groups)
        unified, cpu, accounting, memory = (
            _levels(root, name, groups, mounts) for name in ("", "cpu", "cpuacct", "memory")
        )
        # From the top: of two equal limits the outer one binds, as more processes share it.
        self._cpu = [_Cpu(folder, folder / "cpu.max") for folder in unified.values()]
        for group, folder in cpu.items():
            limits = folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"
            # Maybe in another tree, where only a group of the same name has the same processes.
            usage = [accounting[group] / "cpuacct.usage"] if group in accounting else []
            self._cpu.append(_Cpu(folder, *limits, usage=usage))
        self._memory = [_Memory(folder, 2) for folder in unified.values()]
        self._memory += [_Memory(folder, 1) for folder in memory.values()]
        pressures = [folder / "memory.pressure" for folder in unified.values()]
        self._pressure = _there(*pressures[-1:], root / "proc/pressure/memory")

    def cpu(self) -> CpuReading | None:
        """The tightest limit of all groups; None where there is no limit at all."""
        tightest: tuple[float, _Cpu] | None = None
        for group in self._cpu:
            limit = group.limit()
            if limit is not None and (tightest is None or limit < tightest[0]):
                tightest = limit, group
        return None if tightest is None else tightest[1].reading(tightest[0])

    def memory(self) -> MemoryReading | None:
        """The group closest to its limit; None where no group limits memory."""
        readings = [reading for group in self._memory if (reading := group.reading()) is not None]
        return max(readings, key=lambda reading: reading.used / reading.limit, default=None)

    def memory_pressure(self) -> float | None:
        """The share of the last 10 seconds in which somebody waited for memory, 0 to 1.

        That of the group where the kernel tells it, else that of the machine, else None.
        """
        for path in self._pressure:
            found = _SOME.search(_read([path]))
            if found is not None and (percent := float(found[1])) <= 100:
                return percent / 100
        return None


class _Cpu:
    """The processor in one group: version 2 tells microseconds, version 1 nanoseconds."""

    __slots__ = ("_limits", "_stat", "_usage")

    def __init__(self, folder: Path, *limits: Path, usage: Sequence[Path] = ()) -> None:
        self._limits = _there(*limits)
        self._stat = _there(folder / "cpu.stat")
        self._usage = _there(*usage)

    def limit(self) -> float | None:
        """Cores: a quota and the period it is for, in one file or in two."""
        numbers = _read(self._limits).split()
        if len(numbers) != 2:
            return None
        quota, period = _number(numbers[0]), _number(numbers[1])  # "max" or -1: no limit
        return quota / period if quota and period else None

    def reading(self, limit: float) -> CpuReading:
        stat = _read(self._stat)
        used = _value(stat, b"usage_usec"), 1e6
        if used[0] is None:
            used = _number(_read(self._usage)), 1e9
        return CpuReading(
            limit,
            None if used[0] is None else used[0] / used[1],
            _value(stat, b"nr_periods") or 0,
            _value(stat, b"nr_throttled") or 0,
            (_value(stat, b"throttled_usec") or 0) / 1e6
            + (_value(stat, b"throttled_time") or 0) / 1e9,
        )


class _Memory:
    """Memory in one group."""

    __slots__ = ("_current", "_limits", "_stat", "_version")

    def __init__(self, folder: Path, version: Literal[1, 2]) -> None:
        limits = ("memory.limit_in_bytes",) if version == 1 else ("memory.max", "memory.high")
        current = "memory.usage_in_bytes" if version == 1 else "memory.current"
        self._version = version
        self._limits = [_there(folder / name) for name in limits]
        self._current = _there(folder / current)
        self._stat = _there(folder / "memory.stat")

    def reading(self) -> MemoryReading | None:
        limits = [_number(_read(path)) for path in self._limits]
        stat = b""
        if self._version == 1:
            # Tells of the groups above too, even of those that are out of sight here.
            stat = _read(self._stat)
            limits.append(_value(stat, b"hierarchical_memory_limit"))
        limit = min((some for some in limits if some and some < _UNLIMITED), default=None)
        if limit is None or (current := _number(_read(self._current))) is None:
            return None
        if self._version == 2:  # where adding it up is dear in large trees, so not in vain
            stat = _read(self._stat)
        inactive = _value(stat, b"total_inactive_file")
        if inactive is None:
            inactive = _value(stat, b"inactive_file") or 0
        return MemoryReading(max(0, current - inactive), limit)


# Reading: nothing here raises, and a file that is not there says nothing.


def _there(*paths: Path) -> list[str]:
    """Those of the paths at which there is something."""
    found = []
    for path in paths:
        try:
            path.stat()
        except (OSError, ValueError):
            continue
        found.append(str(path))
    return found


def _read(paths: list[str]) -> bytes:
    """What the small files hold, one after the other, with fewer calls than `open` makes."""
    texts = []
    for path in paths:
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            texts.append(os.read(file, 16384))
        except OSError:
            continue
        finally:
            os.close(file)
    return b" ".join(texts)


def _number(text: bytes) -> int | None:
    """A number that is not negative, of a length the kernel writes."""
    text = text.strip()
    return int(text) if len(text) <= 20 and text.isdigit() else None


def _value(stat: bytes, key: bytes) -> int | None:
    """The number after the key in a file with a key and a number in each line."""
    return _number((b"\n" + stat).partition(b"\n" + key + b" ")[2].partition(b"\n")[0])


# Finding the groups, once.


class _Mount(NamedTuple):
    """A tree, or a part of it, and where it can be seen."""

    controllers: frozenset[str]  # "" is version 2
    top: _Names  # the group that is seen at the mount point
    point: str


def _text(path: Path) -> str:
    try:
        return os.fsdecode(path.read_bytes())  # names need not be UTF-8
    except (OSError, ValueError):
        return ""


def _names(path: str) -> _Names:
    return tuple(name for name in path.split("/") if name)


def _groups(text: str) -> dict[str, str]:
    """The lines of `/proc/self/cgroup`: controllers as they are written there -> the group."""
    lines = (line.split(":", 2) for line in text.split("\n"))
    return {parts[1]: parts[2] for parts in lines if len(parts) == 3}


def _mounts(text: str) -> list[_Mount]:
    """The lines of `/proc/self/mountinfo` that are about control groups."""
    found: dict[str, _Mount] = {}  # by mount point: a later one hides an earlier one
    for line in text.split("\n"):
        before, _, after = line.partition(" - ")
        where, what = before.split(" "), after.split(" ")
        if len(where) < 5 or len(what) < 3 or what[0] not in ("cgroup", "cgroup2"):
            continue
        top, point = (_ESCAPED.sub(lambda code: chr(int(code[1], 8)), part) for part in where[3:5])
        controllers = what[2].split(",") if what[0] == "cgroup" else [""]
        found[point] = _Mount(frozenset(controllers), _names(top), point)
    return list(found.values())


def _usual_mounts(groups: dict[str, str]) -> list[_Mount]:
    """Where the trees are as a rule, for when the mounts are not told."""
    mounts = []
    for written in groups:
        for name in written.split(","):
            folders = (name, written) if name else ("unified", "")
            mounts += [
                _Mount(frozenset((name,)), (), f"/sys/fs/cgroup/{folder}") for folder in folders
            ]
    return mounts


def _levels(
    root: Path, controller: str, groups: dict[str, str], mounts: list[_Mount]
) -> dict[_Names, Path]:
    """The group of this process in one tree and those above it, from the top, with their folders.

    Of several mounts it is the one that shows most of them.
    """
    best: dict[_Names, Path] = {}
    for written, group in groups.items():
        if controller in written.split(","):
            for mount in mounts:
                if controller in mount.controllers:
                    levels = dict(_visible(root / mount.point.lstrip("/"), mount.top, group))
                    if len(levels) > len(best):
                        best = levels
    return best


def _visible(folder: Path, top: _Names, group: str) -> Iterator[tuple[_Names, Path]]:
    """The groups on the way from the mount point down to the group, as far as they are there."""
    names = _below(folder, top, _names(group))
    if names is not None:
        for length in range(len(names) + 1):
            level = folder.joinpath(*names[:length])
            if _there(level):
                yield top + names[:length], level


def _below(folder: Path, top: _Names, names: _Names) -> _Names | None:
    """The names from the mount point down to the group; None if it lies elsewhere."""
    above = top
    while above and above[:1] == names[:1]:
        above, names = above[1:], names[1:]
    if ".." in names or set(above) - {".."}:
        return None
    # In a namespace the names begin at its own top. A mount from outside, "/../..", begins above
    # that, and nothing tells the names in between: the group is the one that has this process.
    return _search(folder, len(above), names) if above else names


def _search(folder: Path, unknown: int, names: _Names) -> _Names:
    pattern = "/".join(["*"] * unknown + [glob.escape(name) for name in names] + ["cgroup.procs"])
    me = str(os.getpid())
    try:
        for processes in folder.glob(pattern):
            if me in _text(processes).split():
                return processes.parent.relative_to(folder).parts
    except (OSError, ValueError):
        pass
    return ()  # the group at the mount point is above this one in any case
