"""Owns conversion to bfloat16 bit patterns, which NumPy keeps as uint16."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint16]

_QUIET_NAN = np.uint32(0x7FC0)


def round_to_bfloat16(values: NDArray[np.float32]) -> Bits:
    """Round float32 values to the nearest bfloat16, ties to even; the shape is kept.

    Values beyond the largest bfloat16 become infinite and every NaN the quiet NaN, as in IEEE 754
    narrowing and in PyTorch.
    """
    bits: NDArray[np.uint32] = np.ascontiguousarray(values).view(np.uint32)
    rounded: NDArray[np.uint32] = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    rounded[is_nan] = _QUIET_NAN
    return rounded.astype(np.uint16)
