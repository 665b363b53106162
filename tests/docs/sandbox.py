"""The folder in which the blocks of one page run, one after another, with servers that they start.

It looks like the repository to them: blocks begin in its root, and .venv/bin holds `forerun`.
Servers serve T (tests/fixtures/tiny.py). The ports of the docs are replaced by free ones, which is
done here alone.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.docs.commands import COMMANDS, REAL, SCRIPTS
from tests.docs.pages import ROOT, Block
from tests.fixtures.tiny import shared_checkpoint

PATIENCE_S = 60.0
POLL_S = 0.02
# What programs print that then run until they are stopped: both servers, and `forerun top`.
RUNNING = re.compile(r"serving on |connected: target |(draft|verify) server [\d.]+:\d+, ")
PORT = re.compile(r"((?<=127\.0\.0\.1:)|(?<=localhost:)|(?<=--metrics-port ))[1-9]\d*")


@dataclass
class Program:
    """What runs on after its block. place: of the block."""

    place: str
    process: subprocess.Popen[bytes]
    log: Path


@cache
def has_compose() -> bool:
    """Whether Docker Compose v2 is installed, which needs no engine to read files."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    return subprocess.run([docker, "compose", "version"], capture_output=True).returncode == 0


class Sandbox:
    """Runs blocks. `close` ends what they started, and fails where one had ended by itself."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "forerun"
        self._stubs = folder / "bin"
        self._services = folder / "services.json"
        self._logs = folder / "logs"
        self._ports: dict[str, int] = {}
        self._running: list[Program] = []
        self._serving = False
        for made in (self.root / "benchmarks", self.root / ".venv", self._stubs, self._logs):
            made.mkdir(parents=True)
        for name in COMMANDS:
            self._write_stub(self._stubs / name, name)
        for name in REAL:
            if path := shutil.which(name):
                (self._stubs / name).symlink_to(path)
        (self.root / ".venv" / "bin").symlink_to(self._stubs)
        shutil.copytree(ROOT / "deploy", self.root / "deploy")  # a page may write deploy/.env
        for name in SCRIPTS:
            self._write_stub(self.root / name, "script", name)
        for name in ("Makefile", "requirements.lock"):
            (self.root / name).symlink_to(ROOT / name)

    def addressed(self, text: str) -> str:
        """The text with a free port for each port that it names, the same for all of a page."""
        return PORT.sub(lambda found: str(self._port(found[0])), text)

    def run(self, block: Block) -> None:
        """Runs a block of commands to its end, or until what it started says that it runs."""
        missing = [name for name in REAL if not (self._stubs / name).exists()]
        if needed := [name for name in missing if re.search(rf"\b{name}\b", block.text)]:
            pytest.skip(f"{block.place} needs {needed[0]}, which is not installed")
        self._start(block.place, self.addressed(block.text))
        if self._services.exists():
            self._serve(block.place, json.loads(self._services.read_text()))
            self._services.unlink()

    def close(self) -> None:
        """Ends programs by what Ctrl-C sends, the last one first. Raises AssertionError."""
        wrong = []
        while self._running:
            program = self._running.pop()
            if program.process.poll() is None:
                os.killpg(program.process.pid, signal.SIGINT)
            else:
                wrong.append(f"{program.place} ended by itself:\n{program.log.read_text()}")
            try:
                code = program.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                os.killpg(program.process.pid, signal.SIGKILL)
                code = program.process.wait()
            if code not in (0, 130):
                wrong.append(f"{program.place} ended with {code}:\n{program.log.read_text()}")
        assert not wrong, "\n".join(wrong)

    def _start(self, place: str, commands: str, environment: dict[str, str] | None = None) -> None:
        log = self._logs / f"{len(list(self._logs.iterdir()))}.txt"
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["/bin/bash", "-euo", "pipefail", "-c", commands],
                cwd=self.root,
                env=self._environment() | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        end = time.monotonic() + PATIENCE_S
        while (code := process.poll()) is None and not RUNNING.search(log.read_text()):
            if time.monotonic() > end:
                os.killpg(process.pid, signal.SIGKILL)
                pytest.fail(f"{place} does not end:\n{log.read_text()}")
            time.sleep(POLL_S)
        if code is None:
            self._running.append(Program(place, process, log))
        elif code:
            pytest.fail(f"{place} ended with {code}:\n{log.read_text()}")
        else:
            print(log.read_text())

    def _serve(self, place: str, services: dict[str, Any]) -> None:
        """Starts the servers of the compose files as programs, unless they run."""
        if self._serving:
            return
        self._serving = True
        for name in ("verify", "draft"):
            command = " ".join(services[name]["command"])
            command = re.sub(r"(0\.0\.0\.0|verify):", "127.0.0.1:", command)
            command = re.sub(r"(?<=--metrics-port )\d+", "0", command)
            settings = {
                key: value
                for key, value in services[name].get("environment", {}).items()
                if key.startswith("FORERUN_") and not key.endswith("MODEL")
            }
            self._start(place, f"forerun {self.addressed(command)}", settings)

    def _port(self, documented: str) -> int:
        if documented not in self._ports:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self._ports[documented] = probe.getsockname()[1]
        return self._ports[documented]

    def _environment(self) -> dict[str, str]:
        model = str(shared_checkpoint())
        return {
            "PATH": str(self._stubs),
            "PYTHONPATH": str(ROOT),
            "HOME": os.environ.get("HOME", "/"),
            "LANG": "C.UTF-8",
            "COLUMNS": "120",
            "PYTHONUNBUFFERED": "1",
            "DOCS_OUTER_PATH": os.environ["PATH"],
            "DOCS_SERVICES": str(self._services),
            "DOCS_COMPOSE": "yes" if has_compose() else "no",
            "FORERUN_VERIFY_MODEL": model,
            "FORERUN_VERIFY_THREADS": "1",
            "FORERUN_DRAFT_MODEL": model,
        }

    def _write_stub(self, path: Path, *command: str) -> None:
        words = shlex.join([sys.executable, "-m", "tests.docs.commands", *command])
        path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        path.chmod(0o755)
