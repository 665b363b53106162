"""The command lines of `forerun bench`, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forerun.cli import bench_report, main
from tests.fixtures.tiny import shared_checkpoint

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "--rounds is 0; it must be at least 1"),
        (["--max-tokens", "1"], "--max-tokens is 1; it must be at least 2"),
        (["--drafts", "ngram", "--draft-model", "m"], "--draft-model goes with standalone"),
        (["--drafts", "none,eagle"], "eagle needs a head; name its folder with --draft-model"),
    ],
)
def test_flags_that_cannot_be_used(arguments: list[str], message: str, capsys: Capture) -> None:
    assert main(["bench", "e2e", *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--concurrency", "1,0"], ["--drafts", "none,magic"]])
def test_lists_that_are_not_understood(arguments: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "e2e", *arguments])
    assert arguments[0] in capsys.readouterr().err


def test_engine_report_of_a_tiny_model(capsys: Capture) -> None:
    model = str(shared_checkpoint())
    assert main(["bench", "engine", "--model", model, "--quick", "--rounds", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["decode_ms"].keys() == {"1", "4"}
    bench_report.print_engine(report)
    assert "verify at 128, nodes" in capsys.readouterr().out


def test_e2e_runs_every_setting_through_both_servers(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds of a tiny model: what is measured is real, however little it means. Drafts take
    part whatever a busy machine makes of their time."""
    monkeypatch.setenv("FORERUN_DRAFT_DRAFT_TIMEOUT_MS", "20000")
    monkeypatch.setenv("FORERUN_VERIFY_ADAPTIVE", "false")
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "abcabcabcabc"}, {"prompt_token_ids": [5, 6, 7, 5, 6, 7, 5]}]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    arguments = (
        f"bench e2e --model {shared_checkpoint()} --input {prompts} --rounds 2 --max-tokens 12 "
        "--concurrency 1,3 --drafts none,ngram,standalone --json"
    )
    assert main(arguments.split()) == 0
    report = json.loads(capsys.readouterr().out)
    settings = {(row["draft"], row["concurrency"]): row for row in report["settings"]}
    assert settings.keys() == {(d, c) for d in ("none", "ngram", "standalone") for c in (1, 3)}
    for (draft, _), row in settings.items():
        assert 0 < row["ttft_ms"]["p50"] <= row["ttft_ms"]["p99"]
        assert row["tokens_per_s"] > 0
        assert (row["accepted_per_round"] is None) == (draft == "none")
    # With the target as its own draft, all that is proposed is accepted.
    assert settings["standalone", 1]["accepted_per_round"] > 1
    assert settings["none", 1]["times_plain"] == 1.0
    assert report["engine"].keys() == {"1", "3"}
    memory = report["verify_server_bytes"]
    assert 0 < memory["rss"] <= memory["peak_rss"] < memory["limit"]
    assert memory["kv_pool"] == 32768 * 2 * 2 * 16 * 2  # tokens, K and V, layers, head, bytes
    bench_report.print_e2e(report)
    assert "the engine alone, 3 sessions" in capsys.readouterr().out
