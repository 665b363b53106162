"""The table of commands, exit codes and the one line of error."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from forerun import __version__
from forerun.cli import parser
from forerun.cli.errors import CommandError
from forerun.errors import Unavailable


def _raise(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def run(_: argparse.Namespace) -> int:
        raise error

    return run


def _run_command(
    monkeypatch: pytest.MonkeyPatch, run: Callable[[argparse.Namespace], int | None]
) -> int:
    """Runs a made-up command whose module has this `run`."""
    module = SimpleNamespace(add_arguments=lambda _: None, run=run)
    monkeypatch.setitem(sys.modules, "made_up_command", module)
    monkeypatch.setitem(parser.COMMANDS, "made-up", ("made_up_command", "made up"))
    return parser.main(["made-up"])


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (1, 1)])
def test_exit_code_is_what_the_command_returns(
    monkeypatch: pytest.MonkeyPatch, returned: int | None, code: int
) -> None:
    assert _run_command(monkeypatch, lambda _: returned) == code


@pytest.mark.parametrize(
    "error",
    [
        CommandError("no such prompt; name one"),
        Unavailable("the server is gone"),
        FileNotFoundError(2, "No such file", "x.jsonl"),
        ValueError("--threads is -1; it must be at least 0"),
        MemoryError("a KV cache of 1000000 tokens does not fit; lower --kv-tokens"),
        RuntimeError("Failed to bind to address 127.0.0.1:50051"),
    ],
)
def test_error_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    assert _run_command(monkeypatch, _raise(error)) == 1
    captured = capsys.readouterr()
    assert captured.err == f"forerun: error: {error}\n"
    assert captured.out == ""


@pytest.mark.parametrize(("name", "extra"), [("numpy", "serve"), ("torch", "torch")])
def test_what_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, extra: str
) -> None:
    error = ModuleNotFoundError(f"No module named '{name}'", name=name)
    assert _run_command(monkeypatch, _raise(error)) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert name in lines[0] and f"pip install '.[{extra}]'" in lines[0]


@pytest.mark.parametrize(
    "defect",
    [
        KeyError("x"),
        RecursionError("x"),
        AssertionError("x"),
        ImportError("cannot import name 'x' from 'forerun.client'", name="forerun.client"),
    ],
)
def test_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, defect: Exception) -> None:
    with pytest.raises(type(defect)):
        _run_command(monkeypatch, _raise(defect))


def test_debugging_keeps_every_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_DEBUG", "1")
    with pytest.raises(CommandError):
        _run_command(monkeypatch, _raise(CommandError("x")))


def test_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _run_command(monkeypatch, _raise(KeyboardInterrupt())) == 130


@pytest.mark.parametrize("arguments", [[], ["unknown"], ["health", "--unknown"]])
def test_wrong_command_line_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parser.main(arguments)
    assert caught.value.code == 2
    assert "usage: forerun" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser.main(["--version"])
    assert capsys.readouterr().out == f"forerun {__version__}\n"


def test_help_lists_every_command_and_imports_none_of_them() -> None:
    script = (
        "import sys\n"
        "from forerun.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'grpc', 'numpy', 'rich', 'google.protobuf', 'forerun.cli.demo'}\n"
        "sys.exit(', '.join(heavy & sys.modules.keys()) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for name, (_, summary) in parser.COMMANDS.items():
        assert name in done.stdout and summary in done.stdout


@pytest.mark.parametrize("command", parser.COMMANDS)
def test_every_command_has_a_help_text(command: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        parser.main([command, "--help"])
    assert caught.value.code == 0
    assert f"usage: forerun {command}" in capsys.readouterr().out


def test_a_reader_of_a_table_who_goes_away_is_a_broken_pipe() -> None:
    """rich makes an exit of 1 of it, as if the command had failed."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [
        sys.executable,
        "-m",
        "forerun.cli",
        "top",
        "--once",
        "--interval",
        "0.01",
        "127.0.0.1:1",
    ]
    try:
        assert subprocess.run(command, stdout=writer, timeout=60).returncode == 141
    finally:
        os.close(writer)
