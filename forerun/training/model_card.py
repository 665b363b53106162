"""Owns the text of a head's model card: what it is for, its data, settings and acceptance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forerun import __version__
from forerun.training.evaluation import Acceptance, DraftShape


@dataclass(frozen=True, slots=True)
class Card:
    """What a card tells.

    title, method: title and name of the head's class. prompts: where they came from. went_on:
    whether it began as another head, of whose training the rest tells nothing. documents,
    answer_tokens: of the training data; answer_tokens_seen counts repeats. acceptance: a
    measurement on held_out documents for each shape of draft. settings: of generation, training and
    the loss, JSON values.
    """

    title: str
    method: str
    target: str
    fingerprint: str
    prompts: str
    went_on: bool
    documents: int
    answer_tokens: int
    answer_tokens_seen: int
    minutes: float
    held_out: int
    acceptance: Mapping[DraftShape, Acceptance]
    settings: Mapping[str, Any]

    def render(self) -> str:
        """The card, in Markdown."""
        lines = [
            f"# {self.title} head for {self.target}",
            "",
            f"Drafts tokens for {self.target} in speculative decoding; of no use to another model. "
            f"Written by `forerun train-draft --method {self.method}`, forerun {__version__}; "
            f"served by `forerun serve-draft --draft {self.method} --draft-model` and this folder.",
            "",
            f"Vocabulary of the target (SHA-256): `{self.fingerprint}`",
            "",
            "## Data",
            "",
            f"{self.documents} documents with {self.answer_tokens} answer tokens. {self.prompts} "
            "Every answer is the target's own, and so is the distribution that the head learned "
            f"from. It was trained on {self.answer_tokens_seen} answer tokens, repeats counted, in "
            f"{self.minutes:.0f} minutes."
            + (" It went on from a head that was trained before, on other data." * self.went_on),
            "",
            "## Acceptance",
            "",
            f"Mean accepted draft tokens a round, the bonus token not counted, on the target's "
            f"greedy answers in {self.held_out} documents that were held out of training; then the "
            "share of the rounds that accepted a token of each depth.",
            "",
            *self._table(),
            "",
            "## Settings",
            "",
            "| setting | value |",
            "|---|---|",
            *(f"| {name} | {value} |" for name, value in _flat(self.settings)),
        ]
        return "\n".join(lines) + "\n"

    def _table(self) -> list[str]:
        depths = range(max((len(a.by_depth) for a in self.acceptance.values()), default=0))
        rows = [["draft", "rounds", "accepted", *(f"depth {d + 1}" for d in depths)]]
        rows.append(["---"] * len(rows[0]))
        for shape, measured in self.acceptance.items():
            name = f"{'chain' if shape.breadth == 1 else 'tree'} of {shape.nodes}"
            shares = (f"{measured.share(d):.2f}" for d in depths)
            rows.append([name, str(measured.rounds), f"{measured.mean:.2f}", *shares])
        return [f"| {' | '.join(row)} |" for row in rows]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat += _flat(value, f"{prefix}{name}.")
        else:
            flat.append((f"{prefix}{name}", value))
    return flat
