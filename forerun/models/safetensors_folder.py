"""Owns the tensors of a folder of safetensors files: names, shapes, and rows of numbers.

The safetensors library checks each file (header size, offsets inside the file, no overlap, no
holes); the bytes are then read with plain file reads, because its memory map would count every
page it has touched as resident and because its NumPy side has no bfloat16.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from forerun.models.bfloat16 import Bits, round_to_bfloat16
from forerun.models.errors import ModelError
from forerun.models.json_object import read_json_object

_DTYPES: dict[str, np.dtype[Any]] = {
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
}
_INTEGER_DTYPES: dict[str, np.dtype[Any]] = {"I64": np.dtype("<i8"), "I32": np.dtype("<i4")}
_INDEX_NAME = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class _Placement:
    """Where a tensor's bytes begin in which file, and how to read them."""

    file: Path
    offset: int
    dtype: str
    shape: tuple[int, ...]


class SafetensorsFolder:
    """The tensors of one file, or of those that an index names. shapes: by name.

    Raises ModelError for a broken or missing file, or a tensor that is in two of them.
    """

    def __init__(self, directory: Path) -> None:
        self._placements = _placements(directory)
        self._files: dict[Path, BinaryIO] = {}
        self.shapes = {name: place.shape for name, place in self._placements.items()}

    def open(self, names: Iterable[str]) -> None:
        """Opens the files of these tensors, which hold floating-point numbers.

        Raises ModelError that names one of another type."""
        places = {name: self._placements[name] for name in names}
        for name, place in places.items():
            self._expect(place, name, _DTYPES)
        for file in {place.file for place in places.values()}:
            self._files[file] = file.open("rb", buffering=0)

    def read_block(self, name: str, start: int, stop: int) -> Bits:
        """Rows start..stop-1 of a tensor that was opened, rounded to bfloat16."""
        place = self._placements[name]
        dtype = _DTYPES[place.dtype]
        row_elements = math.prod(place.shape[1:])
        file = self._files[place.file]
        file.seek(place.offset + start * row_elements * dtype.itemsize)
        values = np.fromfile(file, dtype=dtype, count=(stop - start) * row_elements)
        values = values.reshape(stop - start, *place.shape[1:])
        return values if place.dtype == "BF16" else round_to_bfloat16(values.astype(np.float32))

    def read_integers(self, name: str) -> NDArray[np.int64]:
        """A whole tensor of integers. Raises ModelError for one of another type."""
        place = self._placements[name]
        self._expect(place, name, _INTEGER_DTYPES)
        values = np.fromfile(
            place.file,
            dtype=_INTEGER_DTYPES[place.dtype],
            count=math.prod(place.shape),
            offset=place.offset,
        )
        return values.astype(np.int64).reshape(place.shape)

    def close(self) -> None:
        """Closes the files; idempotent."""
        for file in self._files.values():
            file.close()

    @staticmethod
    def _expect(place: _Placement, name: str, dtypes: dict[str, np.dtype[Any]]) -> None:
        if place.dtype not in dtypes:
            raise ModelError(
                f"{place.file}: tensor {name} is of type {place.dtype}; "
                f"expected {', '.join(dtypes)}"
            )


def _placements(directory: Path) -> dict[str, _Placement]:
    placements: dict[str, _Placement] = {}
    for file in _weight_files(directory):
        for name, place in _file_placements(file).items():
            if name in placements:
                raise ModelError(
                    f"tensor {name} is in both {placements[name].file.name} and {file.name} "
                    f"of {directory}"
                )
            placements[name] = place
    return placements


def _weight_files(directory: Path) -> list[Path]:
    """Return the files the index names or, without one, the only weights of the folder."""
    index = directory / _INDEX_NAME
    if index.exists():
        weight_map = read_json_object(index).get("weight_map")
        names = set(weight_map.values()) if isinstance(weight_map, dict) else set()
        if not names or any(not isinstance(name, str) or Path(name).name != name for name in names):
            raise ModelError(f"{index}: weight_map must give a file of the same folder per tensor")
        files = sorted(directory / name for name in names)
    else:
        # Some repositories hold the weights a second time in the vendor's own layout.
        files = sorted(
            set(directory.glob("*.safetensors")) - {directory / "consolidated.safetensors"}
        )
        if len(files) > 1:
            names = {file.name for file in files}
            if "model.safetensors" not in names:
                raise ModelError(
                    f"{directory} holds {len(files)} safetensors files but no {_INDEX_NAME}; "
                    "copy the index from where the checkpoint came from"
                )
            files = [directory / "model.safetensors"]
    for file in files:
        if not file.is_file():
            raise ModelError(f"{file} is missing; the checkpoint is incomplete")
    if not files:
        remedy = "; forerun convert-head makes one of its pytorch_model.bin"
        has_pickle = (directory / "pytorch_model.bin").exists()
        raise ModelError(f"{directory} holds no .safetensors file{remedy if has_pickle else ''}")
    return files


def _file_placements(file: Path) -> dict[str, _Placement]:
    try:
        with safe_open(file, framework="numpy") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}
            described = {
                name: (str(view.get_dtype()), tuple(view.get_shape()))
                for name, view in slices.items()
            }
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file} is not a valid safetensors file: {error}") from error
    with file.open("rb") as raw:
        header_bytes = int.from_bytes(raw.read(8), "little")
        header = json.loads(raw.read(header_bytes))
    data_start = 8 + header_bytes
    return {
        name: _Placement(file, data_start + header[name]["data_offsets"][0], dtype, shape)
        for name, (dtype, shape) in described.items()
    }
