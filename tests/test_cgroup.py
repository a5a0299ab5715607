"""The control groups of a fake machine, of all kinds there are, and once those of this one."""

import contextlib
import errno
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiolimit.load.cgroup import Cgroup, CpuReading, MemoryReading
from tests.serving import ROOT

GROUPS = "proc/self/cgroup"
MOUNTS = "proc/self/mountinfo"
V2 = "29 23 0:26 {top} /sys/fs/cgroup rw,nosuid shared:4 master:1 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "33 31 0:30 {top} /sys/fs/cgroup/{name} rw,nosuid shared:9 - cgroup cgroup rw,{name}\n"
OTHERS = "22 27 0:21 / /proc rw,relatime - proc proc rw\n27 1 254:0 / / rw - ext4 /dev/vda rw\n"
NONE = "9223372036854771712\n"  # what version 1 says for no limit
MIB = 1 << 20


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def machine(root: Path, files: dict[str, str]) -> Cgroup:
    write(root, files)
    return Cgroup(root)


def version2(group: str, top: str = "/") -> dict[str, str]:
    return {GROUPS: f"0::{group}\n", MOUNTS: OTHERS + V2.format(top=top)}


def version1(group: str, *names: str, top: str = "/") -> dict[str, str]:
    lines = [f"{number}:{name}:{group}\n" for number, name in enumerate(names, 2)]
    mounts = [V1.format(top=top, name=name) for name in names]
    return {GROUPS: "".join([*lines, "1:name=systemd:/\n"]), MOUNTS: OTHERS + "".join(mounts)}


def memory2(
    folder: str, most: str, current: int, inactive: int, high: str = "max"
) -> dict[str, str]:
    return {
        f"{folder}/memory.max": f"{most}\n",
        f"{folder}/memory.high": f"{high}\n",
        f"{folder}/memory.current": f"{current}\n",
        f"{folder}/memory.stat": f"anon 7\nactive_file 3\ninactive_file {inactive}\nslab 1\n",
    }


CPU_STAT_2 = """\
usage_usec 12500000
user_usec 10000000
system_usec 2500000
nr_periods 40
nr_throttled 8
throttled_usec 1250000
"""
CPU_STAT_1 = "nr_periods 40\nnr_throttled 8\nthrottled_time 1250000000\n"
MEMORY_STAT_1 = """\
cache 5
inactive_file 11
hierarchical_memory_limit 9223372036854771712
hierarchical_memsw_limit 9223372036854771712
total_cache 7
total_inactive_file 1048576
"""
BUSY = CpuReading(limit=0.5, used=12.5, periods=40, throttled=8, throttled_for=1.25)


# Version 2


def test_version_2(tmp_path: Path) -> None:
    cgroup = machine(tmp_path, version2("/app.slice") | {
        "sys/fs/cgroup/app.slice/cpu.max": "50000 100000\n",
        "sys/fs/cgroup/app.slice/cpu.stat": CPU_STAT_2,
        **memory2("sys/fs/cgroup/app.slice", str(64 * MIB), 20 * MIB, 4 * MIB),
    })  # fmt: skip
    assert cgroup.cpu() == BUSY
    assert cgroup.memory() == MemoryReading(used=16 * MIB, limit=64 * MIB)


def test_the_tightest_of_the_groups_above_binds_the_processor(tmp_path: Path) -> None:
    top = "sys/fs/cgroup"
    cgroup = machine(tmp_path, version2("/pods/pod/app") | {
        f"{top}/pods/cpu.max": "400000 100000\n",
        f"{top}/pods/pod/cpu.max": "50000 100000\n",
        f"{top}/pods/pod/cpu.stat": CPU_STAT_2,
        f"{top}/pods/pod/app/cpu.max": "200000 100000\n",
        f"{top}/pods/pod/app/cpu.stat": "usage_usec 1\nnr_periods 2\n",
    })  # fmt: skip
    assert cgroup.cpu() == BUSY


