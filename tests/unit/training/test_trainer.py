"""Training lowers the loss, and goes on after an interruption as if there had been none."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from forerun.training.checkpoint import TrainingCheckpoint, read_checkpoint
from forerun.training.corpus import Corpus
from forerun.training.evaluation import CHAIN
from forerun.training.export import write_head
from forerun.training.generation import is_held_out
from forerun.training.head import Head
from forerun.training.methods import METHODS
from forerun.training.settings import TrainingSettings
from forerun.training.trainer import Progress, Trainer
from forerun.training.unroll import Example, loss
from tests.fixtures.tiny import random_prompts
from tests.fixtures.training import (
    DRAFT_VOCAB,
    SETTINGS,
    corpus,
    random_head,
    target,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return corpus(tmp_path_factory.mktemp("corpus"), prompts=70)


def _settings(tokens: int, **options: Any) -> TrainingSettings:
    defaults = {"draft_vocab": DRAFT_VOCAB, "batch_rows": 128, "checkpoint_minutes": 60.0}
    return TrainingSettings(tokens=tokens, **{**defaults, **options})


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


@pytest.mark.parametrize("method", METHODS)
def test_a_few_steps_lower_the_loss(method: str, data: Corpus, tmp_path: Path) -> None:
    settings = _settings(tokens=2400, method=method, alone=0.0)
    trainer = Trainer(target(), data, settings, tmp_path / "training.safetensors")
    losses = _run(trainer)
    assert sum(losses[-4:]) < 0.9 * sum(losses[:4])
    assert trainer.progress.tokens >= 2400
    assert trainer.spent == 1


@pytest.mark.parametrize(
    ("method", "stop_after"),
    [("eagle3", 1), ("eagle3", 11), ("eagle3", 18), ("eagle", 15), ("mtp", 15)],
)
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(
    data: Corpus, tmp_path: Path, method: str, stop_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.training.trainer.PACK_ROWS", 30)
    settings = _settings(tokens=600, batch_rows=64, method=method)
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


def test_the_head_learns_alone_before_it_runs_on_its_own_outputs(
    data: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []

    def spy(head: Head, examples: list[Example], count: int, decay: float) -> tuple[Tensor, Tensor]:
        steps.append(count)
        return loss(head, examples, count, decay)

    monkeypatch.setattr("forerun.training.trainer.loss", spy)
    settings = _settings(tokens=800, batch_rows=64, alone=0.5, unroll=2)
    _run(Trainer(target(), data, settings, tmp_path / "training.safetensors"))
    assert steps == sorted(steps) and steps.count(1) == pytest.approx(steps.count(2), abs=2)


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
    short = {d.index for d in data.documents if len(d.answer) < 2}
    assert short, "a document without rows would tell whether it is left out"
    drawn = {trainer._next_document().index for _ in range(68 - len(short))}
    assert drawn == set(range(70)) - {0, 64} - short
    assert trainer.measure(CHAIN).rounds > 0


def test_a_checkpoint_of_a_smaller_vocabulary_is_refused(data: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "training.safetensors"
    _run(Trainer(target(), data, _settings(tokens=1), path))
    with pytest.raises(ValueError, match="draft vocabulary of 200"):
        Trainer(target(), data, _settings(tokens=1, draft_vocab=201), path)


def test_a_head_is_published_with_fewer_tokens_than_it_was_taught(
    data: Corpus, tmp_path: Path
) -> None:
    path = tmp_path / "training.safetensors"
    _run(Trainer(target(), data, _settings(tokens=1), path))
    trainer = Trainer(target(), data, _settings(tokens=1, draft_vocab=60), path)
    taught, rows = trainer.vocabulary, _weights(trainer)["lm_head.weight"]
    head = trainer.finished()
    kept = head.vocabulary.target_ids
    texts = [d.token_ids for d in data.documents if not is_held_out(d.index) and len(d.answer) > 1]
    counts = torch.bincount(torch.cat([torch.from_numpy(t).long() for t in texts]), minlength=1000)
    left = taught.target_ids[~torch.isin(taught.target_ids, kept)]
    assert len(kept) == 60 and counts[kept].min() >= counts[left].max()
    assert torch.equal(head.get_parameter("lm_head.weight"), rows[taught.draft_ids(kept)])
    assert head.published(target().config).tensors["d2t"].shape == (60,)
    assert trainer.measure(CHAIN).rounds > 0


def test_a_checkpoint_of_another_method_is_refused(data: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "training.safetensors"
    _run(Trainer(target(), data, _settings(tokens=1, method="eagle"), path))
    with pytest.raises(ValueError, match="of a head for eagle; mtp is wanted"):
        Trainer(target(), data, _settings(tokens=1, method="mtp"), path)
    with pytest.raises(ValueError, match="method is 'medusa'; heads are trained for eagle3, eagle"):
        Trainer(target(), data, _settings(tokens=1, method="medusa"), path)


def test_a_checkpoint_that_names_no_method_is_of_eagle3(data: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "training.safetensors"
    _run(Trainer(target(), data, _settings(tokens=200, batch_rows=64), path))
    written = read_checkpoint(path)
    del written.state["settings"]["method"]
    TrainingCheckpoint(written.tensors, written.state).write(path)
    resumed = Trainer(target(), data, _settings(tokens=200, batch_rows=64), path)
    assert resumed.head.name == "eagle3" and resumed.progress.tokens >= 200
    with pytest.raises(ValueError, match="of a head for eagle3; mtp is wanted"):
        Trainer(target(), data, _settings(tokens=200, method="mtp"), path)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    write_head(tmp_path, random_head().published(target().config))
    with pytest.raises(ValueError, match="no checkpoint of training"):
        read_checkpoint(tmp_path / "model.safetensors")


def test_no_documents_are_an_error(tmp_path: Path) -> None:
    trainer = Trainer(
        target(), Corpus(tmp_path, {}), _settings(tokens=10), tmp_path / "training.safetensors"
    )
    with pytest.raises(ValueError, match="no document to train on"):
        _run(trainer)


def test_training_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="no end"):
        TrainingSettings()
