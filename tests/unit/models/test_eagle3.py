"""What is wrong with a head is said by name, at load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.models import ModelError, open_checkpoint
from forerun.models.eagle3 import Eagle3Checkpoint
from tests.fixtures.eagle3 import (
    DRAFT_VOCAB,
    THETA,
    head_config,
    head_tensors,
    write_head,
    write_speculators_head,
)
from tests.fixtures.tiny import shared_checkpoint

Tensors = dict[str, NDArray[Any]]


def open_head(directory: Path) -> Eagle3Checkpoint:
    with open_checkpoint(shared_checkpoint()) as target:
        return Eagle3Checkpoint(directory, target.config)


def test_a_head_as_published(tmp_path: Path) -> None:
    tensors = head_tensors()
    with open_head(write_head(tmp_path, tensors)) as head:
        assert head.config.taps == (0, 1, 2)
        assert head.from_target == {"embedding": "model.embed_tokens.weight"}
        assert head.draft_ids.tolist() == (np.arange(DRAFT_VOCAB) + tensors["d2t"]).tolist()
        rows = [head.read_rows("fc", *rows) for rows in ((0, 5), (5, 64))]
        bits = np.concatenate(rows).astype(np.uint32) << np.uint32(16)
        assert np.array_equal(bits.view(np.float32), tensors["fc.weight"])


def test_taps_may_stand_in_eagle_config_or_be_left_out(tmp_path: Path) -> None:
    nested = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    folder = write_head(
        tmp_path / "nested", eagle_aux_hidden_state_layer_ids=None, eagle_config=nested
    )
    with open_head(folder) as head:
        assert head.config.taps == (0, 1, 2)
    # The layers of the first release do not exist in a target of two.
    with pytest.raises(ModelError, match=r"eagle_aux_hidden_state_layer_ids is \[2, 1, -1\]"):
        open_head(write_head(tmp_path / "none", eagle_aux_hidden_state_layer_ids=None))


def test_the_speculators_layout(tmp_path: Path) -> None:
    with open_head(write_speculators_head(tmp_path)) as head:
        assert head.config.normed_residual
        assert (head.config.taps, head.config.draft_vocab_size) == ((0, 1, 2), DRAFT_VOCAB)
        assert head.config.rope.theta == THETA
    with pytest.raises(ModelError, match="transformer_layer_config is 7; expected an object"):
        open_head(write_speculators_head(tmp_path, transformer_layer_config=7))
    other = head_config(vocab_size=99)
    with pytest.raises(ModelError, match="transformer_layer_config: vocab_size is 99"):
        open_head(write_speculators_head(tmp_path, transformer_layer_config=other))


def without(name: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        del tensors[name]

    return change


def with_(name: str, value: NDArray[Any]) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("fc.weight"), "tensor fc.weight is missing"),
        (without("d2t"), "tensor d2t is missing"),
        (with_("midlayer.self_attn.q_norm.weight", np.ones(16, np.float32)), "is not part of"),
        (with_("norm.weight", np.ones(63, np.float32)), r"norm.weight has shape \[63\]"),
        (with_("fc.weight", np.ones((64, 128), np.float32)), r"fc.weight has shape \[64, 128\]"),
        (with_("norm.weight", np.ones(64, np.int64)), "norm.weight is of type I64"),
        (with_("d2t", np.zeros(DRAFT_VOCAB, np.float32)), "d2t is of type F32"),
        (with_("d2t", np.full(DRAFT_VOCAB, 5000)), "d2t does not give each draft id a token"),
        (with_("d2t", -np.arange(DRAFT_VOCAB)), "d2t does not give each draft id a token"),
        (with_("t2d", np.ones(7, np.bool_)), r"t2d has shape \[7\]"),
    ],
)
def test_a_tensor_at_fault_is_named(
    tmp_path: Path, change: Callable[[Tensors], None], message: str
) -> None:
    tensors = head_tensors()
    change(tensors)
    with pytest.raises(ModelError, match=message):
        open_head(write_head(tmp_path, tensors))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2"),
        ({"vocab_size": 32000}, "vocab_size is 32000; expected 260"),
        ({"target_hidden_size": 4096}, "target_hidden_size is 4096; expected 64"),
        ({"hidden_size": 32}, "embed_tokens.weight is missing"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}, r"is \[0, 1, 3\]"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 1]}, r"expected \[64, 128\]"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type is 'yarn'"),
    ],
)
def test_a_head_for_another_target_is_refused(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        open_head(write_head(tmp_path, **config))
