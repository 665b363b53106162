"""Owns what tells two models apart that have the same name and shape: a digest of what was loaded.

For equality alone, between servers of one version: it guards against other weights, not against
somebody who makes up weights that have the digest of others.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from forerun.models import ModelConfig
from forerun.models.bfloat16 import Bits


class Fingerprint:
    """A digest of a model, made of its blocks as they are loaded, in the order of loading.

    Of each block the first row is hashed, and the sum of all: a sum runs at the speed of memory,
    where a hash over tens of gigabytes would double the time to load them, and it differs wherever
    a single weight does. `config` counts but for the name: angles and norms depend on it.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._digest = hashlib.blake2b(repr(replace(config, name="")).encode(), digest_size=16)

    def add(self, name: str, start: int, rows: Bits) -> None:
        """rows: the block of a tensor that begins at row `start`, C-contiguous, a vector or a
        matrix."""
        values = rows.reshape(-1)
        words = values[: values.size // 4 * 4].view(np.uint64)
        self._digest.update(f"{name} {start} {rows.shape}".encode())
        self._digest.update((rows if rows.ndim == 1 else rows[0]).tobytes())
        self._digest.update(
            words.sum(dtype=np.uint64).tobytes() + values[4 * words.size :].tobytes()
        )

    def __str__(self) -> str:
        """32 hexadecimal digits."""
        return self._digest.hexdigest()
