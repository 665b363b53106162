"""Owns the course of training: documents in, optimiser steps, checkpoints, measurements.

Everything that decides the next step is in the checkpoint, so that a run which was interrupted goes
on as if it had not been. Knows nothing of the data's making, nor of the published format.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from forerun.training import evaluation
from forerun.training.checkpoint import TrainingCheckpoint, read_checkpoint
from forerun.training.corpus import Corpus, Document
from forerun.training.examples import Examples
from forerun.training.generation import is_held_out
from forerun.training.head import Head
from forerun.training.methods import head_of
from forerun.training.optimisation import Optimiser
from forerun.training.order import Order
from forerun.training.origin import Origin
from forerun.training.settings import MIB, TrainingSettings
from forerun.training.states import store_for
from forerun.training.target import Target
from forerun.training.unroll import Example, loss
from forerun.training.vocabulary import DraftVocabulary

# Rows whose loss is computed at once: more of them would not make matrix products faster, and take
# memory, a score for each token that is taught and each step of the unrolling.
PACK_ROWS = 640

# What a head learns from before the first step: some 60 thousand rows.
PREPARING_DOCUMENTS = 200

# What wrote checkpoints before they named it.
FIRST_METHOD = "eagle3"


@dataclass(slots=True)
class Progress:
    """Where training stands.

    steps: of the optimiser. tokens: answer tokens trained on, repeats counted. seconds: of the
    computing thread in these steps; a process that is stopped, or waits for a processor, spends
    none. loss: of the last step, a token, all steps of the unrolling together; agreement: share of
    its tokens that were the head's best in the unrolling's step 0. history: of each measurement,
    these and the mean accepted nodes of a round with a tree.
    """

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    agreement: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


class Trainer:
    """Trains a head on a corpus; goes on from `path` where that is a checkpoint, or else from
    `origin`, a published head.

    Raises ValueError where the checkpoint belongs to another method, target or draft vocabulary,
    for a target that has no head of the method, and for a corpus without documents.
    """

    def __init__(
        self,
        target: Target,
        corpus: Corpus,
        settings: TrainingSettings,
        path: Path,
        origin: Origin | None = None,
    ) -> None:
        self._corpus = corpus
        self._settings = settings
        self._path = path
        method = head_of(settings.method)
        taps = method.taps(target.config)
        self.progress = Progress()
        self._order = Order(settings.seed)
        found = read_checkpoint(path) if path.exists() else None
        if found is not None:
            self._require_same_method(found)
        self.vocabulary = self._vocabulary(target, found, origin)
        self.head = method.begin(target, self.vocabulary)
        store = store_for(path.parent, taps, target.config, settings.states_mib * MIB)
        self._examples = Examples(target, self.vocabulary, taps, store)
        if found is None:
            some = self._training_documents()[:PREPARING_DOCUMENTS]
            self.head.prepare(list(map(self._examples.of, some)), origin)
        self._optimiser = Optimiser(self.head, settings.optimiser)
        if found is not None:
            self.head.load_state_dict(found.tensors["head"])
            # A run that ended before its first step has left no moments.
            self._optimiser.restore(found.tensors.get("optimiser", {}))
            self.progress = Progress(**found.state["progress"])
            self._order = Order(**found.state["order"])
        self._embedding = target.embedding

    @property
    def spent(self) -> float:
        """The share of the budget that is spent, 0 to 1."""
        by_time = self.progress.seconds / (60 * self._settings.minutes or float("inf"))
        by_tokens = self.progress.tokens / (self._settings.tokens or float("inf"))
        return min(max(by_time, by_tokens), 1.0)

    def run(self, report: Callable[[float, Progress], None], stopped: Callable[[], bool]) -> None:
        """Trains until the budget is spent or `stopped` says so, then writes a checkpoint.

        report: called after each optimiser step with the share of the budget and the progress.
        """
        last_written = last_measured = time.monotonic()
        while self.spent < 1 and not stopped():
            if not self._step(stopped):
                break
            if time.monotonic() - last_measured > 60 * self._settings.measure_minutes:
                self._record()
                last_measured = time.monotonic()
            if time.monotonic() - last_written > 60 * self._settings.checkpoint_minutes:
                self._write()
                last_written = time.monotonic()
            report(self.spent, self.progress)
        self._write()

    def held_out(self) -> list[Document]:
        """The documents to measure on."""
        documents = [d for d in self._corpus.documents if is_held_out(d.index)]
        return documents[: self._settings.held_out]

    def measure(self, shape: evaluation.DraftShape) -> evaluation.Acceptance:
        """Acceptance on the held-out documents."""
        examples = map(self._examples.of, self.held_out())
        embeddings = self._embedding[self.head.vocabulary.target_ids].float()
        return evaluation.measure(self.head, examples, embeddings, shape)

    def finished(self) -> Head:
        """The head to publish: of the tokens that it was taught, with as many as are wanted. It is
        not trained after that."""
        texts = (document.token_ids for document in self._training_documents())
        self.head.keep(self.vocabulary.reduced(texts, self._settings.draft_vocab))
        return self.head

    def _step(self, stopped: Callable[[], bool]) -> bool:
        """One optimiser step; False, and nothing has changed, where it was interrupted."""
        begun = time.thread_time()
        spent, order = self.spent, replace(self._order)
        rows, total = 0, 0.0
        steps = 1 if spent < self._settings.alone else self._settings.unroll
        hits = torch.zeros(steps, dtype=torch.int64)
        while rows < self._settings.batch_rows:
            if stopped():
                self._order = order
                self._optimiser.forget_gradients()
                return False
            examples = self._next_examples(self._settings.batch_rows - rows)
            summed, by_step = loss(self.head, examples, steps, self._settings.decay)
            (summed / self._settings.batch_rows).backward()  # type: ignore[no-untyped-call]
            rows += sum(example.num_rows for example in examples)
            total += summed.item()
            hits += by_step
        self._optimiser.step(spent)
        progress = self.progress
        progress.steps += 1
        progress.tokens += rows
        progress.seconds += time.thread_time() - begun
        progress.loss = total / rows
        progress.agreement = int(hits[0]) / rows
        return True

    def _next_examples(self, wanted: int) -> list[Example]:
        """Those of the next documents, until they have the rows that are wanted or a pack's."""
        examples: list[Example] = []
        rows = 0
        while rows < min(wanted, PACK_ROWS):
            examples.append(self._examples.of(self._next_document()))
            rows += examples[-1].num_rows
        return examples

    def _next_document(self) -> Document:
        documents = self._training_documents()
        if self._order.pass_ended:
            self._corpus.refresh()
            documents = self._training_documents()
            self._order.begin_pass(len(documents))
        return documents[self._order.take()]

    def _training_documents(self) -> list[Document]:
        """Those that have rows."""
        documents = self._corpus.documents
        return [d for d in documents if not is_held_out(d.index) and len(d.answer) > 1]

    def _record(self) -> None:
        progress = self.progress
        progress.history.append(
            {
                "steps": progress.steps,
                "tokens": progress.tokens,
                "seconds": round(progress.seconds, 1),
                "loss": round(progress.loss, 4),
                "agreement": round(progress.agreement, 4),
                "accepted": round(self.measure(evaluation.TREE).mean, 4),
            }
        )

    def _write(self) -> None:
        state: dict[str, Any] = {
            "progress": asdict(self.progress),
            "order": self._order.to_json(),
            "settings": self._settings.to_json(),
        }
        tensors = {
            "head": self.head.state_dict(),
            "optimiser": self._optimiser.state(),
            "vocabulary": {"target_ids": self.vocabulary.target_ids},
        }
        TrainingCheckpoint(tensors, state).write(self._path)

    def _require_same_method(self, found: TrainingCheckpoint) -> None:
        method = found.state["settings"].get("method", FIRST_METHOD)
        if method != self._settings.method:
            raise ValueError(
                f"{self._path} is of a head for {method}; {self._settings.method} is wanted. "
                "Take that method, or another work folder"
            )

    def _vocabulary(
        self, target: Target, found: TrainingCheckpoint | None, origin: Origin | None
    ) -> DraftVocabulary:
        size = self._settings.draft_vocab
        if found is None:
            # What stands in prompts is copied into answers, rare words above all.
            texts = (document.token_ids for document in self._training_documents())
            kept = origin.target_ids.numpy() if origin else ()
            return DraftVocabulary.most_frequent(texts, size, target.vocab_size, kept)
        ids = found.tensors["vocabulary"]["target_ids"]
        if len(ids) < size or int(ids[-1]) >= target.vocab_size:
            raise ValueError(
                f"{self._path} has a draft vocabulary of {len(ids)} for another target or setting; "
                f"{size} is wanted. Take at most as many, or remove the file"
            )
        return DraftVocabulary(ids, target.vocab_size)
