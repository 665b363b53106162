"""The checked-in stubs and reference are those of proto/, and proto/ follows its rules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def run_script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(REPOSITORY / "scripts" / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def stubs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*_pb2*.py*")}


def test_stubs_are_up_to_date(tmp_path: Path) -> None:
    result = run_script("generate_stubs.py", str(tmp_path))
    assert result.returncode == 0, result.stderr
    fresh, checked_in = stubs(tmp_path / "forerun/v1"), stubs(REPOSITORY / "forerun/v1")
    different = {name for name in fresh | checked_in if fresh.get(name) != checked_in.get(name)}
    assert not different, f"{sorted(different)} differ; run scripts/generate_stubs.py"


def test_reference_is_up_to_date(tmp_path: Path) -> None:
    page = tmp_path / "reference.md"
    result = run_script("generate_protocol_reference.py", str(page))
    assert result.returncode == 0, result.stderr
    assert page.read_text() == (REPOSITORY / "docs/protocol-reference.md").read_text(), (
        "docs/protocol-reference.md is another; run `make stubs`"
    )


def test_protos_pass_lint() -> None:
    result = run_script("lint_protos.py")
    assert result.returncode == 0, result.stdout + result.stderr
