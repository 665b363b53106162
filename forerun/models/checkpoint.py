"""Owns the view of a checkpoint that the engine loads from: names, shapes and bfloat16 rows.

It knows nothing about file formats: those are its two subclasses. Weights pass through as row
blocks, so loading a model needs little memory beyond the weights themselves.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from forerun.models.bfloat16 import Bits
from forerun.models.config import ModelConfig
from forerun.models.opened import Opened
from forerun.models.tensor_set import Shapes, check_tensor_set

# Large enough that Python's cost a block vanishes, small enough to stay in the second-level cache
# with its float32 copy.
_BLOCK_ELEMENTS = 1 << 18


class Checkpoint(Opened):
    """An open, checked checkpoint.

    config: the model's shape. path: the folder or file opened. tensor_shapes: canonical
    (Hugging Face) name → shape of every tensor the architecture needs, and no other.
    weight_bytes: size of all of them in bfloat16. For one thread at a time.
    """

    def __init__(
        self, path: Path, config: ModelConfig, found: Mapping[str, tuple[int, ...]]
    ) -> None:
        self.path = path
        self.config = config
        self.tensor_shapes: Shapes = check_tensor_set(found, config)
        self.weight_bytes = 2 * sum(math.prod(shape) for shape in self.tensor_shapes.values())

    def read(self, name: str) -> Bits:
        """Return a whole tensor as bfloat16 bit patterns: uint16, C-contiguous, HF row order.

        Values that are not bfloat16 in the file are rounded to nearest, ties to even.
        Raises KeyError for a name outside `tensor_shapes` and OSError if the file cannot be read.
        """
        shape = self.tensor_shapes[name]
        tensor = np.empty(shape, dtype=np.uint16)
        rows_per_block = max(1, _BLOCK_ELEMENTS // math.prod(shape[1:]))
        for start in range(0, shape[0], rows_per_block):
            stop = min(start + rows_per_block, shape[0])
            tensor[start:stop] = self._read_block(name, start, stop)
        return tensor

    def read_rows(self, name: str, start: int, stop: int) -> Bits:
        """Return rows start..stop-1 (elements, for a vector) as `read` returns the whole.

        Raises IndexError unless 0 <= start <= stop <= number of rows.
        """
        rows = self.tensor_shapes[name][0]
        if not 0 <= start <= stop <= rows:
            raise IndexError(f"{name} has {rows} rows; rows {start}..{stop} were asked for")
        return np.ascontiguousarray(self._read_block(name, start, stop))

    @abstractmethod
    def _read_block(self, name: str, start: int, stop: int) -> Bits:
        """Return rows start..stop-1 of a tensor of `tensor_shapes`; the range is valid."""