def test_of_two_equal_limits_the_outer_one_is_read(tmp_path: Path) -> None:
    top = "sys/fs/cgroup"
    cgroup = machine(tmp_path, version2("/pod/app") | {
        f"{top}/pod/cpu.max": "50000 100000\n",
        f"{top}/pod/cpu.stat": CPU_STAT_2,
        f"{top}/pod/app/cpu.max": "25000 50000\n",
        f"{top}/pod/app/cpu.stat": "usage_usec 1\n",
    })  # fmt: skip
    assert cgroup.cpu() == BUSY


def test_the_group_closest_to_its_limit_is_read_for_memory(tmp_path: Path) -> None:
    top = "sys/fs/cgroup"
    cgroup = machine(
        tmp_path,
        version2("/pods/pod/app")
        | memory2(f"{top}/pods", str(1000 * MIB), 500 * MIB, 0)
        # 90 of 100, by memory.high
        | memory2(f"{top}/pods/pod", str(200 * MIB), 95 * MIB, 5 * MIB, high=str(100 * MIB))
        | memory2(f"{top}/pods/pod/app", str(64 * MIB), 40 * MIB, 8 * MIB),
    )
    assert cgroup.memory() == MemoryReading(used=90 * MIB, limit=100 * MIB)


def test_a_namespace_begins_at_the_group(tmp_path: Path) -> None:
    cgroup = machine(tmp_path, version2("/") | {
        "sys/fs/cgroup/cpu.max": "50000 100000\n",
        "sys/fs/cgroup/cpu.stat": CPU_STAT_2,
        **memory2("sys/fs/cgroup", str(64 * MIB), 20 * MIB, 4 * MIB),
    })  # fmt: skip
    assert cgroup.cpu() == BUSY
    assert cgroup.memory() == MemoryReading(used=16 * MIB, limit=64 * MIB)


def test_a_mount_from_outside_the_namespace_is_searched_for_this_process(tmp_path: Path) -> None:
    top = "sys/fs/cgroup"
    cgroup = machine(tmp_path, version2("/[app]", top="/../..") | {
        f"{top}/pods/one/[app]/cgroup.procs": "1\n2\n",
        f"{top}/pods/one/[app]/cpu.max": "10000 100000\n",
        f"{top}/pods/cpu.max": "300000 100000\n",
        f"{top}/pods/two/[app]/cgroup.procs": f"1\n{os.getpid()}\n",
        f"{top}/pods/two/[app]/cpu.max": "200000 100000\n",
    })  # fmt: skip
    assert cgroup.cpu() == CpuReading(2.0, None, 0, 0, 0.0)


def test_a_mount_from_outside_where_this_process_is_not_found_is_still_above_it(
    tmp_path: Path,
) -> None:
    cgroup = machine(tmp_path, version2("/", top="/../..") | {
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/pods/one/cgroup.procs": "1\n2\n",
        "sys/fs/cgroup/pods/one/cpu.max": "10000 100000\n",
    })  # fmt: skip
    assert cgroup.cpu() == CpuReading(1.5, None, 0, 0, 0.0)


def test_a_group_outside_the_namespace_is_found_by_what_both_share(tmp_path: Path) -> None:
    cgroup = machine(tmp_path, version2("/../../app", top="/../..") | {
        "sys/fs/cgroup/app/cpu.max": "50000 100000\n",
    })  # fmt: skip
    assert cgroup.cpu() == CpuReading(0.5, None, 0, 0, 0.0)


@pytest.mark.parametrize(("group", "top"), [("/../other", "/"), ("/a", "/b"), ("/a", "/../b")])
def test_the_limits_of_a_group_that_is_not_above_this_process_are_not_its_own(
    tmp_path: Path, group: str, top: str
) -> None:
    cgroup = machine(tmp_path, version2(group, top) | {
        "sys/fs/cgroup/cpu.max": "50000 100000\n",
        "sys/fs/other/cpu.max": "50000 100000\n",
        "sys/fs/cgroup/a/cpu.max": "50000 100000\n",
    })  # fmt: skip
    assert cgroup.cpu() is None


