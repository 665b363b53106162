"""Owns reading a settings file whose content must be one JSON object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forerun.models.errors import ModelError


def read_json_object(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """Return the object a JSON file holds; {} for an absent file if `optional`.

    Raises ModelError if the file cannot be read or holds anything else.
    """
    if optional and not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds a {type(value).__name__}; expected an object")
    return value
