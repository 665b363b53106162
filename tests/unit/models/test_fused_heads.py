"""What is wrong with an EAGLE-1 head, or a layer for multi-token prediction, is said by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.models import ModelError, open_checkpoint
from forerun.models.eagle import EagleCheckpoint
from forerun.models.mtp import MtpCheckpoint
from tests.fixtures.fused_heads import (
    Tensors,
    head_tensors,
    write_eagle,
    write_layer,
    write_target,
)
from tests.fixtures.tiny import shared_checkpoint

Change = Callable[[Tensors], None]


def open_eagle(directory: Path) -> EagleCheckpoint:
    with open_checkpoint(shared_checkpoint()) as target:
        return EagleCheckpoint(directory, target.config)


def open_mtp(path: Path) -> MtpCheckpoint:
    with open_checkpoint(path) as target:
        return MtpCheckpoint(path, target.config)


def without(name: str) -> Change:
    def change(tensors: Tensors) -> None:
        del tensors[name]

    return change


def with_(name: str, *shape: int) -> Change:
    return lambda tensors: tensors.update({name: np.ones(shape, np.float32)})


def test_an_eagle_head_shares_what_it_does_not_bring(tmp_path: Path) -> None:
    with open_eagle(write_eagle(tmp_path / "plain")) as head:
        embedding = "model.embed_tokens.weight"
        assert head.from_target == {"embedding": embedding, "head": embedding}, "T ties them"
        assert head.config.taps == (2,), "what leaves the final norm of two layers"
        assert "fc_bias" in head.parts and "q_bias" not in head.parts
    tensors = head_tensors("eagle")
    without("fc.bias")(tensors)
    with_("embed_tokens.weight", 260, 64)(tensors)
    for name in ("q", "k", "v"):
        with_(f"layers.0.self_attn.{name}_proj.bias", 64 if name == "q" else 16)(tensors)
    with open_eagle(write_eagle(tmp_path / "full", tensors, qkv_bias=True)) as head:
        assert head.from_target.keys() == {"head"}
        assert "fc_bias" not in head.parts and "v_bias" in head.parts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("fc.weight"), "tensor fc.weight is missing"),
        (with_("layers.0.input_layernorm.weight", 64), "is not part of an EAGLE head"),
        (with_("layers.0.self_attn.q_proj.bias", 64), "is not part of an EAGLE head"),
        (with_("fc.weight", 64, 64), r"fc.weight has shape \[64, 64\]; expected \[64, 128\]"),
    ],
)
def test_a_tensor_of_an_eagle_head_at_fault_is_named(
    tmp_path: Path, change: Change, message: str
) -> None:
    tensors = head_tensors("eagle")
    change(tensors)
    with pytest.raises(ModelError, match=message):
        open_eagle(write_eagle(tmp_path, tensors))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2"),
        ({"vocab_size": 32000}, "vocab_size is 32000; expected 260"),
        ({"hidden_size": 32}, "hidden_size is 32; expected 64"),
    ],
)
def test_an_eagle_head_for_another_target_is_refused(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        open_eagle(write_eagle(tmp_path, **config))


@pytest.mark.parametrize("kind", ["mimo", "nextn"])
def test_a_target_runs_without_the_layer_that_it_brings(tmp_path: Path, kind: str) -> None:
    path = write_target(tmp_path, kind)
    with open_checkpoint(path) as target:
        assert target.config.num_mtp_layers == 1
        assert not any("mtp" in name or "layers.2." in name for name in target.tensor_shapes)
    with open_mtp(path) as head:
        assert ("head" in head.from_target) == (kind == "mimo")
        assert head.from_target["embedding"] == "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("mimo", without("model.mtp_layers.0.input_proj.weight"), "input_proj.weight is missing"),
        ("mimo", without("model.mtp_layers.0.self_attn.k_proj.bias"), "k_proj.bias is missing"),
        ("nextn", with_("model.layers.2.mlp.gate.weight", 4, 64), "mlp.gate.weight is not part of"),
        ("nextn", with_("model.layers.2.enorm.weight", 63), r"enorm.weight has shape \[63\]"),
    ],
)
def test_a_tensor_of_such_a_layer_at_fault_is_named(
    tmp_path: Path, kind: str, change: Change, message: str
) -> None:
    tensors = head_tensors(kind)
    change(tensors)
    with pytest.raises(ModelError, match=message):
        open_mtp(write_target(tmp_path, kind, tensors))


def test_a_target_that_brings_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="num_nextn_predict_layers"):
        open_mtp(shared_checkpoint())
    with open_checkpoint(shared_checkpoint()) as target:
        with pytest.raises(ModelError, match="name the folder of one with --draft-model"):
            MtpCheckpoint(tmp_path / "a.gguf", target.config)


@pytest.mark.parametrize("kind", ["mimo", "nextn"])
def test_a_layer_may_stand_alone(tmp_path: Path, kind: str) -> None:
    folder = write_layer(tmp_path / "layer", kind)
    whole = write_target(tmp_path / "target", kind)
    architecture = "qwen2" if kind == "mimo" else "llama"
    with (
        open_checkpoint(shared_checkpoint(architecture)) as target,
        MtpCheckpoint(folder, target.config) as alone,
        open_mtp(whole) as brought,
    ):
        assert alone.parts == brought.parts
        assert alone.from_target == brought.from_target
        for part in alone.parts:
            rows = [head.read_rows(part, 0, 16) for head in (alone, brought)]
            assert np.array_equal(*rows), part


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_size": 128}, "hidden_size is 128; expected 64, as of"),
        ({"vocab_size": 32000}, "vocab_size is 32000; expected 260, as of"),
        ({"num_nextn_predict_layers": 0}, "has no layer for multi-token prediction"),
    ],
)
def test_a_layer_for_another_target_is_refused(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    folder = write_layer(tmp_path, "nextn", **config)
    with open_checkpoint(shared_checkpoint()) as target:
        with pytest.raises(ModelError, match=message):
            MtpCheckpoint(folder, target.config)


def test_a_forged_number_of_layers_costs_nothing(tmp_path: Path) -> None:
    path = write_target(tmp_path, "nextn")
    config = path / "config.json"
    config.write_text(
        config.read_text().replace(
            '"num_nextn_predict_layers": 1', '"num_nextn_predict_layers": 2147483647'
        )
    )
    with open_mtp(path) as head:
        assert head.parts
