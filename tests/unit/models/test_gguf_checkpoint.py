"""GGUF checkpoints: equal to the safetensors they were made from, and to gguf's dequantisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from forerun.models import ModelError, open_checkpoint
from forerun.models.bfloat16 import round_to_bfloat16
from forerun.models.gguf_file import SUPPORTED_TYPES
from tests.fixtures.gguf_writer import gguf_name, write_gguf
from tests.fixtures.reference import greedy_reference
from tests.fixtures.tiny import LINEAR_ROPE, LLAMA3_ROPE, random_prompts, shared_checkpoint

# Whole blocks of 256, as the K types need.
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}


@pytest.mark.parametrize("quantization", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral"])
def test_equals_the_safetensors_it_was_made_from(
    tmp_path: Path, architecture: str, num_kv_heads: int, quantization: str
) -> None:
    source = shared_checkpoint(architecture, num_key_value_heads=num_kv_heads)
    path = write_gguf(source, tmp_path / "model.gguf", quantization)
    with open_checkpoint(source) as expected, open_checkpoint(path) as found:
        assert found.tensor_shapes == expected.tensor_shapes
        assert found.weight_bytes == expected.weight_bytes
        for name in expected.tensor_shapes:
            assert np.array_equal(found.read(name), expected.read(name)), name


def test_llama_biases_are_permuted_with_their_weights(tmp_path: Path) -> None:
    source = shared_checkpoint(attention_bias=True, mlp_bias=True, num_key_value_heads=2)
    path = write_gguf(source, tmp_path / "model.gguf")
    with open_checkpoint(source) as expected, open_checkpoint(path) as found:
        assert found.config.attention_bias and found.config.output_bias and found.config.mlp_bias
        for name in expected.tensor_shapes:
            assert np.array_equal(found.read(name), expected.read(name)), name


@pytest.mark.parametrize(
    "options", [{}, {"num_key_value_heads": 4}, {"rope_parameters": LLAMA3_ROPE}]
)
def test_greedy_ids_equal_those_of_the_safetensors(tmp_path: Path, options: dict[str, Any]) -> None:
    source = shared_checkpoint(**options)
    path = write_gguf(source, tmp_path / "model.gguf", "F16")
    [prompt] = random_prompts(1)
    assert greedy_reference(path, prompt, 64) == greedy_reference(source, prompt, 64)


@pytest.mark.parametrize("kind", SUPPORTED_TYPES, ids=lambda kind: kind.name)
def test_each_type_equals_the_gguf_package(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    # qwen2 rows are stored in order, so they can be compared as they lie.
    path = write_gguf(shared_checkpoint("qwen2", **WIDE), tmp_path / "model.gguf", kind.name)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    kinds = set()
    with open_checkpoint(path) as checkpoint:
        for name, shape in checkpoint.tensor_shapes.items():
            theirs = stored[gguf_name(name)]
            kinds.add(theirs.tensor_type)
            values = gguf.quants.dequantize(theirs.data, theirs.tensor_type)
            expected = round_to_bfloat16(values).reshape(shape)
            assert np.array_equal(checkpoint.read(name), expected), name
    assert kind in kinds


@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K"])
def test_quantised_rotary_rows_are_reordered_whole(tmp_path: Path, kind: str) -> None:
    path = write_gguf(shared_checkpoint(**WIDE), tmp_path / "model.gguf", kind)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    with open_checkpoint(path) as checkpoint:
        for name, heads in (("q", 4), ("k", 1)):
            theirs = stored[f"blk.0.attn_{name}.weight"]
            values = gguf.quants.dequantize(theirs.data, theirs.tensor_type)
            halves = values.reshape(heads, 32, 2, 256).transpose(0, 2, 1, 3).reshape(-1, 256)
            found = checkpoint.read(f"model.layers.0.self_attn.{name}_proj.weight")
            assert np.array_equal(found, round_to_bfloat16(halves))


@pytest.mark.parametrize("part", ["q_proj.weight", "k_proj.bias", "v_proj.weight"])
def test_read_rows_is_a_slice_of_read(tmp_path: Path, part: str) -> None:
    source = shared_checkpoint(attention_bias=True, num_key_value_heads=2)
    path = write_gguf(source, tmp_path / "model.gguf", "Q8_0")
    name = f"model.layers.1.self_attn.{part}"
    with open_checkpoint(path) as checkpoint:
        whole = checkpoint.read(name)
        for start, stop in [(0, 0), (0, 1), (5, 6), (7, 29), (16, 32), (len(whole), len(whole))]:
            assert np.array_equal(checkpoint.read_rows(name, start, stop), whole[start:stop])
        with pytest.raises(IndexError, match=name):
            checkpoint.read_rows(name, 0, len(whole) + 1)


def test_blocks_join_without_a_seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(shared_checkpoint(), tmp_path / "model.gguf", "Q8_0")
    with open_checkpoint(path) as checkpoint:
        whole = {name: checkpoint.read(name) for name in checkpoint.tensor_shapes}
        monkeypatch.setattr("forerun.models.checkpoint._BLOCK_ELEMENTS", 7 * 64)
        for name, expected in whole.items():
            assert np.array_equal(checkpoint.read(name), expected), name


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_configuration_equals_that_of_the_folder(tmp_path: Path, architecture: str) -> None:
    source = shared_checkpoint(architecture, vocab_size=272, rope_parameters=LINEAR_ROPE)
    path = write_gguf(source, tmp_path / f"{source.name}.gguf")
    with open_checkpoint(source) as expected, open_checkpoint(path) as found:
        assert found.config == expected.config


def test_an_own_head_is_told_by_its_presence(tmp_path: Path) -> None:
    source = shared_checkpoint(tie_word_embeddings=False)
    with open_checkpoint(write_gguf(source, tmp_path / "model.gguf")) as checkpoint:
        assert not checkpoint.config.tie_word_embeddings
        assert checkpoint.tensor_shapes["lm_head.weight"] == (260, 64)


def test_a_mistral_model_keeps_its_window(tmp_path: Path) -> None:
    path = write_gguf(shared_checkpoint("mistral"), tmp_path / "model.gguf")
    with open_checkpoint(path) as checkpoint:
        assert (checkpoint.config.architecture, checkpoint.config.sliding_window) == ("llama", 16)


def test_llama3_scaling_comes_from_the_divisors(tmp_path: Path) -> None:
    source = shared_checkpoint(rope_parameters=LLAMA3_ROPE)
    path = write_gguf(source, tmp_path / "model.gguf")
    with open_checkpoint(source) as expected, open_checkpoint(path) as found:
        assert found.config.rope.type == "llama3"
        theirs = expected.config.rope.inverse_frequencies(16)
        ours = found.config.rope.inverse_frequencies(16)
        # The file holds rounded quotients, so the last bit may differ.
        assert np.allclose(ours, theirs, rtol=2e-7, atol=0)
        assert not np.allclose(ours, type(found.config.rope)().inverse_frequencies(16))


def test_the_older_linear_key_is_read(tmp_path: Path) -> None:
    extra: dict[str, str | int | float | bool] = {"llama.rope.scale_linear": 4.0}
    path = write_gguf(shared_checkpoint(), tmp_path / "model.gguf", extra_metadata=extra)
    with open_checkpoint(path) as checkpoint:
        assert (checkpoint.config.rope.type, checkpoint.config.rope.factor) == ("linear", 4.0)


def test_ends_of_turn_and_message_end_a_generation(tmp_path: Path) -> None:
    extra: dict[str, str | int | float | bool] = {
        "tokenizer.ggml.eot_token_id": 258,
        "tokenizer.ggml.eom_token_id": 257,
    }
    path = write_gguf(shared_checkpoint(), tmp_path / "model.gguf", extra_metadata=extra)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.config.eos_token_ids == (257, 258)


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"llama.rope.scaling.type": "yarn"}, "yarn"),
        ({"llama.expert_count": 8}, "expert_count"),
        ({"split.count": 2}, r"split\.count"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(
    tmp_path: Path, extra: dict[str, str | int | float | bool], named: str
) -> None:
    path = write_gguf(shared_checkpoint(), tmp_path / "model.gguf", extra_metadata=extra)
    with pytest.raises(ModelError, match=named):
        open_checkpoint(path)


def test_a_window_in_qwen_is_refused(tmp_path: Path) -> None:
    extra: dict[str, str | int | float | bool] = {"qwen2.attention.sliding_window": 16}
    path = write_gguf(shared_checkpoint("qwen2"), tmp_path / "model.gguf", extra_metadata=extra)
    with pytest.raises(ModelError, match="sliding_window"):
        open_checkpoint(path)


@pytest.mark.parametrize("architecture", ["gemma", "phi3", "mistral"])
def test_unknown_architecture_is_named(tmp_path: Path, architecture: str) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=architecture):
        open_checkpoint(path)


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    path = write_gguf(shared_checkpoint(), tmp_path / "model.gguf")
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.path == path
    (tmp_path / "other.gguf").write_bytes(path.read_bytes())
    with pytest.raises(ModelError, match=r"2 \.gguf files"):
        open_checkpoint(tmp_path)
