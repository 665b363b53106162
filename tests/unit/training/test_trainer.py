"""Training lowers the loss, goes on after an interruption as if there had been none, and publishes
what it has trained."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from forerun.models.eagle3 import Eagle3Checkpoint
from forerun.training.checkpoint import read_checkpoint
from forerun.training.command import Job, train_draft
from forerun.training.corpus import Corpus
from forerun.training.eagle3 import head_taps
from forerun.training.evaluation import CHAIN
from forerun.training.export import eagle3_config, write_eagle3
from forerun.training.settings import TrainingSettings
from forerun.training.target import from_bits
from forerun.training.trainer import Progress, Trainer
from tests.fixtures.tiny import random_prompts, shared_checkpoint
from tests.fixtures.training import (
    DRAFT_VOCAB,
    EMBEDDING_ROWS,
    NUM_LAYERS,
    SETTINGS,
    checkpoint,
    corpus,
    random_head,
    target,
    vocabulary,
)

HIDDEN, INNER = 64, 128


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return corpus(tmp_path_factory.mktemp("corpus"), prompts=70)


def _settings(tokens: int, **options: float) -> TrainingSettings:
    defaults = {"draft_vocab": DRAFT_VOCAB, "batch_rows": 128, "checkpoint_minutes": 60.0}
    return TrainingSettings(tokens=tokens, **{**defaults, **options})  # type: ignore[arg-type]


def _run(trainer: Trainer, stop_after: int = 10**9) -> list[Progress]:
    """Trains; returns the losses. stop_after: questions whether to stop that are answered no."""
    losses = []
    questions = 0

    def stopped() -> bool:
        nonlocal questions
        questions += 1
        return questions > stop_after

    trainer.run(lambda spent, progress: losses.append(progress.loss), stopped)
    return losses


def _weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in trainer.head.named_parameters()}


def test_a_few_steps_lower_the_loss(data: Corpus, tmp_path: Path) -> None:
    trainer = Trainer(target(), data, _settings(tokens=2400), tmp_path / "training.safetensors")
    losses = _run(trainer)
    assert sum(losses[-4:]) < 0.9 * sum(losses[:4])
    assert trainer.progress.tokens >= 2400
    assert trainer.spent == 1


@pytest.mark.parametrize("stop_after", [1, 11, 18])
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(
    data: Corpus, tmp_path: Path, stop_after: int
) -> None:
    settings = _settings(tokens=600, batch_rows=64)
    whole = Trainer(target(), data, settings, tmp_path / "whole.safetensors")
    _run(whole)

    path = tmp_path / "parts.safetensors"
    _run(Trainer(target(), data, settings, path), stop_after)
    resumed = Trainer(target(), data, settings, path)
    assert 0 <= resumed.progress.tokens < 600
    _run(resumed)

    assert resumed.progress.steps == whole.progress.steps > 5
    expected = _weights(whole)
    for name, weight in _weights(resumed).items():
        assert torch.equal(weight, expected[name]), name


def test_minutes_are_those_of_computing(
    data: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is stopped for a while goes on learning at the rates that it had."""
    clock = iter(range(0, 10**6, 20))
    monkeypatch.setattr(time, "thread_time", lambda: float(next(clock)))
    settings = _settings(tokens=0, minutes=1, batch_rows=16)
    trainer = Trainer(target(), data, settings, tmp_path / "training.safetensors")
    spent = []
    trainer.run(lambda share, progress: spent.append(share), lambda: False)
    assert spent == pytest.approx([1 / 3, 2 / 3, 1])


def test_new_documents_come_before_old_ones(tmp_path: Path) -> None:
    made = corpus(tmp_path / "corpus", prompts=12)
    settings = _settings(tokens=10**9, batch_rows=1)
    trainer = Trainer(target(), made, settings, tmp_path / "training.safetensors")
    seen = []
    for _ in range(11 + 5):
        seen.append(trainer._next_document().index)
        if len(seen) == 11:
            other = Corpus(tmp_path / "corpus", SETTINGS.to_json())
            from forerun.training.generation import Generator

            prompts = random_prompts(17, max_length=24)
            Generator(target(), SETTINGS, prompts).fill(
                other, 10**9, lambda done, total: None, lambda: False
            )
    assert sorted(seen[:11]) == list(range(1, 12))
    assert sorted(seen[11:]) == list(range(12, 17))


def test_held_out_documents_are_measured_and_not_trained_on(data: Corpus, tmp_path: Path) -> None:
    settings = _settings(tokens=10**9)
    trainer = Trainer(target(), data, settings, tmp_path / "training.safetensors")
    assert [d.index for d in trainer.held_out()] == [0, 64]
    drawn = {trainer._next_document().index for _ in range(68)}
    assert drawn == set(range(70)) - {0, 64}
    assert trainer.measure(CHAIN).rounds > 0


