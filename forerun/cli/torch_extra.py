"""Owns what commands say that need PyTorch where it is not: how to have it, for this Python."""

from __future__ import annotations

import importlib.util
import sys
from importlib import metadata

from forerun.cli.errors import CommandError


def require_torch(work: str) -> None:
    """Raises CommandError unless PyTorch is installed. work: what needs it."""
    if importlib.util.find_spec("torch") is not None:
        return
    wanted = (line.partition(";")[0].strip() for line in metadata.requires("forerun") or ())
    torch = next((line for line in wanted if line.startswith("torch")), "torch")
    raise CommandError(f"{work} needs PyTorch: {sys.executable} -m pip install '{torch}'")
