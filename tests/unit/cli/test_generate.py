"""`forerun generate` against a scripted draft server."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forerun.cli import main
from forerun.errors import Unavailable
from tests.unit.cli.conftest import EOS, REFUSED, ScriptedGenerate, prompt_text

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True)
def no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORERUN_ADDRESS", raising=False)


@pytest.fixture
def no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.cli.generate.local_servers", lambda _: pytest.fail("started"))


def _write(path: Path, *entries: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return str(path)


def test_prompt_streams_text(scripted: ScriptedGenerate, capsys: Capture) -> None:
    assert main(["generate", "--address", scripted.address, "olleh"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("hello\n", "")


def test_address_comes_from_the_environment(
    scripted: ScriptedGenerate, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_ADDRESS", scripted.address)
    assert main(["generate", "olleh"]) == 0
    assert capsys.readouterr().out == "hello\n"


def test_prompt_from_standard_input(
    scripted: ScriptedGenerate, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("olleh"))
    assert main(["generate", "--address", scripted.address]) == 0
    assert capsys.readouterr().out == "hello\n"


@pytest.mark.parametrize(
    ("flags", "has_template", "form"),
    [
        ([], True, "conversation"),
        ([], False, "text"),
        (["--raw"], True, "text"),
        (["--chat"], False, "conversation"),
    ],
)
def test_text_goes_through_the_chat_template_where_there_is_one(
    scripted: ScriptedGenerate, flags: list[str], has_template: bool, form: str
) -> None:
    scripted.has_chat_template = has_template
    assert main(["generate", "--address", scripted.address, *flags, "abc"]) == 0
    (request,) = scripted.requests
    assert request.WhichOneof("prompt") == form
    assert prompt_text(request) == "abc"


def test_limits_reach_the_server(scripted: ScriptedGenerate, capsys: Capture) -> None:
    command = ["generate", "--address", scripted.address, "--max-tokens", "3", "fedcba"]
    assert main([*command, "--stop", "x", "--stop", "y"]) == 0
    assert capsys.readouterr().out == "abc\n"
    (request,) = scripted.requests
    assert request.max_tokens == 3
    assert list(request.stop) == ["x", "y"]


def test_json_of_one_prompt(scripted: ScriptedGenerate, capsys: Capture) -> None:
    assert main(["generate", "--address", scripted.address, "--json", "cba"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "token_ids": [97, 98, 99],
        "text": "abc",
        "finish_reason": "stop",
        "stats": {
            "rounds": 1,
            "drafted": 2,
            "accepted": 1,
            "accepted_by_depth": [1],
            "emitted": 4,
            "ttft_ms": 1.5,
            "tokens_per_second": 300.0,
        },
    }


def test_file_keeps_order_and_keys_with_several_in_flight(
    scripted: ScriptedGenerate, tmp_path: Path
) -> None:
    # The first one to arrive is the last one to be answered.
    scripted.hold_first = True
    prompts = _write(
        tmp_path / "in.jsonl",
        {"prompt": "cba", "id": "text"},
        {"messages": [{"role": "user", "content": "fed"}], "id": "chat", "more": {"a": [1]}},
        {"prompt_token_ids": [105, 104, 103], "id": "ids"},
    )
    output = tmp_path / "out.jsonl"
    command = ["generate", "--address", scripted.address, "--input", prompts]
    assert main([*command, "--output", str(output), "--concurrency", "3"]) == 0
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(line["id"], line["text"]) for line in lines] == [
        ("text", "abc"),
        ("chat", "def"),
        ("ids", "ghi"),
    ]
    assert lines[1]["more"] == {"a": [1]}
    assert all(EOS not in line["token_ids"] for line in lines)
    assert {request.WhichOneof("prompt") for request in scripted.requests} == {
        "conversation",
        "token_ids",
    }


def test_concurrency_of_one_goes_in_turns(scripted: ScriptedGenerate, tmp_path: Path) -> None:
    texts = ["a", "b", "c", "d"]
    prompts = _write(tmp_path / "in.jsonl", *({"prompt": text} for text in texts))
    command = ["generate", "--address", scripted.address, "--input", prompts]
    assert main([*command, "--concurrency", "1"]) == 0
    assert [prompt_text(request) for request in scripted.requests] == texts


def test_file_of_prompts_to_standard_output(
    scripted: ScriptedGenerate, tmp_path: Path, capsys: Capture
) -> None:
    prompts = _write(tmp_path / "in.jsonl", {"prompt": "ab"}, {"prompt": "cd"})
    assert main(["generate", "--address", scripted.address, "--input", prompts]) == 0
    assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == [
        "ba",
        "dc",
    ]


def test_progress_goes_to_standard_error(
    scripted: ScriptedGenerate, tmp_path: Path, capfd: Capture
) -> None:
    prompts = _write(tmp_path / "in.jsonl", *({"prompt": "ab"} for _ in range(4)))
    assert main(["generate", "--address", scripted.address, "--input", prompts]) == 0
    captured = capfd.readouterr()
    assert len(captured.out.splitlines()) == 4
    assert [line.rsplit(": ", 1)[1] for line in captured.err.splitlines()] == [
        "0 %",
        "20 %",
        "50 %",
        "70 %",
        "100 %",
    ]


def test_bad_line_is_named_before_anything_is_generated(
    scripted: ScriptedGenerate, tmp_path: Path, capsys: Capture
) -> None:
    prompts = _write(tmp_path / "in.jsonl", {"prompt": "ab"}, {"text": "cd"})
    assert main(["generate", "--address", scripted.address, "--input", prompts]) == 1
    error = capsys.readouterr().err
    assert f"{prompts}:2: " in error and error.count("\n") == 1
    assert scripted.requests == []


def test_text_that_is_not_utf8_is_named(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"prompt": "caf\xe9"}\n')
    assert main(["generate", "--address", "unix:/nowhere", "--input", str(path)]) == 1
    assert f"{path} is not UTF-8" in capsys.readouterr().err
    assert main(["generate", "--address", "unix:/nowhere", "caf\udce9"]) == 1
    assert "the prompt is not UTF-8" in capsys.readouterr().err


def test_byte_order_mark_is_passed_over(
    scripted: ScriptedGenerate, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({"prompt": "olleh"}), encoding="utf-8-sig")
    assert main(["generate", "--address", scripted.address, "--input", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == "hello"


def test_refused_prompt_is_named_after_the_answers_before_it(
    scripted: ScriptedGenerate, tmp_path: Path, capsys: Capture
) -> None:
    prompts = _write(tmp_path / "in.jsonl", {"prompt": "ab"}, {"prompt": REFUSED}, {"prompt": "cd"})
    output = tmp_path / "out.jsonl"
    command = ["generate", "--address", scripted.address, "--input", prompts]
    assert main([*command, "--output", str(output)]) == 1
    assert f"{prompts}:2: prompt refused" in capsys.readouterr().err
    assert [json.loads(line)["text"] for line in output.read_text().splitlines()] == ["ba"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--address", "unix:/x", "--draft", "none", "a"], "--local"),
        (["--address", "unix:/x", "--concurrency", "0", "a"], "--concurrency is 0"),
        (["--address", "unix:/x", "--output", "o", "a"], "--output goes with --input"),
        (["--address", "unix:/x", "--input", "i", "a"], "exclude each other"),
        (["--address", "unix:/x", "--input", "/does/not/exist"], "/does/not/exist"),
        (["--address", "unix:/x", ""], "the prompt is empty"),
        (["--local", "--model", "/does/not/exist", "a"], "/does/not/exist"),
        (["--local", "--max-tokens", "0", "a"], "--max-tokens is 0; it must be in 1..4294967295"),
        (["--local", "--max-tokens", str(2**32), "a"], "--max-tokens is 4294967296"),
        (["--local", "--stop", "", "a"], "--stop is empty"),
        (["--local", "--stop", "\udce9", "a"], "stop: "),
        (["--local", "--timeout", "nan", "a"], "--timeout is nan; it must be above 0"),
        (["--local", "--timeout", "-1", "a"], "--timeout is -1"),
        (["--local", "--timeout", "0", "a"], "--timeout is 0"),
        (["--local", "--timeout", "1e300", "a"], "--timeout is 1e+300"),
        (["--local", "--tls-ca", "/does/not/exist", "--token-file", "/x", "a"], "/x"),
        (["--local", "--draft-model", "/", "a"], "goes with standalone"),
        (["a"], "FORERUN_ADDRESS"),
        (["--address", "unix:/does/not/exist", "a"], "serve-draft"),
        (["--address", "127.0.0.1:99999", "a"], "the port is 99999; it must be in 0..65535"),
    ],
)
def test_error_is_one_clear_line(
    capsys: Capture, no_servers: None, arguments: list[str], problem: str
) -> None:
    assert main(["generate", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("forerun: error: ") and captured.err.count("\n") == 1
    assert problem in captured.err


@pytest.mark.parametrize("name", ["in.jsonl", "link.jsonl", "./in.jsonl"])
def test_prompts_are_not_overwritten(
    name: str, no_servers: None, tmp_path: Path, capsys: Capture
) -> None:
    prompts = _write(tmp_path / "in.jsonl", {"prompt": "ab"})
    (tmp_path / "link.jsonl").symlink_to(prompts)
    output = f"{tmp_path}/{name}"
    assert main(["generate", "--local", "--input", prompts, "--output", output]) == 1
    assert f"--output {output} is the file of the prompts" in capsys.readouterr().err
    assert json.loads(Path(prompts).read_text()) == {"prompt": "ab"}


def test_a_file_that_cannot_be_written_is_an_error_before_servers_start(
    no_servers: None, tmp_path: Path, capsys: Capture
) -> None:
    prompts = _write(tmp_path / "in.jsonl", {"prompt": "ab"})
    output = f"{tmp_path}/none/out.jsonl"
    assert main(["generate", "--local", "--input", prompts, "--output", output]) == 1
    assert output in capsys.readouterr().err


def test_an_old_output_stays_until_the_first_answer(
    scripted: ScriptedGenerate, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text("an answer of yesterday\n")
    for prompt, code in ((REFUSED, 1), ("ab", 0)):
        prompts = _write(tmp_path / "in.jsonl", {"prompt": prompt})
        command = ["generate", "--address", scripted.address, "--input", prompts]
        assert main([*command, "--output", str(output)]) == code
        assert output.read_text().startswith("an answer of yesterday") is (code == 1)
    assert json.loads(output.read_text())["text"] == "ba"


@pytest.mark.parametrize("arguments", [[], ["--input", "-"]])
def test_a_closed_standard_input_is_an_error(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert main(["generate", "--address", "unix:/x", *arguments]) == 1
    assert "standard input is closed; give a prompt" in capsys.readouterr().err


def test_a_closed_standard_output_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert main(["generate", "--address", "unix:/x", "--json", "a"]) == 1
    assert "standard output is closed; name a file" in capsys.readouterr().err


def test_a_draft_server_that_lacks_a_verify_server_speaks_for_itself(
    scripted: ScriptedGenerate, capsys: Capture
) -> None:
    scripted.info_error = Unavailable("no verify server", reason="VERIFIER_UNREACHABLE")
    assert main(["generate", "--address", scripted.address, "a"]) == 1
    assert capsys.readouterr().err == "forerun: error: no verify server\n"


def test_health(scripted: ScriptedGenerate, capsys: Capture) -> None:
    assert main(["health", scripted.address]) == 0
    assert capsys.readouterr().out == "SERVING\n"
    assert main(["health", "--json", scripted.address]) == 0
    assert json.loads(capsys.readouterr().out) == {"status": "SERVING", "detail": ""}
    assert main(["health", "--timeout", "nan", scripted.address]) == 1
    assert "--timeout is nan" in capsys.readouterr().err
    assert main(["health", "--timeout", "1", "unix:/does/not/exist"]) == 1
    assert capsys.readouterr().out.startswith("UNREACHABLE")
