"""Owns reading the weights of a GGUF file as a Hugging Face model would hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from forerun.models.bfloat16 import Bits, round_to_bfloat16
from forerun.models.checkpoint import Checkpoint
from forerun.models.gguf_config import ROPE_DIVISORS, canonical_name, config_from_gguf
from forerun.models.gguf_file import GgufFile, GgufTensor


class GgufCheckpoint(Checkpoint):
    """A .gguf file whose weights are dequantised a block of rows at a time."""

    def __init__(self, path: Path) -> None:
        self._file = GgufFile(path)
        try:
            config = config_from_gguf(self._file)
            self._tensors = {
                canonical_name(name): tensor
                for name, tensor in self._file.tensors.items()
                if name != ROPE_DIVISORS
            }
            super().__init__(path, config, {n: t.shape for n, t in self._tensors.items()})
        except BaseException:
            self._file.close()
            raise

    def _read_block(self, name: str, start: int, stop: int) -> Bits:
        tensor = self._tensors[name]
        if self.config.architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            rows = self._rotary_rows(tensor, start, stop)
        else:
            rows = self._file.read_rows(tensor, start, stop)
        return _to_bfloat16(rows, tensor.type).reshape(stop - start, *tensor.shape[1:])

    def _rotary_rows(self, tensor: GgufTensor, start: int, stop: int) -> NDArray[np.uint8]:
        """Return q or k rows in Hugging Face's order.

        Converters interleave the two halves of each head for rotation by neighbouring pairs: row
        2j+i of a head is Hugging Face's row i*head_dim/2 + j. Rows are whole, so their quantised
        bytes can move unread. The heads are those of the tensor at hand: query heads for q,
        key-value heads for k.
        """
        head_dim = self.config.head_dim
        first, last = start // head_dim, -(-stop // head_dim)
        stored = self._file.read_rows(tensor, first * head_dim, last * head_dim)
        pairs: NDArray[np.uint8] = stored.reshape(last - first, head_dim // 2, 2, tensor.row_bytes)
        rows: NDArray[np.uint8] = pairs.swapaxes(1, 2).reshape(-1, tensor.row_bytes)
        return rows[start - first * head_dim : stop - first * head_dim]

    def close(self) -> None:
        self._file.close()


def _to_bfloat16(rows: NDArray[np.uint8], kind: GGMLQuantizationType) -> Bits:
    data: NDArray[Any] = np.ascontiguousarray(rows)
    if kind == GGMLQuantizationType.BF16:
        return data.view(np.uint16)
    return round_to_bfloat16(dequantize(data, kind))
