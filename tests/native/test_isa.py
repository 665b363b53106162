"""The choice of a level: every gate that fails falls to the next level and is named."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry

from forerun import _native
from forerun.cli import main
from forerun.engine import isa_report, read_bandwidth
from tests.fixtures.drafting import drafting_pair
from tests.fixtures.scripted_target import ScriptedTarget
from tests.fixtures.verify_server import scripted_server

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


needs_amx_built = pytest.mark.skipif(
    "amx" not in BUILT, reason="the compiler cannot build the amx level"
)
AMX_GATES = {
    "amx": "CPUID: the processor has no AMX-TILE with AMX-BF16",
    "os_amx": "XCR0: the operating system does not save AMX tiles",
    "amx_palette": "palette: CPUID leaf 1D offers no palette 1 with eight tiles of 1 KiB",
    "amx_permission": "permission: arch_prctl(ARCH_REQ_XCOMP_PERM) was refused",
}


@pytest.fixture(params=AMX_GATES)
def amx_gate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A processor that has everything but one gate of AMX: what is said of that gate."""
    missing: str = request.param
    monkeypatch.setattr(_native, "detect_cpu", lambda: cpu_without(missing))
    monkeypatch.delenv("FORERUN_ISA", raising=False)
    return AMX_GATES[missing]


@needs_amx_built
def test_doctor_names_the_gate_of_amx(amx_gate: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "--no-bandwidth"]) == 0
    report = json.loads(capsys.readouterr().out)["engine"]["isa"]
    assert report["selected"] == "avx512_bf16"
    assert report["levels"][0] == {"name": "amx", "available": False, "reason": amx_gate}
    assert main(["doctor", "--no-bandwidth"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"amx not available: {amx_gate}" in printed


@needs_amx_built
async def test_the_metrics_of_both_servers_name_the_gate_of_amx(amx_gate: str) -> None:
    target = ScriptedTarget(lambda *_: 0)
    target.info = dataclasses.replace(target.info, isa="avx512_bf16")
    async with scripted_server(target) as server:
        verify_registry = server.metrics.registry
    async with drafting_pair() as pair:
        draft_registry = pair.server.metrics.registry
    for registry in (verify_registry, draft_registry):

        def value(level: str, gate: str, registry: CollectorRegistry = registry) -> float | None:
            return registry.get_sample_value("forerun_isa_info", {"level": level, "gate": gate})

        assert value("amx", amx_gate) == 0
        assert value("avx512_bf16", "") == 1
        assert value("scalar", "") == 0


@needs_amx_built
@pytest.mark.parametrize("command", ["doctor", "bench engine", "serve-verify", "serve-draft"])
def test_a_forced_level_that_cannot_run_is_one_line_of_error(command: str) -> None:
    """The gates as they are here; where all of them hold, there is nothing to refuse."""
    levels = isa_report(forced="")["levels"]
    if levels[0]["available"]:
        pytest.skip("this processor runs every level")
    run = [sys.executable, "-m", "forerun.cli", *command.split()]
    if command.startswith("serve"):
        run += ["--listen", "127.0.0.1:0"]
    environment = {**os.environ, "FORERUN_ISA": "amx"}
    out = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=120)
    assert out.returncode == 1
    printed = " ".join((out.stdout + out.stderr).split())
    assert f"ISA level 'amx' cannot run here ({levels[0]['reason']})" in printed
    assert "Traceback" not in printed


@pytest.mark.skipif("avx512_bf16" not in BUILT, reason="the compiler cannot build the level")
def test_slow_products_of_bfloat16_are_taken_only_where_they_are_forced() -> None:
    cpu = cpu_without("amx")
    assert _native.select_isa(cpu, "") == "avx512_bf16"
    cpu.slow_bf16_products = True
    assert _native.select_isa(cpu, "") == "avx512"
    assert _native.select_isa(cpu, "avx512_bf16") == "avx512_bf16"


@needs_amx_built
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
