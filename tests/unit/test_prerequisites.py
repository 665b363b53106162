"""What `make` says where the machine lacks something."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_prerequisites.py"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_prerequisites", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_machine_that_has_everything_gets_no_message() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_missing_thing_is_named_with_its_remedy(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(script.sys, "version_info", (3, 9, 2))
    monkeypatch.setattr(script.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(script.sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(script.shutil, "which", lambda _: None)
    version, venv, headers, compiler = script.missing_prerequisites()
    assert "3.9.2" in version and "make PYTHON=" in version
    assert "apt install python3-venv" in venv
    assert "apt install python3-dev" in headers
    assert "apt install g++" in compiler
