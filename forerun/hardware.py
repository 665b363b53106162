"""What of the machine this process may use: CPUs, physical cores, quota, NUMA nodes, huge pages.

Owns reading /sys, /proc and the cgroup files, below a root that tests can replace. Refuses to know
models and kernels, and never pins or sets anything.

Neither `os.cpu_count()` nor the affinity mask shows a quota, and an affinity mask counts SMT
siblings as if they were cores; a process that starts more threads than it has cores is throttled
for most of every period. So the thread count comes from `default_threads` alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class ThreadChoice:
    """How many threads to compute with (at least 1), and why, in one phrase."""

    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A memory node: its number, its CPUs, and its memory in bytes (0 where it is not told)."""

    index: int
    cpus: tuple[int, ...]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class HugePages:
    """`transparent` is the kernel's choice ("always", "madvise", "never", or "unknown");
    `reserved` maps a page size in kB to the number of pages set aside."""

    transparent: str
    reserved: dict[int, int]


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Reads the kernel's list format, such as "0-59,120-179" or "0-30:2/4", in ascending order.

    Raises ValueError that holds the text where it is not in that format.
    """
    cpus: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+)/(\d+))?)?", part)
        if match is None:
            raise ValueError(f"not a list of CPUs: {text!r} (at {part!r}); expected such as 0-3,8")
        first, last, used, group = (int(number) if number else None for number in match.groups())
        assert first is not None
        if last is None:
            cpus.add(first)
            continue
        for start in range(first, last + 1, group or last + 1):
            cpus.update(range(start, min(start + (used or last + 1), last + 1)))
    return tuple(sorted(cpus))


def format_cpu_list(cpus: Sequence[int]) -> str:
    """The shortest list in the kernel's format: (0, 1, 2, 8) is "0-2,8"."""
    parts: list[str] = []
    ordered = sorted(cpus)
    start = 0
    for index, cpu in enumerate(ordered):
        if index + 1 < len(ordered) and ordered[index + 1] == cpu + 1:
            continue
        parts.append(str(cpu) if start == index else f"{ordered[start]}-{cpu}")
        start = index + 1
    return ",".join(parts)


def allowed_cpus(root: Path = ROOT) -> tuple[int, ...]:
    """The CPUs of this process's affinity mask, which a cpuset narrows as well."""
    status = _read(root / "proc/self/status") or ""
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)", status, re.MULTILINE)
    if match is not None:
        return parse_cpu_list(match.group(1))
    return parse_cpu_list(_read(root / "sys/devices/system/cpu/online") or "0")


def cores(cpus: Sequence[int], root: Path = ROOT) -> list[tuple[int, ...]]:
    """These logical CPUs by physical core, both in ascending order: SMT siblings are together.

    A CPU whose topology the kernel does not tell counts as a core of its own.
    """
    siblings_of: dict[str, list[int]] = {}
    for cpu in sorted(cpus):
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = _read(topology / "core_cpus_list") or _read(topology / "thread_siblings_list")
        siblings_of.setdefault(siblings or str(cpu), []).append(cpu)
    return sorted(map(tuple, siblings_of.values()))


def physical_cores(cpus: Sequence[int], root: Path = ROOT) -> int:
    """How many physical cores these logical CPUs sit on."""
    return len(cores(cpus, root))


def pinning_order(root: Path = ROOT) -> tuple[int, ...]:
    """The allowed CPUs in the order in which threads should be pinned to them: one of each core
    first, so that no two threads share a core before every core has one."""
    by_core = cores(allowed_cpus(root), root)
    layers = zip_longest(*by_core)
    return tuple(cpu for layer in layers for cpu in layer if cpu is not None)


def cpu_quota(root: Path = ROOT) -> float | None:
    """The CPU time that the cgroup grants, in CPUs (3.5 is three and a half); None: no limit.

    Every level up to the root of the mount may set a limit, and the smallest holds. In a container
    the path of the group is often not visible; its own files then are at the mount's root.
    """
    quotas: list[float] = []
    for line in (_read(root / "proc/self/cgroup") or "0::/").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if hierarchy == "0" and not controllers:
            mounts, read = ["sys/fs/cgroup", "sys/fs/cgroup/unified"], _quota_v2
        elif "cpu" in controllers.split(","):
            mounts, read = [f"sys/fs/cgroup/{controllers}", "sys/fs/cgroup/cpu"], _quota_v1
        else:
            continue
        for mount in mounts:
            below = Path(group.lstrip("/"))
            for folder in (below, *below.parents):
                quota = read(root / mount / folder)
                if quota is not None:
                    quotas.append(quota)
    return min(quotas, default=None)


def default_threads(root: Path = ROOT) -> ThreadChoice:
    """One thread a physical core, and no more than the quota, rounded down; at least 1."""
    cpus = allowed_cpus(root)
    cores = physical_cores(cpus, root)
    reason = f"{_count(cores, 'physical core')} in the allowed CPUs {format_cpu_list(cpus)}"
    quota = cpu_quota(root)
    if quota is None:
        return ThreadChoice(max(1, cores), f"{reason}, no CPU quota")
    whole = max(1, math.floor(quota))
    if whole < cores:
        return ThreadChoice(whole, f"the CPU quota of {quota:g} rounded down; {reason}")
    return ThreadChoice(max(1, cores), f"{reason}; the CPU quota of {quota:g} allows as many")


def numa_nodes(root: Path = ROOT) -> list[NumaNode]:
    """The memory nodes in ascending order; empty where the kernel tells none."""
    nodes: list[NumaNode] = []
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        match = re.search(r"MemTotal:\s*(\d+) kB", _read(folder / "meminfo") or "")
        nodes.append(
            NumaNode(
                index=int(folder.name.removeprefix("node")),
                cpus=parse_cpu_list(_read(folder / "cpulist") or ""),
                memory_bytes=int(match.group(1)) * 1024 if match else 0,
            )
        )
    return sorted(nodes, key=lambda node: node.index)


def huge_pages(root: Path = ROOT) -> HugePages:
    """How the kernel hands out huge pages."""
    setting = _read(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    match = re.search(r"\[(\w+)\]", setting)
    reserved: dict[int, int] = {}
    for folder in (root / "sys/kernel/mm/hugepages").glob("hugepages-*kB"):
        size = int(folder.name.removeprefix("hugepages-").removesuffix("kB"))
        reserved[size] = int(_read(folder / "nr_hugepages") or 0)
    return HugePages(match.group(1) if match else "unknown", dict(sorted(reserved.items())))


def processor_name(root: Path = ROOT) -> str:
    """The processor's own name, or "unknown"."""
    match = re.search(r"^model name\s*:\s*(.+)$", _read(root / "proc/cpuinfo") or "", re.MULTILINE)
    return match.group(1).strip() if match else "unknown"


def _quota_v2(folder: Path) -> float | None:
    fields = (_read(folder / "cpu.max") or "max").split()
    return None if fields[0] == "max" else int(fields[0]) / int(fields[1])


def _quota_v1(folder: Path) -> float | None:
    quota = int(_read(folder / "cpu.cfs_quota_us") or -1)
    period = int(_read(folder / "cpu.cfs_period_us") or 0)
    return quota / period if quota > 0 and period > 0 else None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _read(path: Path) -> str | None:
    """A small kernel file, stripped; None where it is missing, empty or may not be read."""
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
