"""Owns who is compared, and the environment of each: a venv of its own, below the cache folder."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
# For pictures and sounds alone; their wheels fit one build of torch, and imports fail with another.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
# What pip said last tells the reason, as far as a table has room.
REASON_LENGTH = 200


class PeerFailed(Exception):
    """A peer cannot be installed or run; the message is the reason, in one line."""


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """One peer. driver: its script in drivers/. requirements: its file in requirements/; None runs
    in this very environment. build: environment variables of its installation."""

    name: str
    driver: str
    requirements: str | None = None
    build: tuple[tuple[str, str], ...] = ()


PEERS = (
    PeerSpec("forerun", "forerun_engine"),
    PeerSpec("forerun, both servers", "forerun_servers"),
    PeerSpec(
        "llama.cpp",
        "llama_cpp_peer",
        "llama_cpp",
        (("CMAKE_ARGS", "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF"),),
    ),
    PeerSpec("OpenVINO GenAI", "openvino_peer", "openvino"),
    PeerSpec("vLLM", "vllm_peer", "vllm"),
    PeerSpec("Transformers", "transformers_peer", "transformers"),
)


def prepare(spec: PeerSpec, cache: Path) -> Path:
    """The Python that runs the peer's driver; makes its venv if need be.

    Raises PeerFailed where it cannot be installed.
    """
    if spec.requirements is None:
        return Path(sys.executable)
    return environment(spec.requirements, cache, dict(spec.build))


def environment(requirements: str, cache: Path, build: dict[str, str] | None = None) -> Path:
    """The Python of the venv that holds requirements/NAME.txt; raises PeerFailed."""
    wanted = (HERE / "requirements" / f"{requirements}.txt").read_text(encoding="utf-8")
    folder = cache / requirements
    python, marker = folder / "bin" / "python", folder / "installed.txt"
    if marker.is_file() and marker.read_text(encoding="utf-8") == wanted:
        return python
    log = cache / f"{requirements}.log"
    print(f"installing {requirements} into {folder}; see {log}", file=sys.stderr, flush=True)
    cache.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as output:
        for command in (
            [sys.executable, "-m", "venv", str(folder)],
            [str(python), "-m", "pip", "install", "--requirement",
             str(HERE / "requirements" / f"{requirements}.txt")],
            [str(python), "-m", "pip", "uninstall", "--yes", *UNWANTED],
        ):  # fmt: skip
            finished = subprocess.run(
                command, stdout=output, stderr=output, env=os.environ | (build or {}), check=False
            )
            if finished.returncode:
                raise PeerFailed(f"not installed: {_last_words(log)}")
    marker.write_text(wanted, encoding="utf-8")
    return python


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.strip() for line in lines if "error" in line.lower()]
    return (errors or lines or ["no reason given"])[-1][:REASON_LENGTH]
