"""`forerun demo` against a scripted draft server."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from forerun.cli import demo, main
from forerun.cli.demo_report import AnswerPrinter
from forerun.cli.local import LocalOptions
from forerun.client import Chunk
from tests.unit.cli.conftest import EOS, ScriptedGenerate

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def demonstrated(
    scripted: ScriptedGenerate, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ScriptedGenerate]:
    @contextmanager
    def servers(options: LocalOptions) -> Iterator[str]:
        assert options.model is not None and options.draft == "ngram+eagle3"
        yield scripted.address

    def token_text(token_id: int) -> str:
        return "" if token_id == EOS else chr(token_id)

    monkeypatch.setattr(demo, "local_servers", servers)
    monkeypatch.setattr(demo, "_token_texts", lambda _: token_text)
    monkeypatch.setattr("forerun.models.default_model_path", lambda: Path("default.gguf"))
    yield scripted


def test_a_limit_that_no_server_takes(demonstrated: ScriptedGenerate, capsys: Capture) -> None:
    assert main(["demo", "--max-tokens", "0"]) == 1
    assert "--max-tokens is 0; it must be in 1..4294967295" in capsys.readouterr().err
    assert demonstrated.requests == []


def test_demo_prints_the_answer_and_the_comparison(
    demonstrated: ScriptedGenerate, capsys: Capture
) -> None:
    assert main(["demo", "--repeats", "2", "fedcba"]) == 0
    printed = capsys.readouterr().out
    assert "\nabcdef\n" in printed
    assert "without speculation" in printed and "with speculation" in printed
    assert "All 5 runs gave the same 7 token ids." in printed
    # The first run is shown; then they take turns, beginning without drafts.
    assert [request.plain for request in demonstrated.requests] == [
        False,
        *[True, False] * 2,
    ]


def test_demo_as_json(demonstrated: ScriptedGenerate, capsys: Capture) -> None:
    assert main(["demo", "--json", "--repeats", "1", "cba"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["text"] == "abc"
    assert report["identical_runs"] == 3
    assert report["plain_tokens_per_second"] == report["tokens_per_second"] == 300.0
    assert (report["accepted_by_depth"], report["drafted_by_depth"]) == ([1], [1, 1])


def test_demo_fails_when_the_tokens_differ(demonstrated: ScriptedGenerate, capsys: Capture) -> None:
    demonstrated.wrong_when_drafting = True
    assert main(["demo", "--json", "cba"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "differ: [65, 66, 67, 0] and [97, 98, 99, 0]" in captured.err


def test_demo_without_drafting_is_refused(capsys: Capture) -> None:
    assert main(["demo", "--draft", "none"]) == 1
    assert "ngram or standalone" in capsys.readouterr().err


def test_accepted_tokens_are_coloured() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system="standard")
    printer = AnswerPrinter(chr, console)
    printer.print(Chunk((97, 98, 91), 2, "ab["))
    printer.print(Chunk((99,), 0, "c"))
    assert file.getvalue() == "\x1b[32ma\x1b[0m\x1b[32mb\x1b[0m[c"
