"""The command line of `forerun train-draft`."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from forerun.cli import main, train_draft
from tests.fixtures.training import checkpoint

Capture = pytest.CaptureFixture[str]


def test_without_torch_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else found(name)
    )
    assert main(["train-draft", "--out", str(tmp_path), "--minutes", "1"]) == 1
    assert "-m pip install 'torch==" in capsys.readouterr().err


def test_training_without_an_end_is_refused(capsys: Capture, tmp_path: Path) -> None:
    assert main(["train-draft", "--out", str(tmp_path)]) == 1
    assert "give --minutes or --tokens" in capsys.readouterr().err


def test_methods_that_do_not_exist_are_refused_by_name(capsys: Capture, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["train-draft", "--out", str(tmp_path), "--method", "none"])
    error = capsys.readouterr().err
    assert "'none'" in error and "eagle3" in error and "mtp" in error


def test_the_command_line_knows_the_methods_that_there_are() -> None:
    from forerun.training.methods import METHODS

    assert set(train_draft.METHODS) == set(METHODS)


def _write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_given_prompts_are_trained_on(tmp_path: Path) -> None:
    """In two commands, as a user might: the data first."""
    data = _write(
        tmp_path / "prompts.jsonl",
        [{"prompt": f"prompt {i}"} for i in range(9)]
        + [{"messages": [{"role": "user", "content": "abc"}]}],
    )
    command = (
        f"train-draft --target {checkpoint()} --out {tmp_path / 'head'} --data {data} "
        "--max-answer 12 --sessions 4 --draft-vocab 100 --threads 1"
    )
    assert main([*command.split(), "--only", "data"]) == 0
    assert not (tmp_path / "head" / "model.safetensors").exists()
    assert main([*command.split(), "--only", "training", "--tokens", "1"]) == 0
    card = (tmp_path / "head" / "README.md").read_text()
    assert "10 documents" in card
    assert "Their prompts were given." in card


def test_prompts_begin_as_the_requests_of_a_file(tmp_path: Path, capsys: Capture) -> None:
    requests = _write(
        tmp_path / "requests.jsonl",
        [
            {"prompt": "Who wrote the book on the table?"},
            {"messages": [{"role": "user", "content": "Where is the table with the book?"}]},
        ],
    )
    command = (
        f"train-draft --target {checkpoint()} --out {tmp_path / 'head'} --requests {requests} "
        "--answer-tokens 100 --max-answer 12 --sessions 4 --draft-vocab 100 --threads 1 --tokens 1"
    )
    assert main(command.split()) == 0
    card = (tmp_path / "head" / "README.md").read_text()
    assert "from the first words of 2 given requests" in card
    assert main([*command.split(), "--data", str(requests)]) == 1
    assert "give one of these" in capsys.readouterr().err


def test_token_ids_are_no_prompts_to_train_on(tmp_path: Path, capsys: Capture) -> None:
    data = _write(tmp_path / "prompts.jsonl", [{"prompt_token_ids": [1, 2]}])
    command = f"train-draft --target {checkpoint()} --out {tmp_path} --data {data} --tokens 1"
    assert main(command.split()) == 1
    assert "prompts.jsonl:1: prompt or messages are expected" in capsys.readouterr().err
