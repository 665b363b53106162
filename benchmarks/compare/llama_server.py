"""Owns llama.cpp's server, built for the processor at hand, and the head in its own format.

The sources are those of the package that the peer "llama.cpp" is installed from. Both lie below
the cache folder, where the driver looks for them (drivers/llama_server_peer.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.compare.peers import HERE, PeerFailed, PeerSpec, environment

PEER = PeerSpec("llama.cpp", "llama_server_peer")
PACKAGE = "llama-cpp-python"
# The converter imports it before it finds that the tokenizer is another one.
SENTENCEPIECE = "sentencepiece==0.2.3"
CMAKE = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
}


def prepare(cache: Path) -> None:
    """Builds llama-server, unless that was done. Raises PeerFailed."""
    folder, log = cache / "llama_server", cache / "llama_server.log"
    if not (folder / "bin" / "llama-server").is_file():
        print(f"building llama-server in {folder}; see {log}", file=sys.stderr, flush=True)
        _build(folder, _sources(folder, log), log)


def _build(folder: Path, sources: Path, log: Path) -> None:
    define = [f"-D{name}={value}" for name, value in CMAKE.items()]
    build = folder / "build"
    _run(["cmake", "-G", "Ninja", "-S", sources, "-B", build, *define], log)
    jobs = str(len(os.sched_getaffinity(0)))
    _run(["cmake", "--build", build, "--target", "llama-server", "--parallel", jobs], log)
    (folder / "bin").mkdir(exist_ok=True)
    (build / "bin" / "llama-server").rename(folder / "bin" / "llama-server")


def convert(cache: Path, head: Path, target: Path) -> None:
    """Writes an EAGLE-3 head, as it is published, as GGUF in bfloat16. target: the folder of the
    model that it drafts for, whose tokenizer it gets. Raises PeerFailed."""
    folder, log = cache / "llama_server", cache / "llama_server.log"
    packages = folder / "packages"
    python = environment("transformers", cache)
    if not packages.is_dir():
        _run([sys.executable, "-m", "pip", "install", "--no-deps", "--target", packages,
              SENTENCEPIECE], log)  # fmt: skip
    scratch = folder / "incomplete.gguf"
    _run(
        [python, _sources(folder, log) / "convert_hf_to_gguf.py", head, "--target-model-dir",
         target, "--outtype", "bf16", "--outfile", scratch],
        log,
        {"PYTHONPATH": str(packages)},
    )  # fmt: skip
    scratch.rename(folder / "head.bf16.gguf")


def _sources(folder: Path, log: Path) -> Path:
    lines = (HERE / "requirements" / "llama_cpp.txt").read_text(encoding="utf-8").splitlines()
    wanted = next(line for line in lines if line.startswith(f"{PACKAGE}=="))
    name = wanted.replace("-", "_").replace("==", "-")
    sources = folder / name / "vendor" / "llama.cpp"
    if sources.is_dir():
        return sources
    folder.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PACKAGE,
          "--dest", folder, wanted], log)  # fmt: skip
    archive = folder / f"{name}.tar.gz"
    with tarfile.open(archive) as files:
        files.extractall(folder / "incomplete", filter="data")
    (folder / "incomplete" / name).rename(folder / name)
    (folder / "incomplete").rmdir()
    archive.unlink()
    return sources


def _run(
    command: Sequence[str | Path], log: Path, variables: Mapping[str, str] | None = None
) -> None:
    """Runs a command that may be one of the programs beside this Python, as CMake is."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": programs, **(variables or {})}
    with log.open("a", encoding="utf-8") as output:
        finished = subprocess.run(command, stdout=output, stderr=output, env=environ, check=False)
    if finished.returncode:
        raise PeerFailed(f"{Path(command[0]).name} failed with {finished.returncode}; see {log}")
