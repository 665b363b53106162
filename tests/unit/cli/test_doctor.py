"""`forerun doctor`: the report of a machine."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from forerun.cli import doctor, main

Capture = pytest.CaptureFixture[str]

ISA = {
    "selected": "avx2",
    "levels": [
        {"name": "amx", "available": False, "reason": "the kernel grants no tile data"},
        {"name": "avx2", "available": True, "reason": ""},
    ],
}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands in for the native engine."""
    module = SimpleNamespace(isa_report=lambda: ISA, read_bandwidth=lambda threads: 40.04 * threads)
    monkeypatch.setitem(sys.modules, "forerun.engine", module)
    return module


def _threads() -> int:
    report: dict[str, Any] = doctor.collect(measure=False)["threads"]
    return int(report["chosen"])


def test_doctor_as_json(engine: SimpleNamespace, capsys: Capture) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["engine"]["isa"] == ISA
    assert report["engine"]["bandwidth_gb_s"] == round(40.04 * _threads(), 1)
    assert report["threads"]["chosen"] >= 1 and report["threads"]["reason"]
    assert report["cpus"]["physical_cores"] <= report["cpus"]["logical"]


def test_doctor_names_the_gate_that_failed(engine: SimpleNamespace, capsys: Capture) -> None:
    assert main(["doctor", "--no-bandwidth"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "kernels avx2" in printed
    assert "amx not available: the kernel grants no tile data" in printed
    assert "GB/s" not in printed


def test_doctor_without_a_native_module_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "forerun.engine", None)
    assert main(["doctor"]) == 1
    assert "the native module does not run here" in " ".join(capsys.readouterr().out.split())
