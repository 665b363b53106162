"""Owns where the drafting head lies that comes with forerun, for the default model alone."""

from __future__ import annotations

from pathlib import Path

from forerun.models.default_model import FILE_NAME, cache_directory

METHOD = "eagle3"
NAME = "smollm2-135m-eagle3"

_HERE = Path(__file__).resolve()
# In an installation, and in a source tree.
_FOLDERS = (_HERE.parent / NAME, _HERE.parents[2] / "models" / NAME)


def shipped_head(method: str, target: Path | None) -> Path | None:
    """The folder of the head that `method` ("eagle3", or with n-grams "ngram+eagle3") drafts with
    for a target where none is named; None if there is none.

    target: a checkpoint, None for the default model.
    """
    if method.removeprefix("ngram+") != METHOD:
        return None
    if target is not None and target != cache_directory() / FILE_NAME:
        return None
    return next((folder for folder in _FOLDERS if folder.is_dir()), None)
