"""Owns the order of things in `forerun train-draft`: data, training, the published head.

Knows nothing of flags.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch

from forerun.models import Tokenizer, load_tokenizer
from forerun.obs.progress import progress
from forerun.training import evaluation
from forerun.training.corpus import Corpus
from forerun.training.display import training_progress
from forerun.training.export import write_head
from forerun.training.files import write_whole
from forerun.training.generation import GenerationSettings, Generator
from forerun.training.methods import head_of
from forerun.training.model_card import Card
from forerun.training.origin import read_origin
from forerun.training.settings import MIB, TrainingSettings
from forerun.training.states import store_for
from forerun.training.target import Target, load_target
from forerun.training.trainer import FIRST_METHOD, Trainer

MAX_ROWS = 512
PAGE_SLACK = 64

Phase = Literal["data", "training"]


@dataclass(frozen=True, slots=True)
class Job:
    """What to train, on what, and where to put it.

    prompts: conversations to answer, each a list of messages; None lets the target make its own.
    requests: texts as which the target's own prompts begin; None for common first words.
    origin: folder of a published head to go on from, where there is no checkpoint.
    answer_tokens: of the data. only: a phase to do alone. threads: None for one a physical core.
    """

    target: Path
    out: Path
    work: Path
    prompts: Sequence[Sequence[dict[str, str]]] | None
    answer_tokens: int
    requests: Sequence[str] | None = None
    generation: GenerationSettings = field(default_factory=GenerationSettings)
    training: TrainingSettings = field(default_factory=lambda: TrainingSettings(minutes=60))
    origin: Path | None = None
    only: Phase | None = None
    threads: int | None = None


def train_draft(job: Job) -> bool:
    """Does the job, going on from what the work folder holds; False where it was interrupted.

    SIGINT and SIGTERM end a phase at once with all that it has. Raises ModelError for a target that
    cannot be used and ValueError for settings that do not go together.
    """
    tokenizer = load_tokenizer(job.target)
    prompts = None if job.prompts is None else [tokenizer.encode_chat(m) for m in job.prompts]
    longest = _longest_document(tokenizer, prompts, job.generation)
    target = load_target(
        job.target,
        kv_tokens=longest * job.generation.sessions,
        max_rows=MAX_ROWS,
        threads=job.threads,
    )
    # Before hours are spent on data for a head that cannot be.
    taps = head_of(job.training.method).taps(target.config)
    origin = read_origin(job.origin, target.config, taps) if job.origin else None
    store = store_for(job.work, taps, target.config, job.training.states_mib * MIB)
    if job.threads:
        torch.set_num_threads(job.threads)
    corpus = Corpus(job.work / "corpus", _data_settings(job, target))
    with _stop_signals() as stopped:
        if job.only != "training":
            with progress("generating answer tokens", "items") as report:
                Generator(target, job.generation, prompts, job.requests, store).fill(
                    corpus, job.answer_tokens, report, stopped
                )
        if job.only != "data" and not stopped():
            trainer = Trainer(target, corpus, job.training, _checkpoint(job), origin)
            with training_progress() as show:
                trainer.run(show, stopped)
            _publish(job, target, corpus, trainer)
        return not stopped()


def _publish(job: Job, target: Target, corpus: Corpus, trainer: Trainer) -> None:
    """Writes the head as it stands, measured with the weights that are written."""
    head = trainer.finished()
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_(weight.bfloat16())
    write_head(job.out, head.published(target.config))
    card = Card(
        title=head.title,
        method=head.name,
        target=target.config.name,
        fingerprint=target.tokenizer.fingerprint,
        prompts=_prompts(job),
        went_on=job.origin is not None,
        documents=len(corpus.documents),
        answer_tokens=corpus.num_answer_tokens,
        answer_tokens_seen=trainer.progress.tokens,
        minutes=trainer.progress.seconds / 60,
        held_out=len(trainer.held_out()),
        acceptance={shape: trainer.measure(shape) for shape in (evaluation.CHAIN, evaluation.TREE)},
        settings={
            "data": job.generation.to_json(),
            "training": job.training.to_json(),
            "loss": {"token_weight": head.token_weight, "feature_weight": head.feature_weight},
        },
    )
    write_whole(job.out / "README.md", card.render().encode())


def _prompts(job: Job) -> str:
    """Where the prompts came from, for the card."""
    if job.prompts is not None:
        return "Their prompts were given."
    own = "The target made their prompts itself, as the user of its own chat template"
    if job.requests is not None:
        return f"{own}, many of them from the first words of {len(job.requests)} given requests."
    return f"{own}."


def _checkpoint(job: Job) -> Path:
    """One for each method, so that they can share a folder's data."""
    method = job.training.method
    suffix = "" if method == FIRST_METHOD else f"-{method}"
    return job.work / f"training{suffix}.safetensors"


def _longest_document(
    tokenizer: Tokenizer, prompts: Sequence[Sequence[int]] | None, settings: GenerationSettings
) -> int:
    if prompts is None:
        around = tokenizer.encode_chat([{"role": "user", "content": ""}])
        own = settings.prompts
        prompt = len(around) + own.quoted_tokens + own.max_tokens
        return prompt + settings.max_answer + PAGE_SLACK
    return max(map(len, prompts)) + settings.max_answer + PAGE_SLACK


def _data_settings(job: Job, target: Target) -> dict[str, Any]:
    return {
        "target": target.config.name,
        "vocabulary": target.tokenizer.fingerprint,
        **job.generation.to_json(),
    }


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Turns SIGINT and SIGTERM into a question: whether one has come."""
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