def test_the_mount_that_shows_most_is_read(tmp_path: Path) -> None:
    own = "40 23 0:26 /pod/app /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    host = "41 23 0:26 / /host/with\\040space rw - cgroup2 cgroup2 rw\n"
    cgroup = machine(tmp_path, {
        GROUPS: "0::/pod/app\n",
        MOUNTS: own + host,
        "sys/fs/cgroup/cpu.max": "200000 100000\n",
        "host/with space/pod/app/cpu.max": "200000 100000\n",
        "host/with space/pod/cpu.max": "100000 100000\n",
    })  # fmt: skip
    assert cgroup.cpu() == CpuReading(1.0, None, 0, 0, 0.0)


def test_a_mount_hides_an_earlier_one_at_its_place(tmp_path: Path) -> None:
    cgroup = machine(tmp_path, {
        GROUPS: "0::/pod/app\n",
        MOUNTS: V2.format(top="/") + V2.format(top="/pod/app"),
        "sys/fs/cgroup/cpu.max": "50000 100000\n",
        "sys/fs/cgroup/pod/app/cpu.max": "10000 100000\n",
    })  # fmt: skip
    assert cgroup.cpu() == CpuReading(0.5, None, 0, 0, 0.0)


def test_max_is_no_limit(tmp_path: Path) -> None:
    cgroup = machine(tmp_path, version2("/app") | {
        "sys/fs/cgroup/app/cpu.max": "max 100000\n",
        "sys/fs/cgroup/app/cpu.stat": CPU_STAT_2,
        **memory2("sys/fs/cgroup/app", "max", 20 * MIB, 0),
    })  # fmt: skip
    assert cgroup.cpu() is None
    assert cgroup.memory() is None


# Version 1


def test_version_1(tmp_path: Path) -> None:
    cgroup = machine(tmp_path, version1("/app", "cpu", "cpuacct", "memory") | {
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpuacct/cpuacct.usage": "99000000000\n",
        "sys/fs/cgroup/cpu/app/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/app/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu/app/cpu.stat": CPU_STAT_1,
        "sys/fs/cgroup/cpuacct/app/cpuacct.usage": "12500000000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": NONE,
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{900 * MIB}\n",
        "sys/fs/cgroup/memory/memory.stat": MEMORY_STAT_1,
        "sys/fs/cgroup/memory/app/memory.limit_in_bytes": f"{64 * MIB}\n",
        "sys/fs/cgroup/memory/app/memory.usage_in_bytes": f"{20 * MIB}\n",
        "sys/fs/cgroup/memory/app/memory.stat": MEMORY_STAT_1,
    })  # fmt: skip
    assert cgroup.cpu() == BUSY
    assert cgroup.memory() == MemoryReading(used=19 * MIB, limit=64 * MIB)


def test_the_time_of_another_group_is_not_told(tmp_path: Path) -> None:
    files = version1("/app", "cpu", "cpuacct") | {
        "sys/fs/cgroup/cpu/app/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/app/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpuacct/cpuacct.usage": "99000000000\n",
        "sys/fs/cgroup/cpuacct/app/cpuacct.usage": "12500000000\n",
    }
    cgroup = machine(tmp_path, files | {GROUPS: "2:cpu:/app\n3:cpuacct:/\n"})
    assert cgroup.cpu() == CpuReading(0.5, None, 0, 0, 0.0)


def test_version_1_with_two_controllers_at_one_mount(tmp_path: Path) -> None:
    cgroup = machine(tmp_path, version1("/app", "cpu,cpuacct") | {
        "sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu,cpuacct/app/cpu.stat": CPU_STAT_1,
        "sys/fs/cgroup/cpu,cpuacct/app/cpuacct.usage": "12500000000\n",
    })  # fmt: skip
    assert cgroup.cpu() == BUSY


def test_version_1_in_a_container(tmp_path: Path) -> None:
    names = "cpu,cpuacct", "memory"
    cgroup = machine(tmp_path, version1("/docker/ab/worker", *names, top="/docker/ab") | {
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.stat": CPU_STAT_1,
        "sys/fs/cgroup/cpu,cpuacct/cpuacct.usage": "12500000000\n",
        "sys/fs/cgroup/cpu,cpuacct/worker/cpu.cfs_quota_us": "200000\n",
        "sys/fs/cgroup/cpu,cpuacct/worker/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{64 * MIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{20 * MIB}\n",
        "sys/fs/cgroup/memory/memory.stat": f"inactive_file {4 * MIB}\n",
    })  # fmt: skip
    assert cgroup.cpu() == BUSY
    assert cgroup.memory() == MemoryReading(used=16 * MIB, limit=64 * MIB)


