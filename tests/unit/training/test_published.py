"""What is published has the published names, shapes and types, loads, and drafts as measured."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors import safe_open

from draft_server.drafters.registry import DraftSettings, check_method
from forerun.engine import EngineConfig
from forerun.engine.draft_head import DraftHead, HeadRows
from forerun.models import ModelConfig, open_checkpoint
from forerun.models.draft_head import HeadCheckpoint
from forerun.models.eagle import EagleCheckpoint
from forerun.models.eagle3 import Eagle3Checkpoint
from forerun.models.mtp import MtpCheckpoint
from forerun.training.eagle3 import COPYING_KV_HEADS
from forerun.training.evaluation import DraftShape, accepted_lengths
from forerun.training.examples import Examples
from forerun.training.export import write_head
from forerun.training.methods import METHODS
from forerun.training.target import from_bits, load_target
from forerun.training.unroll import Example, unroll
from forerun.training.vocabulary import DraftVocabulary
from tests.fixtures.tiny import LLAMA3_ROPE, NUM_TOKENS, shared_checkpoint
from tests.fixtures.training import (
    EMBEDDING_ROWS,
    NUM_LAYERS,
    checkpoint,
    corpus,
    random_head,
    target,
    vocabulary,
)

HIDDEN, INNER = 64, 128
READERS: dict[str, type[HeadCheckpoint]] = {
    "eagle3": Eagle3Checkpoint,
    "eagle": EagleCheckpoint,
    "mtp": MtpCheckpoint,
}
PREFIXES = {"eagle3": "midlayer.", "eagle": "layers.0.", "mtp": "model.mtp_layers.0."}
VOCAB = NUM_TOKENS - NUM_TOKENS // 4
NORM = (HIDDEN,)
OWN_TENSORS: dict[str, dict[str, tuple[int, ...]]] = {
    "eagle3": {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "midlayer.hidden_norm.weight": NORM,
        "midlayer.input_layernorm.weight": NORM,
        "norm.weight": NORM,
        "lm_head.weight": (VOCAB, HIDDEN),
        "d2t": (VOCAB,),
        "t2d": (EMBEDDING_ROWS,),
    },
    "eagle": {"fc.weight": (HIDDEN, 2 * HIDDEN)},
    "mtp": {
        "model.mtp_layers.0.token_layernorm.weight": NORM,
        "model.mtp_layers.0.hidden_layernorm.weight": NORM,
        "model.mtp_layers.0.input_proj.weight": (HIDDEN, 2 * HIDDEN),
        "model.mtp_layers.0.input_layernorm.weight": NORM,
        "model.mtp_layers.0.final_layernorm.weight": NORM,
    },
}


def publish(folder: Path, method: str, seed: int = 0) -> Path:
    head = random_head(method, seed)
    write_head(folder, head.published(target().config))
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_published_files_have_the_published_names_shapes_and_types(
    method: str, tmp_path: Path
) -> None:
    with safe_open(publish(tmp_path, method) / "model.safetensors", framework="pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}
    prefix, width = PREFIXES[method], HIDDEN * (2 if method == "eagle3" else 1)
    kv_heads = 1 + (COPYING_KV_HEADS if method == "eagle3" else 0)
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {
        f"{prefix}post_attention_layernorm.weight": NORM,
        f"{prefix}self_attn.q_proj.weight": (64 * kv_heads, width),
        f"{prefix}self_attn.k_proj.weight": (16 * kv_heads, width),
        f"{prefix}self_attn.v_proj.weight": (16 * kv_heads, width),
        f"{prefix}self_attn.o_proj.weight": (HIDDEN, 64 * kv_heads),
        f"{prefix}mlp.gate_proj.weight": (INNER, HIDDEN),
        f"{prefix}mlp.up_proj.weight": (INNER, HIDDEN),
        f"{prefix}mlp.down_proj.weight": (HIDDEN, INNER),
        **OWN_TENSORS[method],
    }
    kept = random_head(method).vocabulary.target_ids.tolist()
    if method == "eagle3":
        assert found.pop("d2t").tolist() == [t - i for i, t in enumerate(kept)]
        t2d = found.pop("t2d")
        assert t2d.dtype == torch.bool
        assert t2d.nonzero()[:, 0].tolist() == kept
    head = random_head(method)
    for name, weight in head.named_parameters():
        name = f"model.{name}" if method == "mtp" else name
        assert found[name].dtype == torch.bfloat16
        assert torch.equal(found[name], weight.bfloat16()), name

    with READERS[method](tmp_path, target().config) as opened:
        assert opened.draft_ids[: len(kept)].tolist() == kept
        assert opened.config.taps == METHODS[method].taps(target().config)
        rows = opened.read_rows("gate", 0, INNER)
        assert torch.equal(from_bits(rows), head.layer.mlp["gate_proj"].weight.bfloat16())
    check_method(method, DraftSettings(model=tmp_path))


def test_config_json_tells_what_readers_ask(tmp_path: Path) -> None:
    configs = {
        method: json.loads((publish(tmp_path / method, method) / "config.json").read_text())
        for method in METHODS
    }
    eagle3, eagle, mtp = configs["eagle3"], configs["eagle"], configs["mtp"]
    assert eagle3["architectures"] == ["LlamaForCausalLMEagle3"]
    assert eagle3["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert (eagle3["vocab_size"], eagle3["draft_vocab_size"]) == (EMBEDDING_ROWS, VOCAB)
    for config in (eagle3, eagle):
        assert (config["rope_theta"], config["rope_scaling"]) == (10_000.0, None)
        assert config["num_hidden_layers"] == 1
    assert (eagle["bias"], eagle["qkv_bias"]) == (False, False)
    assert (mtp["num_hidden_layers"], mtp["num_nextn_predict_layers"]) == (NUM_LAYERS, 1)


@pytest.mark.parametrize("method", ["eagle3", "eagle"])
def test_the_scaling_of_rotations_is_published(method: str) -> None:
    with open_checkpoint(_model(rope_parameters=LLAMA3_ROPE)) as opened:
        config = random_head(method).published(opened.config).config
    wanted = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}
    assert config["rope_scaling"] == wanted


def _model(architecture: str = "llama", **options: Any) -> Path:
    return shared_checkpoint(architecture, num_hidden_layers=NUM_LAYERS, **options)


def _config(architecture: str = "llama", **options: Any) -> ModelConfig:
    with open_checkpoint(_model(architecture, **options)) as opened:
        return opened.config


def test_targets_that_have_no_such_head_are_refused() -> None:
    with pytest.raises(ValueError, match="the target has 6 layers"):
        METHODS["eagle3"].taps(replace(target().config, num_layers=6))
    assert METHODS["eagle3"].taps(replace(target().config, num_layers=30)) == (2, 15, 27)
    rope = replace(target().config.rope, divisors=(1.0,) * 8)
    for method in ("eagle3", "eagle"):
        with pytest.raises(ValueError, match="rope divisors of a GGUF file"):
            METHODS[method].taps(replace(target().config, rope=rope))
    assert METHODS["mtp"].taps(replace(target().config, rope=rope)) == (NUM_LAYERS,)
    for architecture in ("qwen3", "mistral"):
        with pytest.raises(ValueError, match="which drafting does not compute"):
            METHODS["mtp"].taps(_config(architecture))


@pytest.mark.parametrize("method", ["eagle", "mtp"])
def test_biases_of_a_targets_layers_are_in_the_heads(method: str, tmp_path: Path) -> None:
    model = load_target(shared_checkpoint("qwen2"), kv_tokens=512, max_rows=64, threads=1)
    head = METHODS[method].begin(model, DraftVocabulary.whole(NUM_TOKENS))
    write_head(tmp_path, head.published(model.config))
    with READERS[method](tmp_path, model.config) as opened:
        for part, size in (("q", 64), ("k", 16), ("v", 16)):
            bias = from_bits(opened.read_rows(f"{part}_bias", 0, size))
            assert torch.equal(bias.float(), model.last_layer[f"self_attn.{part}_proj.bias"])


def test_a_checkpoint_may_take_the_layer_in(tmp_path: Path) -> None:
    alone, whole = publish(tmp_path / "layer", "mtp"), tmp_path / "whole"
    shutil.copytree(checkpoint(), whole)
    shutil.copy(alone / "model.safetensors", whole / "mtp.safetensors")
    files = {}
    for name in ("model.safetensors", "mtp.safetensors"):
        with safe_open(whole / name, framework="pt") as file:
            files |= dict.fromkeys(file.keys(), name)
    (whole / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    config = json.loads((whole / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
    (whole / "config.json").write_text(json.dumps(config))
    with (
        open_checkpoint(whole) as model,
        MtpCheckpoint(whole, model.config) as brought,
        MtpCheckpoint(alone, model.config) as other,
    ):
        assert model.config.num_mtp_layers == 1
        assert np.array_equal(*(h.read_rows("fc", 0, HIDDEN) for h in (brought, other)))


@dataclass
class Known:
    """A document's example, its tokens, and its hidden states as the target sends them."""

    example: Example
    token_ids: NDArray[np.int32]
    hidden: NDArray[np.uint16]


