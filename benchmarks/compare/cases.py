"""Owns what every peer has to do: the cases, their prompts, and what their seconds amount to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forerun.models import load_tokenizer

TEXTS = Path(__file__).parents[2] / "tests" / "data" / "specbench_dev.jsonl"


@dataclass(frozen=True, slots=True)
class Case:
    """streams: sequences at once. context: tokens of each prompt. steps: timed decoding steps
    behind them; 0 times the prompts themselves."""

    name: str
    streams: int
    context: int
    steps: int

    def tokens_per_s(self, seconds: float) -> float:
        """Of all streams together."""
        return self.streams * (self.steps or self.context) / seconds


DECODE_1 = Case("decode, 1 stream, context 128", 1, 128, 16)
DECODE_16 = Case("decode, 16 streams, context 128", 16, 128, 8)
DECODE_LONG = Case("decode, 1 stream, context 2048", 1, 2048, 8)
PREFILL = Case("prefill of 512 tokens", 1, 512, 0)
CASES = (DECODE_1, DECODE_16, DECODE_LONG, PREFILL)


@dataclass(slots=True)
class Requests:
    """The requests of all rounds, the same for every peer. Prompts of decoding stay the same;
    those of prefills are never repeated, so that no cache of prefixes knows them."""

    tokens: list[int]
    taken: int = field(default=0)

    @classmethod
    def of(cls, model: Path) -> Requests:
        """From the questions of Spec-Bench, as the model at `model` tokenises them."""
        lines = TEXTS.read_text(encoding="utf-8").splitlines()
        text = "\n\n".join(turn for line in lines for turn in json.loads(line)["turns"])
        return cls(load_tokenizer(model).encode(text))

    def next_round(self) -> Iterator[tuple[Case, dict[str, Any]]]:
        """One request a case."""
        for case in CASES:
            if case.steps:
                starts = range(0, case.streams * case.context, case.context)
                prompts = [self.tokens[start : start + case.context] for start in starts]
                yield case, {"case": "decode", "prompts": prompts, "steps": case.steps}
            else:
                self.taken += 1
                stop = len(self.tokens) - self.taken * case.context
                prompts = [self.tokens[stop - case.context : stop]]
                yield case, {"case": "prefill", "prompts": prompts}