def test_version_1_tells_of_a_limit_above_that_is_out_of_sight(tmp_path: Path) -> None:
    stat = MEMORY_STAT_1.replace(NONE, f"{32 * MIB}\n", 1)
    cgroup = machine(tmp_path, version1("/docker/ab", "memory", top="/docker/ab") | {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": NONE,
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{20 * MIB}\n",
        "sys/fs/cgroup/memory/memory.stat": stat,
    })  # fmt: skip
    assert cgroup.memory() == MemoryReading(used=19 * MIB, limit=32 * MIB)


@pytest.mark.parametrize("none", [NONE, f"{1 << 60}\n", "9223372036854775807\n", "-1\n", "0\n"])
def test_version_1_without_a_limit(tmp_path: Path, none: str) -> None:
    cgroup = machine(tmp_path, version1("/app", "cpu", "memory") | {
        "sys/fs/cgroup/cpu/app/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/app/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu/app/cpu.stat": CPU_STAT_1,
        "sys/fs/cgroup/memory/app/memory.limit_in_bytes": none,
        "sys/fs/cgroup/memory/app/memory.usage_in_bytes": f"{20 * MIB}\n",
        "sys/fs/cgroup/memory/app/memory.stat": MEMORY_STAT_1,
    })  # fmt: skip
    assert cgroup.cpu() is None
    assert cgroup.memory() is None


def test_hybrid(tmp_path: Path) -> None:
    unified = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    files = version1("/app", "cpu,cpuacct", "memory")
    cgroup = machine(tmp_path, files | {
        GROUPS: files[GROUPS] + "0::/app\n",
        MOUNTS: files[MOUNTS] + unified,
        "sys/fs/cgroup/unified/app/cgroup.procs": "1\n",
        "sys/fs/cgroup/unified/app/cpu.stat": "usage_usec 5\n",
        "sys/fs/cgroup/unified/app/memory.pressure": "some avg10=2.50 avg60=0.00 total=1\n",
        "sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu,cpuacct/app/cpu.stat": CPU_STAT_1,
        "sys/fs/cgroup/cpu,cpuacct/app/cpuacct.usage": "12500000000\n",
        "sys/fs/cgroup/memory/app/memory.limit_in_bytes": f"{64 * MIB}\n",
        "sys/fs/cgroup/memory/app/memory.usage_in_bytes": f"{20 * MIB}\n",
        "sys/fs/cgroup/memory/app/memory.stat": MEMORY_STAT_1,
    })  # fmt: skip
    assert cgroup.cpu() == BUSY
    assert cgroup.memory() == MemoryReading(used=19 * MIB, limit=64 * MIB)
    assert cgroup.memory_pressure() == 0.025


# What is not told


@pytest.mark.parametrize("folder", ["sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/cpu"])
@pytest.mark.parametrize("mounts", [{}, {MOUNTS: OTHERS}, {MOUNTS: "no such\n - cgroup\n"}])
def test_where_the_mounts_are_not_told_version_1_is_at_its_usual_place(
    tmp_path: Path, folder: str, mounts: dict[str, str]
) -> None:
    cgroup = machine(tmp_path, mounts | {
        GROUPS: "4:cpu,cpuacct:/docker/ab\n5:memory:/docker/ab\n0::/docker/ab\n",
        f"{folder}/cpu.cfs_quota_us": "50000\n",
        f"{folder}/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes": "2000\n",
        "sys/fs/cgroup/memory/docker/ab/memory.usage_in_bytes": "1000\n",
        "sys/fs/cgroup/unified/docker/ab/memory.pressure": "some avg10=1.00 avg60=0.00\n",
    })  # fmt: skip
    assert cgroup.cpu() == CpuReading(0.5, None, 0, 0, 0.0)
    assert cgroup.memory() == MemoryReading(used=1000, limit=2000)
    assert cgroup.memory_pressure() == 0.01


