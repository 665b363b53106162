"""Owns the measurement of how much of what is drafted the target accepts; knows nothing of time.

Each question is answered twice through the same verify server, with drafts and without; the answers
must be the same ids, and the rounds of the first tell the rest. What depends on speed (a draft that
comes too late is decoded plainly) shows as a plain step, which has a denominator of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from forerun.client import Client, Generation

DENOMINATORS = {
    "accepted_per_round": "rounds with at least one proposed node; bonus tokens are not counted",
    "accepted_per_step": "all verify steps, plain ones included; bonus tokens are not counted",
    "accepted_by_depth": "rounds that proposed a node of that depth",
    "drafted_per_round": "rounds with at least one proposed node; roots are not counted",
}


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt of a category, as token ids."""

    category: str
    prompt: Sequence[int]


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to a question, with drafts and without."""

    category: str
    drafted: Generation
    plain: Generation

    @property
    def identical(self) -> bool:
        return self.drafted.token_ids == self.plain.token_ids


def ask(
    drafting: str,
    plain: str,
    questions: Sequence[Question],
    max_tokens: int,
    concurrency: int,
    progress: Callable[[int, int], None],
) -> list[Answers]:
    """Answers in the order of the questions.

    drafting, plain: addresses of draft servers to one verify server, the second without drafts.
    concurrency: questions in flight. progress: (questions answered, questions).
    """
    answers: list[Answers] = []
    with (
        Client(drafting, timeout=None) as drafts,
        Client(plain, timeout=None) as none,
        ThreadPoolExecutor(concurrency) as pool,
    ):

        def both(question: Question) -> Answers:
            prompt = list(question.prompt)
            return Answers(
                question.category,
                drafts.complete(token_ids=prompt, max_tokens=max_tokens),
                none.complete(token_ids=prompt, max_tokens=max_tokens),
            )

        progress(0, len(questions))
        for answer in pool.map(both, questions):
            answers.append(answer)
            progress(len(answers), len(questions))
    return answers


def report(answers: Sequence[Answers]) -> dict[str, Any]:
    """The figures as JSON values: of all answers, and of each category."""
    categories = list(dict.fromkeys(answer.category for answer in answers))
    return {
        "denominators": DENOMINATORS,
        "all": _figures(answers),
        "categories": {
            name: _figures([answer for answer in answers if answer.category == name])
            for name in categories
        },
    }


def _figures(answers: Sequence[Answers]) -> dict[str, Any]:
    stats = [answer.drafted.stats for answer in answers]
    rounds = sum(each.rounds for each in stats)
    plain_steps = sum(each.plain_steps for each in stats)
    drafted = sum(each.drafted for each in stats)
    accepted = sum(each.accepted for each in stats)
    drafted_by_depth = _sums(each.drafted_by_depth for each in stats)
    accepted_by_depth = _sums(each.accepted_by_depth for each in stats)
    accepted_by_depth += [0] * (len(drafted_by_depth) - len(accepted_by_depth))
    return {
        "questions": len(answers),
        "identical": sum(answer.identical for answer in answers),
        "emitted": sum(each.emitted for each in stats),
        "rounds": rounds,
        "plain_steps": plain_steps,
        "drafted": drafted,
        "accepted": accepted,
        "accepted_per_round": _ratio(accepted, rounds),
        "accepted_per_step": _ratio(accepted, rounds + plain_steps),
        "drafted_per_round": _ratio(drafted, rounds),
        "accepted_by_depth": [
            _ratio(some, many)
            for some, many in zip(accepted_by_depth, drafted_by_depth, strict=True)
        ],
        "rounds_by_depth": drafted_by_depth,
    }


def _sums(counts: Iterable[Sequence[int]]) -> list[int]:
    """Sums by index of sequences of differing lengths."""
    sums: list[int] = []
    for each in counts:
        sums += [0] * (len(each) - len(sums))
        for index, count in enumerate(each):
            sums[index] += count
    return sums


def _ratio(some: int, many: int) -> float | None:
    return round(some / many, 4) if many else None
