"""The choice of a level: every gate that fails falls to the next level and is named."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from forerun import _native
from forerun.engine import isa_report, read_bandwidth

ALL = (
    "avx2",
    "os_avx",
    "avx512",
    "os_avx512",
    "avx512_bf16",
    "amx",
    "os_amx",
    "amx_palette",
    "amx_permission",
)
BUILT = {
    level["name"]
    for level in isa_report(forced="")["levels"]
    if not level["reason"].startswith("build")
}


def cpu_without(*missing: str) -> _native.CpuFeatures:
    cpu = _native.CpuFeatures()
    for feature in ALL:
        setattr(cpu, feature, feature not in missing)
    return cpu


@pytest.mark.skipif("amx" not in BUILT, reason="the compiler cannot build the amx level")
@pytest.mark.parametrize(
    ("missing", "selected", "failed", "gate"),
    [
        ((), "amx", None, ""),
        (("amx",), "avx512_bf16", "amx", "CPUID"),
        (("os_amx",), "avx512_bf16", "amx", "XCR0"),
        (("amx_palette",), "avx512_bf16", "amx", "palette"),
        (("amx_permission",), "avx512_bf16", "amx", "permission"),
        (("avx512_bf16",), "avx512", "avx512_bf16", "CPUID"),
        (("avx512",), "avx2", "avx512", "CPUID"),
        (("os_avx512",), "avx2", "avx512", "XCR0"),
        (("avx2",), "scalar", "avx2", "CPUID"),
        (("os_avx",), "scalar", "avx2", "XCR0"),
    ],
)
def test_each_gate_falls_to_the_next_level_and_is_named(
    missing: tuple[str, ...], selected: str, failed: str | None, gate: str
) -> None:
    report = isa_report(cpu_without(*missing), forced="")
    assert report["selected"] == selected
    for level in report["levels"]:
        assert level["available"] == (level["reason"] == "")
        if level["name"] == failed:
            assert level["reason"].startswith(gate)


def test_forcing_what_cannot_run_is_an_error_that_names_the_gate() -> None:
    with pytest.raises(ValueError, match=r"'avx2' cannot run here .*CPUID"):
        isa_report(cpu_without("avx2"), forced="avx2")
    with pytest.raises(ValueError, match="'sse9' is unknown; the levels are amx, "):
        isa_report(forced="sse9")


def test_a_level_that_can_run_may_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_ISA", "scalar")
    assert isa_report()["selected"] == "scalar"


def test_the_permission_may_be_assumed_for_emulators_alone() -> None:
    """Only that gate is skipped: without tiles in CPUID the level stays unavailable."""
    code = "from forerun import _native; print(_native.detect_cpu().amx_permission)"
    environment = {**os.environ, "FORERUN_AMX_ASSUME_PERMISSION": "1"}
    run = [sys.executable, "-c", code]
    out = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    cpu = _native.detect_cpu()
    assert out.stdout.strip() == str(cpu.amx and cpu.os_amx and cpu.amx_palette)


def test_the_caller_of_a_pinned_pool_gets_its_processors_back() -> None:
    """Otherwise all threads and processes that it starts later would share one processor."""
    before = os.sched_getaffinity(0)
    read_bandwidth(len(before), gigabytes=0.01, repeats=1)
    assert os.sched_getaffinity(0) == before


def test_more_threads_than_processors_are_refused() -> None:
    with pytest.raises(ValueError, match="threads is 1000, but this process may use"):
        read_bandwidth(1000)