def test_where_the_mounts_are_not_told_version_2_is_at_its_usual_place(tmp_path: Path) -> None:
    cgroup = machine(tmp_path, {
        GROUPS: "0::/app\n",
        "sys/fs/cgroup/app/cpu.max": "50000 100000\n",
    })  # fmt: skip
    assert cgroup.cpu() == CpuReading(0.5, None, 0, 0, 0.0)


def test_where_the_mounts_are_not_told_a_hybrid_machine_has_version_2_below(tmp_path: Path) -> None:
    cgroup = machine(tmp_path, {
        GROUPS: "0::/\n",
        "sys/fs/cgroup/unified/memory.pressure": "some avg10=1.00 avg60=0.00\n",
    })  # fmt: skip
    assert cgroup.memory_pressure() == 0.01


@pytest.mark.parametrize("name", ["a\x00b", "\udcff", "a" * 300, "gone (deleted)", "a:b", "**"])
def test_a_group_that_is_not_there_still_has_those_above_it(tmp_path: Path, name: str) -> None:
    files = {"sys/fs/cgroup/pod/cpu.max": "50000 100000\n", MOUNTS: V2.format(top="/")}
    write(tmp_path, files | {GROUPS: ""})
    (tmp_path / GROUPS).write_bytes(f"0::/pod/{name}\n".encode(errors="surrogateescape"))
    assert Cgroup(tmp_path).cpu() == CpuReading(0.5, None, 0, 0, 0.0)


@pytest.mark.parametrize("files", [{}, {MOUNTS: V2.format(top="/")}, {GROUPS: "0::/\n"}])
def test_a_system_without_groups_has_nothing_to_tell(tmp_path: Path, files: dict[str, str]) -> None:
    cgroup = machine(tmp_path, files)
    assert cgroup.cpu() is None
    assert cgroup.memory() is None
    assert cgroup.memory_pressure() is None


def test_a_root_that_is_not_there(tmp_path: Path) -> None:
    cgroup = Cgroup(tmp_path / "none")
    assert (cgroup.cpu(), cgroup.memory(), cgroup.memory_pressure()) == (None, None, None)


@pytest.mark.parametrize("missing", ["memory.max", "memory.current"])
def test_without_a_limit_or_without_the_usage_there_is_nothing_to_tell(
    tmp_path: Path, missing: str
) -> None:
    files = version2("/") | memory2("sys/fs/cgroup", str(64 * MIB), 20 * MIB, 4 * MIB)
    del files[f"sys/fs/cgroup/{missing}"]
    assert machine(tmp_path, files).memory() is None


def test_what_cannot_be_dropped_is_all_where_nothing_tells_it(tmp_path: Path) -> None:
    files = version2("/") | memory2("sys/fs/cgroup", str(64 * MIB), 20 * MIB, 4 * MIB)
    del files["sys/fs/cgroup/memory.stat"]
    assert machine(tmp_path, files).memory() == MemoryReading(used=20 * MIB, limit=64 * MIB)


def test_a_count_that_lags_behind_is_not_below_nothing(tmp_path: Path) -> None:
    files = version2("/") | memory2("sys/fs/cgroup", str(64 * MIB), 3 * MIB, 4 * MIB)
    assert machine(tmp_path, files).memory() == MemoryReading(used=0, limit=64 * MIB)


GARBAGE = ["", "\n", "max\n", "0\n", "-5\n", "1e6\n", "1_000\n", "٣\n", "9" * 5000, "nan", "\x00"]


@pytest.mark.parametrize("text", [*GARBAGE, "50000\n", "0 100000", "50000 0", "-1 5", "1 2 3"])
def test_a_limit_of_the_processor_that_makes_no_sense_is_none(tmp_path: Path, text: str) -> None:
    cgroup = machine(tmp_path, version2("/pod/app") | {
        "sys/fs/cgroup/pod/cpu.max": text,
        "sys/fs/cgroup/pod/app/cpu.max": "50000 100000\n",
        "sys/fs/cgroup/pod/app/cpu.stat": CPU_STAT_2,
    })  # fmt: skip
    assert cgroup.cpu() == BUSY
    write(tmp_path, {"sys/fs/cgroup/pod/app/cpu.max": text})
    assert cgroup.cpu() is None


