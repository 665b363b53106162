"""A head that goes on from a published one: what it takes over, and what it is not taken from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from forerun.models import ModelError
from forerun.training.corpus import Corpus
from forerun.training.eagle3 import COPYING_KV_HEADS, Eagle3Head
from forerun.training.export import write_head
from forerun.training.methods import METHODS
from forerun.training.origin import Origin, read_origin
from forerun.training.settings import TrainingSettings
from forerun.training.trainer import Trainer
from tests.fixtures.training import DRAFT_VOCAB, corpus, random_head, target

CONFIG = target().config
TAPS = Eagle3Head.taps(CONFIG)
KEYS = "midlayer.self_attn.k_proj.weight"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return corpus(tmp_path_factory.mktemp("corpus"), prompts=20)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_head(tmp_path / "head", random_head().published(CONFIG))
    return tmp_path / "head"


def _change(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def _trainer(data: Corpus, path: Path, origin: Origin | None, **settings: Any) -> Trainer:
    options: dict[str, Any] = {"draft_vocab": DRAFT_VOCAB, "tokens": 1} | settings
    return Trainer(target(), data, TrainingSettings(**options), path / "at.safetensors", origin)


def _weights(trainer: Trainer) -> dict[str, Tensor]:
    return dict(trainer.head.named_parameters())


def test_it_begins_as_that_head_was(data: Corpus, folder: Path) -> None:
    origin = read_origin(folder, CONFIG, TAPS)
    trainer = _trainer(data, folder, origin, draft_vocab=len(origin.target_ids))
    assert torch.equal(trainer.vocabulary.target_ids, origin.target_ids)
    for name, weight in random_head().named_parameters():
        assert torch.equal(_weights(trainer)[name], weight), name


def test_new_tokens_get_rows_like_the_others(data: Corpus, folder: Path) -> None:
    """What training made of the rows that are known, here a turn, is done to the new ones too."""
    turn = torch.linalg.qr(torch.randn(CONFIG.hidden_size, CONFIG.hidden_size))[0]
    tensors = load_file(folder / "model.safetensors")
    origin = read_origin(folder, CONFIG, TAPS)
    known = origin.target_ids
    rows = target().head[known] @ turn
    origin = Origin({**tensors, "lm_head.weight": rows}, known)
    trainer = _trainer(data, folder, origin, draft_vocab=len(known) + 30)
    kept = trainer.vocabulary.target_ids
    assert len(kept) == len(known) + 30 and bool(torch.isin(known, kept).all())
    expected = target().head[kept] @ turn
    torch.testing.assert_close(_weights(trainer)["lm_head.weight"], expected, atol=1e-4, rtol=1e-3)


def test_a_head_that_cannot_copy_is_taught_it(data: Corpus, folder: Path) -> None:
    whole = read_origin(folder, CONFIG, TAPS)
    size = CONFIG.num_kv_heads * CONFIG.head_dim
    old = dict(whole.tensors)
    for part in ("q", "k", "v"):
        name = f"midlayer.self_attn.{part}_proj.weight"
        old[name] = old[name][: size if part != "q" else CONFIG.num_heads * CONFIG.head_dim]
    outputs = "midlayer.self_attn.o_proj.weight"
    old[outputs] = old[outputs][:, : CONFIG.num_heads * CONFIG.head_dim]
    keys = _weights(_trainer(data, folder, replace(whole, tensors=old)))[KEYS]
    assert len(keys) == size + COPYING_KV_HEADS * CONFIG.head_dim
    assert torch.equal(keys[:size], old[KEYS])
    assert bool(keys[size:].any()) and not torch.equal(keys[size:], whole.tensors[KEYS][size:])


def test_a_head_with_more_heads_is_refused(data: Corpus, folder: Path) -> None:
    origin = read_origin(folder, CONFIG, TAPS)
    more = {**origin.tensors, KEYS: torch.zeros(400, 2 * CONFIG.hidden_size)}
    with pytest.raises(ValueError, match=r"k_proj.weight of the head to go on from is \[400, "):
        _trainer(data, folder, replace(origin, tensors=more))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [1, 4, 5]}, r"taps is \(1, 4, 5\)"),
        ({"rope_theta": 5000.0}, "rope is RopeConfig"),
        ({"norm_before_residual": True}, "norm_before_residual is True"),
    ],
)
def test_a_head_of_another_kind_is_refused(
    folder: Path, fields: dict[str, Any], message: str
) -> None:
    _change(folder, **fields)
    with pytest.raises(ValueError, match=message):
        read_origin(folder, CONFIG, TAPS)


def test_another_layout_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["embed_tokens.weight"] = torch.zeros(CONFIG.vocab_size, CONFIG.hidden_size)
    save_file(tensors, path)
    with pytest.raises(ValueError, match="has other tensors than a head that train-draft writes"):
        read_origin(folder, CONFIG, TAPS)


def test_what_is_no_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises((ModelError, OSError)):
        read_origin(tmp_path, CONFIG, TAPS)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "eagle3"])
def test_other_methods_begin_anew(method: str, data: Corpus, folder: Path) -> None:
    origin = read_origin(folder, CONFIG, TAPS)
    with pytest.raises(ValueError, match=f"a head for {method} cannot go on"):
        _trainer(data, folder, origin, method=method)
