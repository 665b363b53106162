"""Rounding to bfloat16 against PyTorch's."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.models.bfloat16 import round_to_bfloat16


def torch_bits(values: np.ndarray) -> np.ndarray:
    rounded = torch.from_numpy(values).to(torch.bfloat16)
    return rounded.view(torch.int16).numpy().view(np.uint16)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=64))
def test_equals_pytorch_for_any_bits(patterns: list[int]) -> None:
    values = np.array(patterns, dtype=np.uint32).view(np.float32)
    ours, theirs = round_to_bfloat16(values), torch_bits(values)
    is_nan = np.isnan(values)
    assert (ours[~is_nan] == theirs[~is_nan]).all()
    assert (ours[is_nan] == 0x7FC0).all()


def test_ties_go_to_even_and_overflow_to_infinity() -> None:
    # Halfway between two neighbours: up where that is even, down where it is not.
    patterns = [0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0xFF7FFFFF, 0x80000000]
    values = np.array(patterns, dtype=np.uint32).view(np.float32)
    expected = [0x3F80, 0x3F82, 0x3F81, 0x7F80, 0xFF80, 0x8000]
    assert round_to_bfloat16(values).tolist() == expected


def test_every_float16_passes_through_float32() -> None:
    halves = np.arange(2**16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    finite = halves[np.isfinite(halves)].astype(np.float32)
    assert (round_to_bfloat16(finite) == torch_bits(finite)).all()