@pytest.mark.parametrize("text", GARBAGE)
def test_counts_that_make_no_sense_are_not_told(tmp_path: Path, text: str) -> None:
    cgroup = machine(tmp_path, version2("/") | {
        "sys/fs/cgroup/cpu.max": "50000 100000\n",
        "sys/fs/cgroup/cpu.stat": f"usage_usec\nnr_periods {text}\nxnr_throttled 4\n",
    })  # fmt: skip
    assert cgroup.cpu() == CpuReading(0.5, None, 0, 0, 0.0)


@pytest.mark.parametrize("text", GARBAGE)
def test_a_limit_of_memory_that_makes_no_sense_is_none(tmp_path: Path, text: str) -> None:
    files = version2("/app") | memory2("sys/fs/cgroup/app", text, 20 * MIB, 0, high="max")
    cgroup = machine(tmp_path, files)
    assert cgroup.memory() is None
    write(tmp_path, {"sys/fs/cgroup/app/memory.high": f"{40 * MIB}\n"})
    assert cgroup.memory() == MemoryReading(used=20 * MIB, limit=40 * MIB)


def test_a_tighter_group_above_that_cannot_be_read(tmp_path: Path) -> None:
    top = "sys/fs/cgroup"
    # A folder in place of the file: reading it fails for the superuser too.
    (tmp_path / f"{top}/pod/cpu.max").mkdir(parents=True)
    (tmp_path / f"{top}/pod/memory.max").mkdir()
    cgroup = machine(tmp_path, version2("/pod/app") | {
        f"{top}/pod/memory.current": f"{60 * MIB}\n",
        f"{top}/pod/app/cpu.max": "50000 100000\n",
        f"{top}/pod/app/cpu.stat": CPU_STAT_2,
        **memory2(f"{top}/pod/app", str(64 * MIB), 20 * MIB, 4 * MIB),
    })  # fmt: skip
    before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
    for _ in range(10):
        assert cgroup.cpu() == BUSY
        assert cgroup.memory() == MemoryReading(used=16 * MIB, limit=64 * MIB)
    if before:
        assert len(list(Path("/proc/self/fd").iterdir())) == before  # all were closed


def test_limits_change_live_and_files_that_come_later_are_not_seen(tmp_path: Path) -> None:
    top = "sys/fs/cgroup"
    cgroup = machine(tmp_path, version2("/pod/app") | {
        f"{top}/pod/app/cpu.max": "50000 100000\n",
        f"{top}/pod/app/cpu.stat": CPU_STAT_2,
        f"{top}/pod/cgroup.procs": "1\n",
        **memory2(f"{top}/pod/app", str(64 * MIB), 20 * MIB, 4 * MIB),
    })  # fmt: skip
    assert cgroup.cpu() == BUSY
    assert cgroup.memory() == MemoryReading(used=16 * MIB, limit=64 * MIB)
    write(tmp_path, {
        f"{top}/pod/app/cpu.max": "300000 200000\n",
        f"{top}/pod/app/cpu.stat": CPU_STAT_2.replace("usage_usec 125", "usage_usec 130"),
        f"{top}/pod/cpu.max": "10000 100000\n",
        **memory2(f"{top}/pod/app", str(32 * MIB), 30 * MIB, 1 * MIB),
    })  # fmt: skip
    assert cgroup.cpu() == CpuReading(1.5, 13.0, 40, 8, 1.25)
    assert cgroup.memory() == MemoryReading(used=29 * MIB, limit=32 * MIB)
    write(tmp_path, {f"{top}/pod/app/cpu.max": "max 100000\n"})
    assert cgroup.cpu() is None
    (tmp_path / f"{top}/pod/app/memory.current").unlink()
    assert cgroup.memory() is None


# Memory pressure


SOME = "some avg10={} avg60=1.00 avg300=1.00 total=5\nfull avg10=9.00 avg60=1.00 total=5\n"


