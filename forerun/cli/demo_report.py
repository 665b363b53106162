"""Owns what the demo prints: the heading, the coloured answer, the tables, and the JSON form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from forerun.client import Chunk, Generation, ModelInfo

ACCEPTED_STYLE = "green"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The runs of one prompt without and with drafts; rates are of tokens after the first one."""

    answer: Generation
    runs: int
    plain_rate: float
    drafted_rate: float

    @classmethod
    def of(cls, plain: Sequence[Generation], drafted: Sequence[Generation]) -> Comparison:
        """Compares runs that gave the tokens of the answer that was shown before them."""
        return cls(drafted[-1], 1 + len(plain) + len(drafted), _rate(plain), _rate(drafted))

    @property
    def speed_up(self) -> float:
        """The drafted rate over the plain one; 0 where nothing could be measured."""
        return self.drafted_rate / self.plain_rate if self.plain_rate else 0.0

    def to_json(self, info: ModelInfo, prompt: str) -> dict[str, Any]:
        """All that the tables say, for programs."""
        stats = self.answer.stats
        return {
            "model": info.model_name,
            "dtype": info.dtype,
            "isa": info.isa,
            "draft": info.draft,
            "prompt": prompt,
            "text": self.answer.text,
            "token_ids": list(self.answer.token_ids),
            "identical_runs": self.runs,
            "plain_tokens_per_second": round(self.plain_rate, 2),
            "tokens_per_second": round(self.drafted_rate, 2),
            "speed_up": round(self.speed_up, 3),
            "rounds": stats.rounds,
            "plain_steps": stats.plain_steps,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "drafted_by_depth": stats.drafted_by_depth,
            "accepted_by_depth": stats.accepted_by_depth,
        }


class AnswerPrinter:
    """Prints an answer as it arrives, token by token, accepted proposals in colour.

    token_text: the text that the next token completes, called once a token, in order.
    """

    def __init__(self, token_text: Callable[[int], str], console: Console | None = None) -> None:
        self._token_text = token_text
        self._console = console or Console()

    def print(self, chunk: Chunk) -> None:
        """Prints one piece; its first `accepted` tokens were proposed by the drafter."""
        piece = Text()
        for index, token_id in enumerate(chunk.token_ids):
            style = ACCEPTED_STYLE if index < chunk.accepted else ""
            piece.append(self._token_text(token_id), style)
        self._console.print(piece, end="", soft_wrap=True)


def print_heading(info: ModelInfo, prompt: str, console: Console | None = None) -> None:
    """Prints what runs, the prompt, and what the colours of the answer mean."""
    console = console or Console()
    console.print(
        Text(f"{info.model_name}, {info.dtype}, {info.isa} kernels, drafts: {info.draft}", "bold")
    )
    console.print()
    console.print(Text(prompt, "dim"), soft_wrap=True)
    console.print()
    legend = Text("The answer; ")
    legend.append("accepted proposals", ACCEPTED_STYLE)
    console.print(legend.append(" are coloured, the target's own tokens are not:"))


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Prints acceptance by depth, the two rates, and that all runs gave the same tokens."""
    console = console or Console()
    stats = comparison.answer.stats
    console.print("\n")
    depths = Table("depth", "proposed in rounds", "accepted", "share", title="Acceptance by depth")
    both = zip_longest(stats.drafted_by_depth, stats.accepted_by_depth, fillvalue=0)
    for depth, (drafted, accepted) in enumerate(both, start=1):
        share = f"{100 * accepted / drafted:.0f} %" if drafted else ""
        depths.add_row(str(depth), str(drafted), str(accepted), share)
    console.print(depths)
    rates = Table("", "tokens/s", title="Speed, measured in turns")
    rates.add_row("without speculation", f"{comparison.plain_rate:.1f}")
    rates.add_row("with speculation", f"{comparison.drafted_rate:.1f}")
    rates.add_row("ratio", f"{comparison.speed_up:.2f}")
    console.print(rates)
    tokens = len(comparison.answer.token_ids)
    console.print(f"All {comparison.runs} runs gave the same {tokens} token ids.")


def _rate(generations: Sequence[Generation]) -> float:
    seconds = sum(each.stats.total_s - each.stats.ttft_s for each in generations)
    tokens = sum(each.stats.emitted - 1 for each in generations)
    return tokens / seconds if tokens > 0 and seconds > 0 else 0.0