@pytest.fixture(scope="module", params=METHODS)
def documents(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[Known]]:
    """A method and some documents."""
    method = str(request.param)
    taps = METHODS[method].taps(target().config)
    maker = Examples(target(), vocabulary(), taps)
    made = []
    for document in corpus(tmp_path_factory.mktemp("corpus"), prompts=3).documents:
        states = target().hidden(document.token_ids, taps).flatten(1).view(torch.int16)
        bits = states.numpy().view(np.uint16)
        made.append(Known(maker.of(document), document.token_ids, bits))
    return method, made


@pytest.mark.parametrize(("shape", "top_k"), [(DraftShape(4, 1, 4), 1), (DraftShape(8, 8, 3), 8)])
def test_what_is_measured_is_what_the_drafter_proposes(
    documents: tuple[str, list[Known]], shape: DraftShape, top_k: int, tmp_path: Path
) -> None:
    """As wide as it has nodes, the measurement looks at all that the drafter does."""
    method, made = documents
    head = random_head(method, seed=1)
    embeddings = target().embedding[head.vocabulary.target_ids].float()
    config = EngineConfig(
        dtype="float32", kv_tokens=2048, threads=1, pin=False, vocab_size=NUM_TOKENS
    )
    folder = publish(tmp_path, method, seed=1)
    with open_checkpoint(checkpoint()) as model, READERS[method](folder, model.config) as opened:
        running = DraftHead.load(opened, model, config, top_k)
    right = 0
    for number, known in enumerate(made):
        known.example = _with_likely_labels(head, known.example, number)
        expected = accepted_lengths(head, known.example, embeddings, shape).tolist()
        right += sum(expected)
        first = known.example.first
        assert expected == [
            _accepted(running, known, row, shape)
            for row in range(first, first + known.example.num_rows)
        ]
    assert right > 3, "a test in which nothing is accepted shows nothing"


