"""Checkpoints in Hugging Face folders: types, shards, the set of tensors, damaged files."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from forerun.models import Checkpoint, ModelError, open_checkpoint
from forerun.models.bfloat16 import round_to_bfloat16
from tests.fixtures.tiny import shared_checkpoint, tiny_checkpoint, tiny_config, tiny_weights

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def read_all(path: Path) -> dict[str, NDArray[np.uint16]]:
    with open_checkpoint(path) as checkpoint:
        return {name: checkpoint.read(name) for name in checkpoint.tensor_shapes}


def assert_same(a: dict[str, NDArray[np.uint16]], b: dict[str, NDArray[np.uint16]]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert np.array_equal(a[name], b[name]), name


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("tied", [True, False])
def test_reads_every_tensor_of_each_architecture(architecture: str, tied: bool) -> None:
    path = shared_checkpoint(architecture, tie_word_embeddings=tied)
    weights = tiny_weights(tiny_config(architecture, tie_word_embeddings=tied), seed=0)
    with open_checkpoint(path) as checkpoint:
        assert ("lm_head.weight" in checkpoint.tensor_shapes) is not tied
        assert checkpoint.weight_bytes == 2 * sum(w.size for w in weights.values())
        assert checkpoint.tensor_shapes == {name: w.shape for name, w in weights.items()}
        for name, expected in weights.items():
            bits = checkpoint.read(name)
            assert bits.dtype == np.uint16 and bits.flags.c_contiguous
            # The weights are exact in bfloat16, so the upper halves are all there is.
            assert np.array_equal(bits, (expected.view(np.uint32) >> 16).astype(np.uint16))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_stored_type_gives_the_same_bits(dtype: str) -> None:
    assert_same(read_all(shared_checkpoint(dtype=dtype)), read_all(shared_checkpoint()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shards_give_the_same_bits(dtype: str) -> None:
    sharded = shared_checkpoint(dtype=dtype, num_shards=3)
    assert len(list(sharded.glob("*.safetensors"))) == 3
    assert_same(read_all(sharded), read_all(shared_checkpoint()))


def test_values_between_bfloat16_are_rounded_to_nearest_even(tmp_path: Path) -> None:
    def perturb(weights: dict[str, NDArray[Any]]) -> None:
        values = np.random.default_rng(1).standard_normal(weights[Q_PROJ].shape)
        weights[Q_PROJ] = values.astype(np.float32)

    path = rewritten(tmp_path, perturb)
    expected = torch.from_numpy(load_file(path / "model.safetensors")[Q_PROJ]).to(torch.bfloat16)
    with open_checkpoint(path) as checkpoint:
        bits = checkpoint.read(Q_PROJ)
    assert np.array_equal(bits, expected.view(torch.int16).numpy().view(np.uint16))


@pytest.mark.parametrize("name", [Q_PROJ, "model.norm.weight"])
def test_read_rows_is_a_slice_of_read(name: str) -> None:
    with open_checkpoint(shared_checkpoint()) as checkpoint:
        whole = checkpoint.read(name)
        for start, stop in [(0, 0), (0, 1), (3, 17), (0, len(whole)), (len(whole), len(whole))]:
            rows = checkpoint.read_rows(name, start, stop)
            assert rows.flags.c_contiguous
            assert np.array_equal(rows, whole[start:stop])
        for start, stop in [(-1, 2), (2, 1), (0, len(whole) + 1)]:
            with pytest.raises(IndexError, match=name):
                checkpoint.read_rows(name, start, stop)


def test_blocks_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read_all(shared_checkpoint())
    monkeypatch.setattr("forerun.models.checkpoint._BLOCK_ELEMENTS", 5 * 64)
    assert_same(read_all(shared_checkpoint()), expected)


def rewritten(directory: Path, change: Callable[[dict[str, NDArray[Any]]], None]) -> Path:
    """Write T and let `change` edit its tensors."""
    path = tiny_checkpoint(directory / "model")
    weights: dict[str, NDArray[Any]] = load_file(path / "model.safetensors")
    change(weights)
    save_file(weights, path / "model.safetensors")
    return path


def opened(path: Path) -> Checkpoint:
    checkpoint = open_checkpoint(path)
    checkpoint.close()
    return checkpoint


def test_missing_tensor_is_named_with_its_shape(tmp_path: Path) -> None:
    path = rewritten(tmp_path, lambda weights: weights.__delitem__(Q_PROJ))
    with pytest.raises(ModelError, match=rf"missing tensor {Q_PROJ}; expected shape \(64, 64\)"):
        opened(path)


def test_a_forged_layer_count_is_refused_at_once(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model")
    config = tiny_config(num_hidden_layers=2**31 - 1)
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="for 2147483647 layers"):
        opened(path)


def test_extra_tensor_is_named(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.bias"
    path = rewritten(tmp_path, lambda weights: weights.update({name: np.ones(64, np.float32)}))
    with pytest.raises(ModelError, match=rf"unexpected tensor {name} of shape \(64,\)"):
        opened(path)


def test_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    path = rewritten(tmp_path, lambda weights: weights.update({Q_PROJ: weights[Q_PROJ][:48]}))
    with pytest.raises(ModelError, match=rf"{Q_PROJ} has shape \(48, 64\); expected \(64, 64\)"):
        opened(path)


def test_known_harmless_surplus_is_dropped(tmp_path: Path) -> None:
    def add(weights: dict[str, NDArray[Any]]) -> None:
        weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()

    checkpoint = opened(rewritten(tmp_path, add))
    assert checkpoint.tensor_shapes == opened(shared_checkpoint()).tensor_shapes


def test_a_tied_head_of_another_shape_is_refused(tmp_path: Path) -> None:
    head = {"lm_head.weight": np.ones((7, 64), np.float32)}
    with pytest.raises(ModelError, match=r"lm_head\.weight"):
        opened(rewritten(tmp_path, lambda weights: weights.update(head)))


def test_unsupported_type_is_named_with_its_tensor(tmp_path: Path) -> None:
    def widen(weights: dict[str, NDArray[Any]]) -> None:
        weights[Q_PROJ] = weights[Q_PROJ].astype(np.float64)

    with pytest.raises(ModelError, match=rf"{Q_PROJ} is of type F64"):
        opened(rewritten(tmp_path, widen))


def test_vendor_layout_beside_the_weights_is_ignored(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model")
    save_file({"x": np.ones(1, np.float32)}, path / "consolidated.safetensors")
    assert opened(path).tensor_shapes == opened(shared_checkpoint()).tensor_shapes


def test_missing_shard_and_missing_index_are_named(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model", num_shards=2)
    shard = path / "model-00002-of-00002.safetensors"
    shard.rename(path / "elsewhere")
    with pytest.raises(ModelError, match=shard.name):
        opened(path)
    (path / "elsewhere").rename(shard)
    (path / "model.safetensors.index.json").unlink()
    with pytest.raises(ModelError, match=r"no model\.safetensors\.index\.json"):
        opened(path)


def test_an_index_cannot_reach_outside_its_folder(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model", num_shards=2)
    index = {"weight_map": {Q_PROJ: "../model-00001-of-00002.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="weight_map"):
        opened(path)


def header(entries: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(start: int, stop: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [(stop - start) // 4], "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 7,
        struct.pack("<Q", 2**62) + b"{}",
        struct.pack("<Q", 200_000_000) + b"{}",
        struct.pack("<Q", 5) + b"[1,2]",
        header({"a": entry(0, 2**40)}, b"\0" * 8),
        header({"a": entry(0, 8), "b": entry(4, 12)}, b"\0" * 12),
        header({"a": entry(4, 8)}, b"\0" * 8),
        header({"a": entry(0, 8)}, b"\0" * 16),
        header({"a": {**entry(0, 8), "shape": [2**62, 4]}}, b"\0" * 8),
        header({"a": {**entry(0, 8), "dtype": "PICKLE"}}, b"\0" * 8),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tiny_checkpoint(tmp_path / "model")
    (path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="not a valid safetensors file"):
        opened(path)


def test_paths_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        open_checkpoint(tmp_path / "absent")
    with pytest.raises(ModelError, match=r"neither config\.json nor"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read as JSON"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(tiny_config()))
    with pytest.raises(ModelError, match=r"no \.safetensors file"):
        open_checkpoint(tmp_path)


def test_a_closed_checkpoint_reads_no_more() -> None:
    checkpoint = opened(shared_checkpoint())
    checkpoint.close()
    with pytest.raises(ValueError, match="closed"):
        checkpoint.read(Q_PROJ)


def test_tiny_weights_have_one_meaning_in_every_type() -> None:
    for weights in tiny_weights(tiny_config("qwen2"), seed=3).values():
        bits = round_to_bfloat16(weights)
        assert np.array_equal((bits.astype(np.uint32) << np.uint32(16)).view(np.float32), weights)
        assert np.array_equal(weights.astype(np.float16).astype(np.float32), weights)