def test_the_pressure_of_the_group_and_else_that_of_the_machine(tmp_path: Path) -> None:
    own, whole = "sys/fs/cgroup/pod/app/memory.pressure", "proc/pressure/memory"
    cgroup = machine(tmp_path, version2("/pod/app") | {
        own: SOME.format("12.50"),
        "sys/fs/cgroup/pod/memory.pressure": SOME.format("50.00"),
        whole: SOME.format("75.00"),
    })  # fmt: skip
    assert cgroup.memory_pressure() == 0.125
    write(tmp_path, {own: SOME.format("0.00")})
    assert cgroup.memory_pressure() == 0.0
    write(tmp_path, {own: SOME.format("100.00")})
    assert cgroup.memory_pressure() == 1.0
    (tmp_path / own).unlink()  # as if the kernel no longer told it
    assert cgroup.memory_pressure() == 0.75
    assert Cgroup(tmp_path).memory_pressure() == 0.75


@pytest.mark.parametrize("text", ["-1.00", "nan", "inf", "100.01", "1e3", "", "1.0.0"])
def test_a_pressure_that_makes_no_sense_is_not_told(tmp_path: Path, text: str) -> None:
    assert machine(tmp_path, {"proc/pressure/memory": SOME.format(text)}).memory_pressure() is None


# Any text at all

WORDS = st.sampled_from([
    *("/", "/..", "/../..", "/a", "/a/b", "..", ".", "*", "**", "[", "-", ":", "\\040", "\\777"),
    *("cpu", "cpuacct", "memory", "cpu,cpuacct", "name=systemd", "cgroup", "cgroup2", "rw,cpu"),
    *("0", "2", "-1", "max", "50000", "100000", "1e9", "9223372036854771712"),
    *("some", "avg10=1.00", "avg10=nan", "usage_usec", "nr_periods", "throttled_time"),
    *("inactive_file", "hierarchical_memory_limit", "/sys/fs/cgroup", "/sys/fs/cgroup/cpu"),
])  # fmt: skip
TEXTS = st.one_of(
    st.binary(max_size=60),
    st.text(max_size=60).map(lambda text: text.encode()),
    st.lists(st.tuples(WORDS, st.sampled_from([" ", "\n", ":", "", "/", "\x00"])), max_size=30).map(
        lambda parts: "".join(word + space for word, space in parts).encode()
    ),
)
GROUP_TEXTS = st.one_of(
    st.sampled_from([b"0::/a/b\n", b"0::/\n", b"2:cpu,cpuacct:/a/b\n3:memory:/a/b\n0::/../x\n"]),
    st.lists(st.tuples(WORDS, WORDS), max_size=5).map(
        lambda lines: "".join(f"1:{names}:{group}\n" for names, group in lines).encode()
    ),
    TEXTS,
)
MOUNT_TEXTS = st.one_of(
    st.just(V2.format(top="/").encode()),
    st.just((V1.format(top="/", name="cpu") + V1.format(top="/a", name="memory")).encode()),
    st.lists(st.tuples(WORDS, WORDS, WORDS, WORDS), max_size=5).map(
        lambda lines: "".join(
            f"1 2 0:1 {top} {point} rw - {kind} x rw,{options}\n"
            for top, point, kind, options in lines
        ).encode()
    ),
    TEXTS,
)
FILES = [
    f"sys/fs/cgroup/{folder}{name}"
    for folder in ("", "a/", "a/b/", "cpu/", "cpu/a/", "cpu,cpuacct/a/", "memory/", "memory/a/")
    for name in (
        *("cpu.max", "cpu.stat", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpuacct.usage"),
        *("memory.max", "memory.high", "memory.current", "memory.stat", "memory.pressure"),
        *("memory.limit_in_bytes", "memory.usage_in_bytes", "cgroup.procs"),
    )
] + ["proc/pressure/memory"]
NUMBERS = st.one_of(
    st.integers(-2, 1 << 65).map(lambda number: b"%d\n" % number),
    st.tuples(st.integers(-1, 10**6), st.integers(-1, 10**6)).map(lambda pair: b"%d %d\n" % pair),
)


CONTENTS = st.dictionaries(st.sampled_from(FILES), st.one_of(NUMBERS, TEXTS), max_size=20)
# What makes sense, for the rest to be put on top of it.
WHOLE = [
    version2("/a/b")
    | {"sys/fs/cgroup/a/cpu.max": "50000 100000\n", "sys/fs/cgroup/a/cpu.stat": CPU_STAT_2}
    | memory2("sys/fs/cgroup/a", str(64 * MIB), 20 * MIB, 4 * MIB),
    version1("/a", "cpu,cpuacct", "memory")
    | {
        "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{64 * MIB}\n",
        "sys/fs/cgroup/memory/a/memory.usage_in_bytes": f"{20 * MIB}\n",
    },
    {},
]


def sensible(value: float | None) -> bool:
    return value is None or (math.isfinite(value) and value >= 0)


@settings(max_examples=200)
@given(
    whole=st.sampled_from(WHOLE),
    groups=st.one_of(st.none(), GROUP_TEXTS),
    mounts=st.one_of(st.none(), MOUNT_TEXTS),
    files=CONTENTS,
    later=CONTENTS,
)
def test_no_text_makes_it_raise_or_tell_nonsense(
    whole: dict[str, str],
    groups: bytes | None,
    mounts: bytes | None,
    files: dict[str, bytes],
    later: dict[str, bytes],
) -> None:
    special = {GROUPS: groups, MOUNTS: mounts}
    files |= {name: text for name, text in special.items() if text is not None}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root, whole)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(text)
        cgroup = Cgroup(root)
        for _ in range(2):
            cpu, memory, pressure = cgroup.cpu(), cgroup.memory(), cgroup.memory_pressure()
            if cpu is not None:
                assert cpu.limit is not None
                assert cpu.limit > 0
                assert math.isfinite(cpu.limit)
                assert sensible(cpu.used)
                assert sensible(cpu.throttled_for)
                assert min(cpu.periods, cpu.throttled) >= 0
            if memory is not None:
                assert memory.used >= 0
                assert 0 < memory.limit < 1 << 60
            assert sensible(pressure)
            assert pressure is None or pressure <= 1
            for name, text in later.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(text)


