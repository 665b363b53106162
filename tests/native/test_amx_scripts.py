"""The scripts that run AMX: what they say on a machine without it, and what they write."""

from __future__ import annotations

import subprocess
import sys
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


def test_a_model_is_written_for_the_program_that_runs_it(tmp_path: Path) -> None:
    script, file = REPOSITORY / "tests" / "native" / "amx" / "write_model.py", tmp_path / "model"
    subprocess.run([sys.executable, script, file, "--layers", "1"], check=True, timeout=120)
    assert file.read_bytes()[:16] == b"forerun model 1\n"
    # The embedding, which is the head, and a layer.
    assert 56 << 20 < file.stat().st_size < 70 << 20
