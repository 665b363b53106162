"""Owns the layout of a GGUF file: its metadata and where each tensor lies.

Source: the GGUF specification, versions 2 and 3, little-endian. The gguf package names the types
and dequantises them; its reader is not used because it builds NumPy views of every string of the
vocabulary, which takes seconds and about 160 MB for 49,152 tokens. Every count and offset is
checked against the file's size before it is followed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGMLQuantizationType,
    GGUFValueType,
)

from forerun.models.errors import ModelError

_SCALARS: dict[int, struct.Struct] = {
    GGUFValueType.UINT8: struct.Struct("<B"),
    GGUFValueType.INT8: struct.Struct("<b"),
    GGUFValueType.UINT16: struct.Struct("<H"),
    GGUFValueType.INT16: struct.Struct("<h"),
    GGUFValueType.UINT32: struct.Struct("<I"),
    GGUFValueType.INT32: struct.Struct("<i"),
    GGUFValueType.UINT64: struct.Struct("<Q"),
    GGUFValueType.INT64: struct.Struct("<q"),
    GGUFValueType.FLOAT32: struct.Struct("<f"),
    GGUFValueType.FLOAT64: struct.Struct("<d"),
    GGUFValueType.BOOL: struct.Struct("<?"),
}
_MAX_DIMENSIONS = 4
# The kinds whose dequantisation is tested; a file of any other kind is refused by name.
SUPPORTED_TYPES = tuple(
    GGMLQuantizationType[name]
    for name in "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K".split()
)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies: `offset` from the start of the file, `row_bytes` a row.

    shape: output dimension first, as in NumPy (the file lists the fastest dimension first).
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    row_bytes: int


class GgufFile:
    """An open GGUF file. metadata: key → int, float, bool, str or list of those.

    Raises ModelError for a file that is not GGUF, is cut short, or holds a tensor whose type
    forerun cannot read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.raw: BinaryIO = path.open("rb", buffering=1 << 16)
        try:
            self._size = path.stat().st_size
            self.metadata, self.tensors = self._read_header()
        except BaseException:
            self.raw.close()
            raise

    def read_rows(
        self, tensor: GgufTensor, start: int, stop: int
    ) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the bytes of rows start..stop-1 as uint8 [stop - start, row_bytes]."""
        self.raw.seek(tensor.offset + start * tensor.row_bytes)
        data = np.fromfile(self.raw, dtype=np.uint8, count=(stop - start) * tensor.row_bytes)
        return data.reshape(stop - start, tensor.row_bytes)

    def close(self) -> None:
        """Close the file; idempotent."""
        self.raw.close()

    def _read_header(self) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
        if self._take(4) != b"GGUF":
            raise ModelError(f"{self.path} is not a GGUF file: it does not begin with 'GGUF'")
        version = self._scalar(GGUFValueType.UINT32)
        if version not in (2, 3):
            raise ModelError(
                f"{self.path}: GGUF version {version}; expected 2 or 3, little-endian. "
                "Convert the model again with a current converter"
            )
        num_tensors = self._count(24)
        num_entries = self._count(12)
        metadata: dict[str, Any] = {}
        for _ in range(num_entries):
            key = self._string()
            if key in metadata:
                raise ModelError(f"{self.path}: metadata key {key} appears twice")
            metadata[key] = self._value(self._scalar(GGUFValueType.UINT32))
        infos = [self._tensor_info() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ModelError(f"{self.path}: general.alignment {alignment!r} is not a power of two")
        data_start = -(-self.raw.tell() // alignment) * alignment
        return metadata, self._place(infos, data_start)

    def _place(
        self, infos: list[tuple[str, tuple[int, ...], int, int]], data_start: int
    ) -> dict[str, GgufTensor]:
        tensors: dict[str, GgufTensor] = {}
        free_from = data_start
        for name, shape, type_id, offset in sorted(infos, key=lambda info: info[3]):
            if type_id not in [int(kind) for kind in SUPPORTED_TYPES]:
                known = type_id in GGMLQuantizationType._value2member_map_
                kind_name = GGMLQuantizationType(type_id).name if known else f"id {type_id}"
                raise ModelError(
                    f"{self.path}: tensor {name} is of type {kind_name}; supported: "
                    f"{', '.join(kind.name for kind in SUPPORTED_TYPES)}"
                )
            kind = GGMLQuantizationType(type_id)
            block, block_bytes = GGML_QUANT_SIZES[kind]
            # A vector is read as a column, so that rows mean the same for it as for a matrix.
            columns = shape[-1] if len(shape) > 1 else 1
            if columns % block:
                raise ModelError(
                    f"{self.path}: tensor {name} of shape {shape} cannot be of type {kind.name}: "
                    f"its rows are not whole blocks of {block}"
                )
            row_bytes = columns // block * block_bytes
            start = data_start + offset
            end = start + math.prod(shape) // columns * row_bytes
            if start < free_from or end > self._size:
                raise ModelError(
                    f"{self.path}: tensor {name} lies at bytes {start}..{end}, which overlaps "
                    f"another tensor or the end of the file ({self._size}); the file is damaged"
                )
            if name in tensors:
                raise ModelError(f"{self.path}: tensor {name} appears twice")
            free_from = end
            tensors[name] = GgufTensor(name, shape, kind, start, row_bytes)
        return tensors

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        num_dimensions = self._scalar(GGUFValueType.UINT32)
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise ModelError(f"{self.path}: tensor {name} has {num_dimensions} dimensions")
        fastest_first = [self._scalar(GGUFValueType.UINT64) for _ in range(num_dimensions)]
        if min(fastest_first) < 1:
            raise ModelError(f"{self.path}: tensor {name} is empty")
        type_id = self._scalar(GGUFValueType.UINT32)
        return name, tuple(fastest_first[::-1]), type_id, self._scalar(GGUFValueType.UINT64)

    def _value(self, kind: int) -> Any:
        if kind == GGUFValueType.STRING:
            return self._string()
        if kind in _SCALARS:
            return self._scalar(kind)
        if kind != GGUFValueType.ARRAY:
            raise ModelError(f"{self.path}: metadata of unknown type {kind}; the file is damaged")
        item_kind = self._scalar(GGUFValueType.UINT32)
        if item_kind in _SCALARS:
            layout = _SCALARS[item_kind]
            data = self._take(self._count(layout.size) * layout.size)
            return [item[0] for item in layout.iter_unpack(data)]
        if item_kind != GGUFValueType.STRING:
            raise ModelError(f"{self.path}: metadata array of type {item_kind} is not supported")
        read_string: Callable[[], str] = self._string
        return [read_string() for _ in range(self._count(8))]

    def _scalar(self, kind: int) -> Any:
        layout = _SCALARS[kind]
        return layout.unpack(self._take(layout.size))[0]

    def _string(self) -> str:
        # Byte-wise vocabularies may hold fragments of characters.
        return self._take(self._count(1)).decode("utf-8", errors="replace")

    def _count(self, item_bytes: int) -> int:
        """Read a 64-bit count of items of at least `item_bytes`, which the rest must hold."""
        count: int = self._scalar(GGUFValueType.UINT64)
        if count * item_bytes > self._size - self.raw.tell():
            raise ModelError(
                f"{self.path}: a length of {count} at byte {self.raw.tell() - 8} goes beyond the "
                f"end of the file ({self._size} bytes); the file is cut short or damaged"
            )
        return count

    def _take(self, num_bytes: int) -> bytes:
        data = self.raw.read(num_bytes)
        if len(data) != num_bytes:
            raise ModelError(f"{self.path} ends at byte {self._size}, inside its header")
        return data