# This machine


@contextlib.contextmanager
def half_a_core() -> Iterator[Path]:
    """A new group that may use half a core, or a skip that says why there is none."""
    top = Path("/sys/fs/cgroup")
    first, unified = top / "cpu", top / "cgroup.subtree_control"
    if (first / "cpu.shares").exists():
        group, limits = first, {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}
    elif unified.exists():
        if "cpu" not in unified.read_text().split():
            pytest.skip("cgroup v2 hands no cpu controller down to new groups here")
        group, limits = top, {"cpu.max": "50000 100000"}
    else:
        pytest.skip(f"there is no cpu control group below {top}")
    group /= f"aiolimit-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        pytest.skip(f"no group can be made here: {error}")
    try:
        for name, text in limits.items():
            (group / name).write_text(text)
        yield group
    finally:
        for _ in range(50):
            try:
                group.rmdir()
                break
            except OSError:  # a process that has just ended may still be counted
                time.sleep(0.02)


CHILD = """
import os, sys, time
from pathlib import Path
from aiolimit.load.cgroup import Cgroup
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
cgroup = Cgroup()
until = time.monotonic() + 0.6
while time.monotonic() < until:
    pass
reading = cgroup.cpu()
print(reading.limit, reading.periods >= 2, reading.throttled >= 1, reading.throttled_for > 0.05)
"""


def test_a_real_group_of_half_a_core() -> None:
    with half_a_core() as group:
        command = [sys.executable, "-c", CHILD, str(group)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=30)
        assert done.stdout.split() == ["0.5", "True", "True", "True"], done.stderr
    assert not group.exists()


def test_this_machine_whatever_it_is() -> None:
    cgroup = Cgroup()
    cpu, memory = cgroup.cpu(), cgroup.memory()
    assert cpu is None or (cpu.limit is not None and cpu.limit > 0)
    assert memory is None or 0 <= memory.used <= 2 * memory.limit
    assert sensible(cgroup.memory_pressure())