def _with_likely_labels(head: Any, example: Example, number: int) -> Example:
    """The example as if the document were what the head finds likely."""
    best = head.scores(next(unroll(head, [example], 1))[0]).topk(2).indices
    token_ids = example.token_ids.clone()
    for i in range(example.num_rows):
        token_ids[example.first + 2 + i] = head.vocabulary.target_ids[best[i, (i + number) % 2]]
    return replace(example, token_ids=token_ids)


def _accepted(running: DraftHead, known: Known, row: int, shape: DraftShape) -> int:
    """What of a fresh session's tree, whose root is the token after the row, is in the document."""
    sequence = running.open()
    assert running.reserve(sequence, row + 1 + shape.nodes)
    tokens = known.token_ids[1 : row + 2]
    rows = HeadRows(sequence, known.hidden[: row + 1], tokens, shape.nodes, shape.depth)
    (drafted,) = running.draft([rows], 0.0, math.inf)
    running.release(sequence)
    assert (drafted.token_ids < NUM_TOKENS).all(), "padding is never proposed"
    node, accepted = -1, 0
    for wanted in known.example.token_ids[row + 2 :].tolist():
        below = [
            i
            for i, (token, parent) in enumerate(
                zip(drafted.token_ids.tolist(), drafted.parents.tolist(), strict=True)
            )
            if parent == node and token == wanted
        ]
        if not below:
            break
        node, accepted = below[0], accepted + 1
    return accepted
