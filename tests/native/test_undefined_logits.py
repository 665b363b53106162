"""A model whose logits are not numbers has no next token, and says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.fixtures.engines import ISA_LEVELS, engine, prefill
from tests.fixtures.tiny import tiny_checkpoint


@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_prediction_is_no_token(tmp_path: Path, isa: str, threads: int, value: float) -> None:
    path = tiny_checkpoint(tmp_path)
    weights = load_file(path / "model.safetensors")
    weights["model.norm.weight"] = np.full_like(weights["model.norm.weight"], value)
    save_file(weights, path / "model.safetensors")
    target = engine(path, kv_tokens=256, threads=threads, pin=False, isa=isa)
    _, first = prefill(target, [1, 2, 3])
    assert first == -1