def test_a_checkpoint_of_another_vocabulary_is_refused(data: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "training.safetensors"
    _run(Trainer(target(), data, _settings(tokens=1), path))
    with pytest.raises(ValueError, match="draft vocabulary of 200"):
        Trainer(target(), data, _settings(tokens=1, draft_vocab=100), path)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    write_eagle3(tmp_path, random_head(), vocabulary(), target().config, (2, 4, 5))
    with pytest.raises(ValueError, match="no checkpoint of training"):
        read_checkpoint(tmp_path / "model.safetensors")


def test_no_documents_are_an_error(tmp_path: Path) -> None:
    trainer = Trainer(
        target(), Corpus(tmp_path, {}), _settings(tokens=10), tmp_path / "training.safetensors"
    )
    with pytest.raises(ValueError, match="no document to train on"):
        _run(trainer)


def test_published_files_have_the_published_names_shapes_and_types(tmp_path: Path) -> None:
    head, kept = random_head(), vocabulary()
    write_eagle3(tmp_path, head, kept, target().config, head_taps(NUM_LAYERS))

    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}
    vocab = len(kept)
    layer = "midlayer."
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        f"{layer}hidden_norm.weight": (HIDDEN,),
        f"{layer}input_layernorm.weight": (HIDDEN,),
        f"{layer}post_attention_layernorm.weight": (HIDDEN,),
        f"{layer}self_attn.q_proj.weight": (64, 2 * HIDDEN),
        f"{layer}self_attn.k_proj.weight": (16, 2 * HIDDEN),
        f"{layer}self_attn.v_proj.weight": (16, 2 * HIDDEN),
        f"{layer}self_attn.o_proj.weight": (HIDDEN, 64),
        f"{layer}mlp.gate_proj.weight": (INNER, HIDDEN),
        f"{layer}mlp.up_proj.weight": (INNER, HIDDEN),
        f"{layer}mlp.down_proj.weight": (HIDDEN, INNER),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (vocab, HIDDEN),
        "d2t": (vocab,),
        "t2d": (EMBEDDING_ROWS,),
    }
    assert found.pop("d2t").tolist() == [t - i for i, t in enumerate(kept.target_ids.tolist())]
    t2d = found.pop("t2d")
    assert t2d.dtype == torch.bool
    assert t2d.nonzero()[:, 0].tolist() == kept.target_ids.tolist()
    for name, weight in head.named_parameters():
        assert found[name].dtype == torch.bfloat16
        assert torch.equal(found[name], weight.bfloat16()), name

    with Eagle3Checkpoint(tmp_path, target().config) as opened:
        assert opened.draft_ids.tolist() == kept.target_ids.tolist()
        assert opened.config.taps == head_taps(NUM_LAYERS)
        bits = opened.read_rows("fc", 0, HIDDEN)
        assert torch.equal(from_bits(bits), head.fc.weight.bfloat16())

    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert (config["vocab_size"], config["draft_vocab_size"]) == (EMBEDDING_ROWS, vocab)
    assert (config["rope_theta"], config["rope_scaling"]) == (10_000.0, None)


def test_the_scaling_of_rotations_is_published() -> None:
    from forerun.models import open_checkpoint
    from tests.fixtures.tiny import LLAMA3_ROPE

    path = shared_checkpoint(rope_parameters=LLAMA3_ROPE)
    with open_checkpoint(path) as opened:
        config = eagle3_config(random_head(), opened.config, (2, 4, 5))
    wanted = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}
    assert config["rope_scaling"] == wanted


def test_the_command_makes_data_trains_and_writes_a_card(tmp_path: Path) -> None:
    prompts = [
        [{"role": "user", "content": bytes(prompt).decode("latin-1")}]
        for prompt in random_prompts(20, max_length=24, num_ids=128)
    ]
    job = Job(
        target=checkpoint(),
        out=tmp_path / "out",
        work=tmp_path / "work",
        prompts=prompts,
        answer_tokens=10**9,
        generation=SETTINGS,
        training=_settings(tokens=300),
        threads=1,
    )
    assert train_draft(job)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "20 documents" in card
    assert "| chain of 4 |" in card and "| tree of 8 |" in card
    assert "| training.draft_vocab | 200 |" in card
    assert {f.name for f in job.out.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    written = (tmp_path / "out" / "model.safetensors").read_bytes()

    # All is done, so doing it again gives the same head.
    assert train_draft(job)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == written


def test_a_target_with_too_few_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="the target has 6 layers"):
        head_taps(6)
    assert head_taps(30) == (2, 15, 27)


def test_training_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="no end"):
        TrainingSettings()
