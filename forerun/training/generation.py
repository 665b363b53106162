"""Owns the making of documents: prompts, then answers, many at once, until there are enough.

The order of events depends on the settings alone, so a run that is not interrupted gives the same
documents each time. After an interruption those in the making are given up and new ones begun.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from forerun.engine import Sequence
from forerun.obs.progress import Report
from forerun.training.beginnings import Requests, opening
from forerun.training.corpus import Corpus, Document
from forerun.training.decoding import Continuation, run_last, step
from forerun.training.prompts import PromptSettings, UserTurn
from forerun.training.quoting import Quoting
from forerun.training.states import StateStore
from forerun.training.target import Target

HELD_OUT_EVERY = 64


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """How documents are made.

    max_answer: tokens of an answer. greedy: share of the answers that are the target's argmax, 0
    to 1; the others are drawn with temperature and top_k. sessions: texts that grow at once.
    """

    seed: int = 0
    max_answer: int = 160
    greedy: float = 0.5
    temperature: float = 0.8
    top_k: int = 64
    sessions: int = 32
    prompts: PromptSettings = field(default_factory=PromptSettings)

    def to_json(self) -> dict[str, Any]:
        """What the documents depend on."""
        settings = asdict(self)
        del settings["sessions"]
        return settings


def is_held_out(index: int) -> bool:
    """Whether a document is for measuring alone. Its answer is greedy always."""
    return index % HELD_OUT_EVERY == 0


@dataclass(slots=True, eq=False)
class _Draft:
    """A document in the making: its user's turn first, then its answer."""

    index: int
    greedy: bool
    random: np.random.Generator
    words: str
    text: Continuation
    num_prompt: int = 0


class Generator:
    """Makes documents with a target.

    prompts: ids of given prompts, answered once each; None lets the target make its own. requests:
    texts that users might type, as which its own begin; None for common first words. store: keeps
    the hidden states of the documents, which another prefill would give again.
    """

    def __init__(
        self,
        target: Target,
        settings: GenerationSettings,
        prompts: SequenceOf[SequenceOf[int]] | None = None,
        requests: SequenceOf[str] | None = None,
        store: StateStore | None = None,
    ) -> None:
        self._target = target
        self._settings = settings
        self._prompts = prompts
        self._store = store
        self._taps = store.taps if store else ()
        self._turn = UserTurn(target.tokenizer) if prompts is None else None
        max_tokens = settings.prompts.quoted_tokens
        self._quoting = Quoting(target.tokenizer, max_tokens)
        self._requests = Requests(requests, target.tokenizer, max_tokens) if requests else None

    def fill(
        self,
        corpus: Corpus,
        num_answer_tokens: int,
        report: Report,
        stopped: Callable[[], bool],
        shard_documents: int = 64,
    ) -> None:
        """Adds documents until the corpus has that many answer tokens, or the given prompts are
        used up, or `stopped` says so. Documents that are ready by then are kept.

        report: (answer tokens, those wanted).
        """
        known = {tuple(d.token_ids[: d.num_prompt].tolist()) for d in corpus.documents}
        index = corpus.next_index
        tokens = corpus.num_answer_tokens
        active: list[_Draft] = []
        ready: list[Document] = []
        while tokens < num_answer_tokens and not stopped():
            while len(active) < self._settings.sessions and self._has_prompt(index):
                active.append(self._begin(index, corpus.documents))
                index += 1
            if not active:
                break
            done = [draft for draft in active if draft.text.done]
            if not done:
                step(self._target, [draft.text for draft in active], self._target.eos_token_ids)
            for draft in done:
                if draft.num_prompt == 0 and self._begin_answer(draft, known):
                    continue
                active.remove(draft)
                if draft.num_prompt:
                    ready.append(self._finish(draft))
                    tokens += len(ready[-1].answer)
                    report(min(tokens, num_answer_tokens), num_answer_tokens)
                self._target.engine.release(draft.text.sequence)
            if len(ready) >= shard_documents:
                corpus.add(ready)
                ready = []
        corpus.add(ready)
        for draft in active:
            self._target.engine.release(draft.text.sequence)

    def _has_prompt(self, index: int) -> bool:
        return self._prompts is None or index < len(self._prompts)

    def _begin(self, index: int, documents: SequenceOf[Document]) -> _Draft:
        random = np.random.default_rng([self._settings.seed, index])
        greedy = bool(random.random() < self._settings.greedy) or is_held_out(index)
        sequence = self._target.engine.open()
        if self._prompts is not None:
            prompt = list(self._prompts[index])
            text = self._answer(sequence, prompt, greedy, random)
            return _Draft(index, greedy, random, "", text, len(prompt))
        assert self._turn is not None
        settings = self._settings.prompts
        quotes = random.random() < settings.quotes
        request = self._quoting.request(documents, random) if quotes else None
        words, whole = request or (self._first_words(random), False)
        given = self._turn.up_to(words)
        max_tokens = 0 if whole else settings.max_tokens
        text = Continuation(
            sequence, given, max_tokens, settings.temperature, settings.top_k, random, self._taps
        )
        return _Draft(index, greedy, random, words, text)

    def _first_words(self, random: np.random.Generator) -> str:
        if self._requests is not None:
            return self._requests.begin(random)
        return opening(random, self._settings.prompts.openings)

    def _begin_answer(self, draft: _Draft, known: set[tuple[int, ...]]) -> bool:
        """Goes on to the answer of the prompt that is there now; False if that prompt is no use."""
        assert self._turn is not None
        typed = draft.text.added[:-1] if draft.text.ended else draft.text.added
        prompt = self._turn.prompt(draft.words, typed)
        if prompt is None or tuple(prompt) in known:
            return False
        known.add(tuple(prompt))
        sequence = draft.text.sequence
        # Text and back may give other ids; what they share is cached already.
        cached = draft.text.token_ids[: sequence.length]
        same = next(
            (i for i, (a, b) in enumerate(zip(cached, prompt, strict=False)) if a != b),
            min(len(cached), len(prompt)),
        )
        same = min(same, len(prompt) - 1)
        self._target.engine.truncate(sequence, same)
        states = [torch.cat(draft.text.states)[:same]] if draft.text.states else []
        draft.text = self._answer(sequence, prompt, draft.greedy, draft.random)
        draft.text.states = states
        draft.num_prompt = len(prompt)
        return True

    def _answer(
        self, sequence: Sequence, prompt: list[int], greedy: bool, random: np.random.Generator
    ) -> Continuation:
        settings = self._settings
        temperature = 0.0 if greedy else settings.temperature
        return Continuation(
            sequence, prompt, settings.max_answer, temperature, settings.top_k, random, self._taps
        )

    def _finish(self, draft: _Draft) -> Document:
        """The document; its states are kept."""
        token_ids = np.asarray(draft.text.token_ids, dtype=np.int32)
        document = Document(draft.index, token_ids, draft.num_prompt, draft.greedy)
        if self._store is not None:
            run_last(self._target, draft.text)
            self._store.add(document, torch.cat(draft.text.states))
        return document
