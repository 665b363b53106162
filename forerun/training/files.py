"""Owns writing a file so that a reader, or a later run, finds it whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Writes beside `path` and renames, replacing what was there."""
    scratch = path.with_name(f".{path.name}.partial")
    with scratch.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)
