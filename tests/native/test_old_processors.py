"""Processors older than every level: emulated, forerun starts, or says in a line why not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from tests.fixtures.engines import ISA_LEVELS, base, tiny_engine

EMULATOR = shutil.which("qemu-x86_64")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EMULATOR is None, reason="qemu-x86_64 is not installed (qemu-user)"),
]

PROMPT = list(range(3, 45))
GENERATE = f"""
from tests.fixtures.engines import base, tiny_engine
print(base(tiny_engine(), {PROMPT}, 12))
"""


def emulate(cpu: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python on that processor. QEMU warns of features that it leaves out."""
    assert EMULATOR is not None
    run = [EMULATOR, "-cpu", cpu, sys.executable, *arguments]
    return subprocess.run(run, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(("cpu", "level"), [("Nehalem", "scalar"), ("Haswell", "avx2")])
def test_an_old_processor_gets_the_level_that_it_can_run(cpu: str, level: str) -> None:
    out = emulate(cpu, "-m", "forerun.cli", "doctor", "--json", "--no-bandwidth")
    assert out.returncode == 0, out.stderr
    isa = json.loads(out.stdout)["engine"]["isa"]
    assert isa["selected"] == level
    for other in isa["levels"]:
        assert other["available"] == (other["reason"] == "")
        assert other["available"] or other["reason"].startswith("CPUID")


@pytest.mark.parametrize(("cpu", "level"), [("Nehalem", "scalar"), ("Haswell", "avx2")])
def test_an_old_processor_generates_what_that_level_generates_here(cpu: str, level: str) -> None:
    if level not in ISA_LEVELS:
        pytest.skip(f"this processor has no {level}")
    out = emulate(cpu, "-c", GENERATE)
    assert out.returncode == 0, out.stderr
    assert json.loads(out.stdout) == base(tiny_engine(isa=level), PROMPT, 12)


@pytest.mark.parametrize("cpu", ["qemu64", "core2duo"])
@pytest.mark.parametrize("command", ["doctor", "bench engine", "serve-verify", "serve-draft"])
def test_a_processor_below_numpy_s_least_is_refused_in_one_line(cpu: str, command: str) -> None:
    out = emulate(cpu, "-m", "forerun.cli", *command.split())
    assert out.returncode == 1, out.stderr
    printed = " ".join((out.stdout + out.stderr).split())
    assert "this processor has no SSSE3, SSE4 and POPCNT" in printed
    assert "Traceback" not in printed
