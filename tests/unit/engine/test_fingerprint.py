"""The fingerprint of a model: the same for the same weights, another for any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from forerun.engine import weights
from forerun.engine.fingerprint import Fingerprint
from forerun.models import open_checkpoint
from tests.fixtures.tiny import tiny_checkpoint


def fingerprint(path: Path) -> str:
    with open_checkpoint(path) as checkpoint:
        return weights.load_model(checkpoint, None, None)[1]


def test_the_same_weights_have_the_same_under_any_name_and_in_any_shards(tmp_path: Path) -> None:
    one = fingerprint(tiny_checkpoint(tmp_path / "one"))
    assert len(one) == 32 and set(one) <= set("0123456789abcdef")
    assert fingerprint(tmp_path / "one") == one
    assert fingerprint(tiny_checkpoint(tmp_path / "two", dtype="bfloat16", num_shards=3)) == one


def test_other_weights_and_another_configuration_have_another(tmp_path: Path) -> None:
    found = {
        fingerprint(tiny_checkpoint(tmp_path / "one")),
        fingerprint(tiny_checkpoint(tmp_path / "two", seed=1)),
        fingerprint(tiny_checkpoint(tmp_path / "three", rms_norm_eps=0.5)),
    }
    assert len(found) == 3


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.1.mlp.down_proj.weight",
        "model.layers.1.input_layernorm.weight",
        "model.norm.weight",
    ],
)
def test_one_weight_in_the_middle_makes_it_another(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_ROWS_AT_ONCE_BYTES", 1024)  # several blocks of several rows
    path = tiny_checkpoint(tmp_path / "model")
    before = fingerprint(path)
    tensors = load_file(path / "model.safetensors")
    tensors[name].reshape(-1)[tensors[name].size // 2 + 3] += 1.0
    save_file(tensors, path / "model.safetensors")
    assert fingerprint(path) != before


def test_sizes_that_are_no_whole_words(tmp_path: Path) -> None:
    with open_checkpoint(tiny_checkpoint(tmp_path / "model")) as checkpoint:
        found = set()
        for last in (0, 1):
            made = Fingerprint(checkpoint.config)
            made.add("odd", 0, np.array([[1, 2, 3], [4, 5, last]], np.uint16))
            found.add(str(made))
        assert len(found) == 2
