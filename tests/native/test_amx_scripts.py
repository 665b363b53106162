"""The scripts that run AMX: what they say on a machine that has none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def test_the_measurement_on_silicon_says_at_once_that_it_cannot_run_here() -> None:
    if "amx_bf16" in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        pytest.skip("this processor has AMX")
    out = subprocess.run(
        [REPOSITORY / "benchmarks" / "amx_silicon.sh"], capture_output=True, text=True, timeout=10
    )
    assert out.returncode == 1
    assert out.stdout == ""
    assert out.stderr.startswith("amx_silicon.sh cannot run here: this processor has no AMX")
