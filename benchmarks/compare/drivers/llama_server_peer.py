"""llama.cpp's own server, which alone drafts with a head: a child process on a Unix socket."""

from __future__ import annotations

import ctypes
import http.client
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from protocol import Answered, Peer, Prompts, Timed, drafts, serve

# It drafts chains alone; a tree of 8 goes about as deep.
CHAIN = 4
SLOTS = 12
SLOT_TOKENS = 2048
LOAD_TIMEOUT_S = 120.0
GRACE_S = 5.0
# Its counters, which add up over all requests.
ROUNDS, ACCEPTED = "spec_decode_num_drafts_total", "spec_decode_num_accepted_tokens_total"
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class LlamaServer(Peer):
    """Requests of one case go in together, each into a slot of its own; nothing is cached."""

    dtype = "bfloat16 weights"

    def __init__(self, folder: str, threads: int, stack: ExitStack) -> None:
        # What llama_server.py has made, beside the exported models.
        made = Path(folder).parent / "llama_server"
        binary = made / "bin" / "llama-server"
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        self._socket = str(Path(scratch) / "llama.sock")
        options = {
            "--model": Path(folder) / "model.bf16.gguf",
            "--host": self._socket,
            "--threads": threads,
            "--parallel": SLOTS,
            "--ctx-size": SLOTS * SLOT_TOKENS,
            "--batch-size": 512,
            "--ubatch-size": 512,
            "--fit": "off",
            "--cache-ram": 0,
        }
        given = drafts()
        if given is not None:
            options |= {
                "--spec-type": f"draft-{given[0]}",
                "--spec-draft-model": made / "head.bf16.gguf",
                "--spec-draft-n-max": CHAIN,
                "--spec-draft-p-min": 0,
                "--spec-draft-threads": threads,
            }
        # A cache of its own for each stream, which is the faster way where no prefix is shared.
        flags = ["--no-kv-unified", "--metrics", "--no-ui", "--offline"]
        command = [str(each) for option in options.items() for each in option]
        process = stack.enter_context(_child([str(binary), *command, *flags]))
        self._wait_until_healthy(process)
        version = subprocess.run(
            [str(binary), "--version"], capture_output=True, text=True, check=True
        )
        told = (version.stdout + version.stderr).splitlines()
        self.versions = {
            "llama.cpp": next(line for line in told if line.startswith("version")).split(": ")[1]
        }

    def decode(self, prompts: Prompts, steps: int) -> Timed:
        raise NotImplementedError("it times whole answers alone")

    def prefill(self, prompt: list[int]) -> Timed:
        raise NotImplementedError("it times whole answers alone")

    def answer(self, prompts: Prompts, streams: int, max_tokens: int) -> Answered:
        def complete(prompt: list[int]) -> list[int]:
            request = {
                "prompt": prompt,
                "n_predict": max_tokens,
                "ignore_eos": True,
                "cache_prompt": False,
                "return_tokens": True,
                "temperature": 0,
                "samplers": ["top_k"],
                "top_k": 1,
            }
            tokens: list[int] = json.loads(self._ask("POST", "/completion", request))["tokens"]
            return tokens

        rounds, accepted = self._counts()
        with ThreadPoolExecutor(streams) as threads:
            start = time.perf_counter()
            tokens = list(threads.map(complete, prompts))
            seconds = time.perf_counter() - start
        rounds_now, accepted_now = self._counts()
        return Answered(seconds, tokens, rounds_now - rounds, accepted_now - accepted)

    def _counts(self) -> tuple[int, int]:
        """Drafts that were verified, and their accepted tokens, since the start."""
        lines = self._ask("GET", "/metrics").decode().splitlines()
        pairs = (line.split(" ", 1) for line in lines if not line.startswith("#"))
        values = {name.removeprefix("llamacpp:"): value for name, value in pairs}
        return int(float(values[ROUNDS])), int(float(values[ACCEPTED]))

    def _wait_until_healthy(self, process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + LOAD_TIMEOUT_S
        while time.monotonic() < end:
            if process.poll() is not None:
                raise RuntimeError(f"llama-server ended with status {process.returncode}")
            try:
                self._ask("GET", "/health")
                return
            except (OSError, RuntimeError):  # no socket yet, or a model that still loads
                time.sleep(0.1)
        raise RuntimeError(f"llama-server was not ready within {LOAD_TIMEOUT_S:g} s")

    def _ask(self, method: str, path: str, request: dict[str, Any] | None = None) -> bytes:
        connection = _Connection(self._socket)
        try:
            body = None if request is None else json.dumps(request)
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise RuntimeError(f"{path}: {response.status} {answer.decode(errors='replace')}")
        return answer


class _Connection(http.client.HTTPConnection):
    """HTTP on a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


@contextmanager
def _child(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command inside the `with` block; it ends with this process even if that is killed."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,
        preexec_fn=lambda: _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    # So that what the stack holds is ended when the comparison ends this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ExitStack() as servers:
        serve(lambda folder, threads: LlamaServer(folder, threads, servers))
