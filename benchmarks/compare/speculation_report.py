"""Owns what a measurement of drafts found, and how it is written down: JSON and a page.

Every engine is held against itself: how much faster it is, how many drafted tokens a round it
accepts, and how many answers are its own plain ones.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.compare.results import machine
from forerun.engine.isa import isa_report

Answer = dict[str, Any]


@dataclass(slots=True)
class Variant:
    """A peer that drafts in one way ("none": plainly). answers: by the number of streams, one a
    timed round, as drivers/protocol.py has them."""

    peer: str
    draft: str
    failed: str | None = None
    answers: dict[int, list[Answer]] = field(default_factory=dict)


def row(variant: Variant, plain: Variant, streams: int) -> dict[str, Any]:
    """What a way to draft brings at a number of streams, next to the same peer without it."""
    drafted, plainly = variant.answers.get(streams), plain.answers.get(streams)
    told: dict[str, Any] = {"peer": variant.peer, "draft": variant.draft, "streams": streams}
    if not drafted or not plainly:
        return told | {"failed": variant.failed or plain.failed}
    ratios = [p["seconds"] / d["seconds"] for p, d in zip(plainly, drafted, strict=True)]
    rounds = sum(answer["rounds"] for answer in drafted)
    accepted = sum(answer["accepted"] for answer in drafted)
    last, own = drafted[-1]["tokens"], plainly[-1]["tokens"]
    return told | {
        "plain_tokens_per_s": _rate(plainly),
        "tokens_per_s": _rate(drafted),
        "times_plain": round(statistics.median(ratios), 2),
        "accepted_per_round": round(accepted / rounds, 2) if rounds else None,
        "same_answers": sum(one == other for one, other in zip(last, own, strict=True)),
        "answers": len(own),
    }


def _rate(answers: Sequence[Answer]) -> float:
    tokens: int = sum(map(len, answers[-1]["tokens"]))
    seconds: float = statistics.median(answer["seconds"] for answer in answers)
    return round(tokens / seconds, 1)


def write(
    variants: Sequence[Variant],
    folder: Path,
    settings: Mapping[str, Any],
) -> None:
    """Writes speculation-ISA.json and .md into `folder`. settings: of the run, for the report."""
    plain = {variant.peer: variant for variant in variants if variant.draft == "none"}
    rows = [
        row(variant, plain[variant.peer], streams)
        for streams in settings["streams"]
        for variant in variants
        if variant.draft != "none"
    ]
    isa = isa_report()["selected"]
    report = {
        "date": date.today().isoformat(),
        "machine": machine(),
        "isa": isa,
        **settings,
        "rows": rows,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"speculation-{isa}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(_page(report), encoding="utf-8")


def _page(report: dict[str, Any]) -> str:
    lines = [
        f"# What drafts bring in several engines: {report['isa']}",
        "",
        "SmolLM2-135M-Instruct with the same bfloat16 weights and the same head, "
        f"{report['machine']}, {report['threads']} threads, {report['date']}. "
        f"{report['prompts']} questions of Spec-Bench, {report['max_tokens']} tokens of each "
        f"answer, medians of {report['rounds']} rounds in turns; prompts are part of the time. "
        "vLLM and llama.cpp draft chains of 4. Each engine is held against its own plain decoding.",
        "",
        "| | drafts | streams | plain tokens/s | drafted | ratio | accepted a round | same |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for found in report["rows"]:
        told = (found["peer"], found["draft"], found["streams"])
        if "failed" in found:
            figures: tuple[Any, ...] = (f"failed: {found['failed']}", "", "", "", "")
        else:
            figures = (
                found["plain_tokens_per_s"],
                found["tokens_per_s"],
                found["times_plain"],
                "-" if found["accepted_per_round"] is None else found["accepted_per_round"],
                f"{found['same_answers']} of {found['answers']}",
            )
        lines.append(f"| {' | '.join(map(str, (*told, *figures)))} |")
    return "\n".join(lines) + "\n"
