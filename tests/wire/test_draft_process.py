"""The draft server as a process, and how it reaches its verify server."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from draft_server.app import open_verifier_channel
from draft_server.config import DraftConfig
from forerun.client import Client
from tests.fixtures.tiny import shared_checkpoint


def test_the_verify_servers_token_does_not_travel_in_the_clear(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    config = DraftConfig(verifier="198.51.100.7:50052", verifier_token_file=str(tmp_path / "token"))
    with pytest.raises(ValueError, match="unencrypted; add --verifier-tls-ca"):
        open_verifier_channel(config)


def test_the_program_serves_until_sigterm() -> None:
    """The process as it is run: a model for its tokenizer, health, an orderly end."""
    with tempfile.TemporaryDirectory(prefix="forerun-") as folder:
        address = f"unix:{folder}/draft.sock"
        command = ["-m", "draft_server", "--listen", address, "--model", str(shared_checkpoint())]
        process = subprocess.Popen(
            [sys.executable, *command, "--verifier", f"unix:{folder}/none.sock"],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if "listening on" in line:
                    break
            with Client(address, timeout=10) as client:
                assert client.health() == "NOT_SERVING"
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0, process.stderr.read()
        finally:
            process.kill()
            process.wait()
            process.stderr.close()


def test_a_wrong_command_line_ends_with_one_line() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "draft_server", "--draft", "standalone"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 1
    assert result.stderr.startswith("draft_server: error: --draft standalone needs a draft model")
    assert result.stderr.count("\n") == 1
