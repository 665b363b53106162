"""The pair of servers of one command: what they are started with, and that they end with it.

A command that is told to end while it starts a server, between the new process and the return of
Popen, does not yet know what to end: that server ends a moment later, when its pipe closes.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from forerun.cli import local
from forerun.cli.errors import CommandError
from forerun.cli.local import (
    LocalOptions,
    add_local_arguments,
    local_group,
    local_options,
    local_servers,
)
from forerun.errors import Unavailable

WAIT_S = 30


def _parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_local_arguments(parser)
    return parser.parse_args(arguments)


def test_defaults_leave_choices_to_the_servers() -> None:
    assert local_options(_parse()) == LocalOptions(draft="ngram+eagle3")
    assert local.given_local_flags(_parse()) == []


def test_flags_become_options(tmp_path: Path) -> None:
    args = _parse(
        *("--model", str(tmp_path), "--draft", "standalone", "--draft-model", str(tmp_path)),
        *("--dtype", "float32", "--page-size", "16", "--prefill-chunk", "64", "--threads", "2"),
    )
    expected = LocalOptions(tmp_path, "standalone", tmp_path, "float32", 16, 64, 2)
    assert local_options(args) == expected
    assert local.given_local_flags(args)[:2] == ["--model", "--draft"]


REPOSITORY = Path(__file__).parents[3]

# What a process of its own runs to start the made-up servers.
# Who runs tests in the background may have these signals ignored, and children inherit that.
SET_UP = """\
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from pathlib import Path
from forerun.cli import local, main
local.TARGET_PACKAGE, local.DRAFT_PACKAGE = "made_up_target", "made_up_draft"
"""


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Replaces both servers by ones that run the given code, their command line in `argv`."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{REPOSITORY}")
    monkeypatch.setattr(local, "TARGET_PACKAGE", "made_up_target")
    monkeypatch.setattr(local, "DRAFT_PACKAGE", "made_up_draft")

    def write(target: str, draft: str) -> None:
        for package, body in (("made_up_target", target), ("made_up_draft", draft)):
            (tmp_path / package).mkdir()
            code = "import time\n\ndef main(argv):\n" + textwrap.indent(body, "    ")
            (tmp_path / package / "__main__.py").write_text(code + "\n")

    return write


def test_server_that_fails_to_start_is_an_error(
    made_up: Callable[[str, str], None], tmp_path: Path
) -> None:
    made_up("return 3", "time.sleep(60)")
    with pytest.raises(CommandError, match="exit status 3"):
        with local_servers(LocalOptions(model=tmp_path)):
            pytest.fail("must not be reached")
    assert psutil.Process().children(recursive=True) == []


def test_command_lines_of_both_servers(made_up: Callable[[str, str], None], tmp_path: Path) -> None:
    target_file, draft_file = tmp_path / "target.txt", tmp_path / "draft.txt"
    record = "from pathlib import Path\nPath({!r}).write_text('\\n'.join(argv))\n"
    wait = f"while not Path({str(target_file)!r}).exists(): time.sleep(0.01)\nreturn 1"
    made_up(
        record.format(str(target_file)) + "time.sleep(600)",
        record.format(str(draft_file)) + wait,
    )
    with pytest.raises(CommandError), local_servers(LocalOptions(tmp_path, dtype="float32")):
        pytest.fail("must not be reached")
    target, draft = (
        dict(zip(*[iter(file.read_text().splitlines())] * 2, strict=True))
        for file in (target_file, draft_file)
    )
    assert draft["--verifier"] == target["--listen"] != draft["--listen"]
    assert target["--listen"].startswith("unix:/") and len(target["--listen"]) < 107
    assert (target["--model"], target["--dtype"]) == (str(tmp_path), "float32")
    assert (draft["--model"], draft["--draft"]) == (str(tmp_path), "ngram")


def test_flags_of_the_target() -> None:
    options = LocalOptions(dtype="float32", page_size=16, prefill_chunk=64, threads=2)
    flags = "--model m --dtype float32 --page-size 16 --prefill-chunk 64 --threads 2"
    assert local._target_flags(options, Path("m")) == flags.split()
    assert local._target_flags(LocalOptions(), Path("m")) == ["--model", "m"]
    fixed = LocalOptions(draft_nodes=8, adaptive=False)
    flags = "--model m --draft-nodes 8 --no-adaptive"
    assert local._target_flags(fixed, Path("m")) == flags.split()


@pytest.mark.parametrize(
    ("draft_model", "expected"), [(None, "m"), (Path("small.gguf"), "small.gguf")]
)
def test_flags_of_a_standalone_draft(draft_model: Path | None, expected: str) -> None:
    options = LocalOptions(draft="standalone", draft_model=draft_model, dtype="float32", threads=2)
    flags = local._draft_flags(options, Path("m"), "unix:/v")
    assert (
        flags
        == (
            f"--verifier unix:/v --model m --draft standalone --draft-model {expected} "
            "--dtype float32 --threads 2"
        ).split()
    )


def test_the_layer_of_mtp_is_the_targets_or_one_that_is_named() -> None:
    for draft_model, flags in ((None, ""), (Path("layer"), " --draft-model layer")):
        options = LocalOptions(draft="mtp", draft_model=draft_model, threads=2)
        assert (
            local._draft_flags(options, Path("m"), "unix:/v")
            == f"--verifier unix:/v --model m --draft mtp{flags} --threads 2".split()
        )
    assert local_options(_parse("--draft", "mtp", "--draft-model", "/")).draft_model == Path("/")


def test_servers_end_when_their_parent_is_killed(
    made_up: Callable[[str, str], None], tmp_path: Path
) -> None:
    made_up("time.sleep(600)", "time.sleep(600)")
    command = f"with local.local_servers(local.LocalOptions(Path({str(tmp_path)!r}))): pass"
    parent = subprocess.Popen([sys.executable, "-c", SET_UP + command])
    try:
        children = _children(parent.pid, 2)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    _, alive = psutil.wait_procs(children, timeout=WAIT_S)
    assert alive == []


def test_interrupt_ends_the_servers_and_gives_130(
    made_up: Callable[[str, str], None], tmp_path: Path
) -> None:
    made_up("time.sleep(600)", "time.sleep(600)")
    command = f"exit(main(['generate', '--local', '--model', {str(tmp_path)!r}, 'prompt']))"
    parent = subprocess.Popen([sys.executable, "-c", SET_UP + command], stderr=subprocess.PIPE)
    children = _children(parent.pid, 2)
    parent.send_signal(signal.SIGINT)
    _, errors = parent.communicate(timeout=WAIT_S)
    assert (parent.returncode, errors) == (130, b"")
    _, alive = psutil.wait_procs(children, timeout=WAIT_S)
    assert alive == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_to_end_leaves_nothing_behind(
    made_up: Callable[[str, str], None], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    made_up("time.sleep(600)", "time.sleep(600)")
    (tmp_path / "temporary").mkdir()
    command = f"exit(main(['generate', '--local', '--model', {str(tmp_path)!r}, 'prompt']))"
    parent = subprocess.Popen(
        [sys.executable, "-c", SET_UP + command],
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
    )
    children = _children(parent.pid, 2)
    parent.send_signal(number)
    _, errors = parent.communicate(timeout=WAIT_S)
    assert (parent.returncode, errors) == (code, b"")
    _, alive = psutil.wait_procs(children, timeout=WAIT_S)
    assert alive == []
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    ("killed", "message"),
    [
        (0, r"the verify server was ended by signal 9 \(Killed\)"),
        (1, r"the draft server \(ngram\) was ended by signal 9 \(Killed\)"),
    ],
)
def test_a_server_that_was_killed_is_named(
    made_up: Callable[[str, str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    killed: int,
    message: str,
) -> None:
    made_up("time.sleep(600)", "time.sleep(600)")
    monkeypatch.setattr(local, "_wait_until_healthy", lambda *_: None)
    with pytest.raises(CommandError, match=message):
        with local_group(LocalOptions(tmp_path), ["ngram"]) as group:
            servers = _children(os.getpid(), 2)
            servers.sort(key=lambda server: server.pid != group.verify_pid)
            servers[killed].kill()
            # Without its verify server a draft server would wait, and the command with it.
            _wait_until_dead(servers[1])
            raise Unavailable("Stream removed (Socket closed)")


def test_other_errors_stay_what_they_are(
    made_up: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up("time.sleep(600)", "time.sleep(600)")
    monkeypatch.setattr(local, "_wait_until_healthy", lambda *_: None)
    with pytest.raises(Unavailable), local_servers(LocalOptions(tmp_path)):
        raise Unavailable("busy")


def _wait_until_dead(process: psutil.Process) -> None:
    """Leaves the exit status to whoever started the process."""
    end = time.monotonic() + WAIT_S
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.02)


def _children(pid: int, number: int) -> list[psutil.Process]:
    """The children of a process, once there are `number` of them that run our code."""
    process = psutil.Process(pid)
    while True:
        children = process.children()
        if len(children) == number and all("local_child" in str(c.cmdline()) for c in children):
            return children
        time.sleep(0.02)
        assert process.is_running() and process.status() != psutil.STATUS_ZOMBIE
