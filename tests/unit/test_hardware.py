"""Thread counts and topology, read from made-up /sys and /proc trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun import hardware


class FakeMachine:
    """Writes the kernel files that a machine or a container would show, below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def cpus(self, allowed: str, siblings: list[tuple[int, ...]]) -> None:
        """`siblings` holds one tuple of logical CPUs a physical core."""
        self.write("proc/self/status", f"Name:\tpython\nCpus_allowed_list:\t{allowed}")
        for core in siblings:
            for cpu in core:
                path = f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"
                self.write(path, hardware.format_cpu_list(core))

    def quota_v2(self, limit: str, group: str = "/") -> None:
        self.write("proc/self/cgroup", f"0::{group}")
        self.write(f"sys/fs/cgroup{group.rstrip('/')}/cpu.max", limit)


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


EIGHT_CORES = [(core, core + 8) for core in range(8)]


@pytest.mark.parametrize(
    ("limit", "threads"),
    [
        ("400000 100000", 4),
        ("350000 100000", 3),
        ("50000 100000", 1),
        ("1200000 100000", 8),
        ("max 100000", 8),
    ],
)
def test_quota_rounds_down_and_never_exceeds_the_cores(
    machine: FakeMachine, limit: str, threads: int
) -> None:
    machine.cpus("0-15", EIGHT_CORES)
    machine.quota_v2(limit)
    assert hardware.default_threads(machine.root).count == threads


def test_reason_names_the_quota_and_the_cores(machine: FakeMachine) -> None:
    machine.cpus("0-15", EIGHT_CORES)
    machine.quota_v2("350000 100000")
    reason = hardware.default_threads(machine.root).reason
    assert "3.5" in reason and "8 physical cores" in reason and "0-15" in reason


def test_cpuset_of_four_logical_cpus_is_two_physical_cores(machine: FakeMachine) -> None:
    machine.cpus("0-1,8-9", EIGHT_CORES)
    assert hardware.default_threads(machine.root).count == 2


def test_cpuset_of_four_physical_cores_is_four_threads(machine: FakeMachine) -> None:
    machine.cpus("0-3", EIGHT_CORES)
    assert hardware.default_threads(machine.root).count == 4


@pytest.mark.parametrize(
    ("siblings", "order"),
    [
        ([(0, 4), (1, 5), (2, 6)], (0, 1, 2, 4, 5, 6)),
        ([(0, 1), (2, 3), (4, 5)], (0, 2, 4, 1, 3, 5)),
        ([(0,), (1, 2)], (0, 1, 2)),
    ],
)
def test_threads_are_pinned_to_every_core_before_any_sibling(
    machine: FakeMachine, siblings: list[tuple[int, ...]], order: tuple[int, ...]
) -> None:
    machine.cpus(hardware.format_cpu_list(order), siblings)
    assert hardware.pinning_order(machine.root) == order


def test_older_kernels_name_the_siblings_file_differently(machine: FakeMachine) -> None:
    machine.cpus("0-1", [])
    for cpu in (0, 1):
        machine.write(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", "0-1")
    assert hardware.physical_cores((0, 1), machine.root) == 1


def test_unknown_topology_counts_every_cpu(machine: FakeMachine) -> None:
    machine.cpus("0-2", [])
    choice = hardware.default_threads(machine.root)
    assert choice.count == 3
    assert "no CPU quota" in choice.reason


def test_smallest_quota_on_the_way_up_holds(machine: FakeMachine) -> None:
    machine.cpus("0-15", EIGHT_CORES)
    machine.quota_v2("600000 100000", group="/pods/pod1/container")
    machine.write("sys/fs/cgroup/pods/cpu.max", "250000 100000")
    assert hardware.cpu_quota(machine.root) == 2.5
    assert hardware.default_threads(machine.root).count == 2


def test_quota_of_cgroup_v1(machine: FakeMachine) -> None:
    machine.cpus("0-15", EIGHT_CORES)
    machine.write("proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/docker/abc\n0::/")
    # Inside the container the group's files are at the root of the mount.
    machine.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "350000")
    machine.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000")
    assert hardware.default_threads(machine.root).count == 3


def test_unlimited_cgroup_v1(machine: FakeMachine) -> None:
    machine.write("proc/self/cgroup", "1:cpu:/")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert hardware.cpu_quota(machine.root) is None


def test_empty_tree_is_one_thread(machine: FakeMachine) -> None:
    assert hardware.default_threads(machine.root).count == 1
    assert hardware.numa_nodes(machine.root) == []
    assert hardware.huge_pages(machine.root).transparent == "unknown"
    assert hardware.processor_name(machine.root) == "unknown"


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0", (0,)),
        ("0-3", (0, 1, 2, 3)),
        ("8,0-2", (0, 1, 2, 8)),
        ("0-59,120-179", (*range(60), *range(120, 180))),
        ("0-7:2/4", (0, 1, 4, 5)),
        ("", ()),
    ],
)
def test_cpu_lists(text: str, cpus: tuple[int, ...]) -> None:
    assert hardware.parse_cpu_list(text) == cpus
    assert hardware.parse_cpu_list(hardware.format_cpu_list(cpus)) == cpus


def test_bad_cpu_list_is_named() -> None:
    with pytest.raises(ValueError, match="0-x"):
        hardware.parse_cpu_list("0-x")


def test_format_joins_neighbours() -> None:
    assert hardware.format_cpu_list((9, 0, 1, 2, 5)) == "0-2,5,9"


def test_numa_nodes_with_interleaved_cpus(machine: FakeMachine) -> None:
    machine.write("sys/devices/system/node/node1/cpulist", "60-119,180-239")
    machine.write("sys/devices/system/node/node0/cpulist", "0-59,120-179")
    machine.write("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:  1024 kB")
    first, second = hardware.numa_nodes(machine.root)
    assert (first.index, first.memory_bytes) == (0, 1 << 20)
    assert first.cpus == (*range(60), *range(120, 180))
    assert (second.index, second.memory_bytes) == (1, 0)
    assert len(second.cpus) == 120 and not set(first.cpus) & set(second.cpus)


def test_huge_pages(machine: FakeMachine) -> None:
    machine.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
    machine.write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "16")
    machine.write("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0")
    assert hardware.huge_pages(machine.root) == hardware.HugePages(
        "madvise", {2048: 16, 1048576: 0}
    )
