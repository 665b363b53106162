"""Owns the random tensors of these tests: every argument may differ in width and in library."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st

# Wall time decides nothing: a busy machine is no failure.
EXAMPLES = settings(deadline=None, max_examples=50)

WIDTHS = (np.int32, np.int64)


def as_list(tensor: Any) -> Any:
    return tensor.tolist()


def index_tensor(data: st.DataObject, values: Any) -> Any:
    """The values as an int32 or int64 tensor of numpy or torch."""
    array = np.asarray(values, dtype=data.draw(st.sampled_from(WIDTHS)))
    return torch.from_numpy(array) if data.draw(st.booleans()) else array


def library_tensor(data: st.DataObject, array: np.ndarray[Any, Any]) -> Any:
    return torch.from_numpy(array) if data.draw(st.booleans()) else array


@st.composite
def trees(draw: st.DrawFn, num_nodes: int) -> list[int]:
    """Parents of a random tree of `num_nodes` nodes."""
    return [-1] + [draw(st.integers(0, node - 1)) for node in range(1, num_nodes)]
