"""Owns rotary position embedding frequencies; knows nothing about files or attention.

Sources: RoFormer (arXiv:2104.09864) for the default type; position interpolation
(arXiv:2306.15595) for `linear`; the Llama 3.1 frequency scaling for `llama3`, as Transformers'
`modeling_rope_utils.py` computes them in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

RopeType = Literal["default", "linear", "llama3"]
ROPE_TYPES: tuple[str, ...] = get_args(RopeType)


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """How positions become angles.

    theta: base of the frequencies. factor: stretch of the context for `linear` and `llama3`.
    low_freq_factor, high_freq_factor, original_max_positions: used by `llama3` alone.
    divisors: for `llama3` from a GGUF file, which stores no parameters but one float32 divisor for
    each of the head_dim/2 frequencies (`rope_freqs.weight`); then the other fields are unused.
    """

    theta: float = 10_000.0
    type: RopeType = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0
    divisors: tuple[float, ...] | None = None

    def inverse_frequencies(self, head_dim: int) -> NDArray[np.float32]:
        """Return the float32 [head_dim/2] angle per position of each pair of dimensions.

        Every operation is the float32 operation of Transformers. The power alone is correctly
        rounded from float64, because vectorised float32 powers differ in the last bit from one CPU
        to another; PyTorch's scalar path gives the same bits.
        """
        exponents = np.arange(0, head_dim, 2).astype(np.float32) / np.float32(head_dim)
        powers = np.power(np.float64(self.theta), exponents.astype(np.float64)).astype(np.float32)
        frequencies = _float32(np.float32(1.0) / powers)
        if self.divisors is not None:
            divisors: NDArray[np.float32] = np.asarray(self.divisors, dtype=np.float32)
            return _float32(frequencies / divisors)
        if self.type == "linear":
            return _float32(frequencies / np.float32(self.factor))
        if self.type == "llama3":
            return self._scale_llama3(frequencies)
        return frequencies

    def _scale_llama3(self, frequencies: NDArray[np.float32]) -> NDArray[np.float32]:
        factor = np.float32(self.factor)
        low = np.float32(self.low_freq_factor)
        original = np.float32(self.original_max_positions)
        longest = np.float32(self.original_max_positions / self.low_freq_factor)
        shortest = np.float32(self.original_max_positions / self.high_freq_factor)
        spread = np.float32(self.high_freq_factor - self.low_freq_factor)
        one = np.float32(1.0)

        # PyTorch divides a number by a tensor as reciprocal, then product.
        wavelengths = (one / frequencies) * np.float32(2 * math.pi)
        is_long = wavelengths > longest
        is_medium = ~(wavelengths < shortest) & ~is_long
        scaled = np.where(is_long, frequencies / factor, frequencies)
        smooth = ((one / wavelengths) * original - low) / spread
        smoothed = (one - smooth) * scaled / factor + smooth * scaled
        return _float32(np.where(is_medium, smoothed, scaled))


def _float32(values: NDArray[Any]) -> NDArray[np.float32]:
    # NumPy's types do not follow float32 through division.
    return values.astype(np.float32, copy=False)
