"""Owns what a comparison found, and how it is written down: JSON, and a page with a table."""

from __future__ import annotations

import json
import platform
import statistics
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.compare.cases import CASES, DECODE_1, DECODE_16, PREFILL, Case
from forerun.engine.isa import isa_report

OUTPUT = Path(__file__).parents[2] / "docs" / "benchmarks"
REFERENCE = "forerun"
# At least so many times as fast as a peer, by case.
BARS = (
    (DECODE_1, "llama.cpp", 1.2),
    (DECODE_1, "OpenVINO GenAI", 1.5),
    (DECODE_16, "llama.cpp", 2.0),
    (PREFILL, "llama.cpp", 1.3),
)


@dataclass(slots=True)
class PeerResult:
    """What one peer did. failed: why it has no (more) figures. seconds: one entry a timed round.
    tokens: its latest answer, the greedy continuation of each prompt."""

    name: str
    failed: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    dtype: str = ""
    seconds: dict[Case, list[float]] = field(default_factory=lambda: {case: [] for case in CASES})
    tokens: dict[Case, list[list[int]]] = field(default_factory=dict)

    def tokens_per_s(self, case: Case) -> float | None:
        """By the median of the rounds."""
        seconds = self.seconds[case]
        return case.tokens_per_s(statistics.median(seconds)) if seconds else None


def write(results: list[PeerResult], folder: Path, threads: int) -> Path:
    """Writes compare-ISA.json and .md into `folder`; returns the path of the first."""
    isa = isa_report()["selected"]
    report = {
        "date": date.today().isoformat(),
        "machine": machine(),
        "isa": isa,
        "threads": threads,
        "rounds": max(len(seconds) for r in results for seconds in r.seconds.values()),
        "cases": [case.name for case in CASES],
        "peers": [_peer(result, results) for result in results],
        "bars": [_bar(*bar, results) for bar in BARS],
    }
    path = folder / f"compare-{isa}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(_page(report, path.stem), encoding="utf-8")
    return path


def machine() -> str:
    """The processor's own name, and how many of them there are."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0] if names else platform.machine()}"


def _peer(result: PeerResult, results: list[PeerResult]) -> dict[str, Any]:
    rates = {case.name: result.tokens_per_s(case) for case in CASES}
    return {
        "name": result.name,
        "failed": result.failed,
        "versions": result.versions,
        "computes_in": result.dtype,
        "tokens_per_s": {name: rate and round(rate, 1) for name, rate in rates.items()},
        "seconds": {c.name: [round(s, 5) for s in result.seconds[c]] for c in CASES},
        "same_tokens": {case.name: _same_tokens(case, result, results) for case in CASES},
    }


def _same_tokens(case: Case, result: PeerResult, results: list[PeerResult]) -> str | None:
    """How far the answers agree with forerun's: "tokens before the first difference of all"."""
    reference = next((r for r in results if r.name == REFERENCE), None)
    if reference is None or case not in reference.tokens or case not in result.tokens:
        return None
    same = total = 0
    for mine, theirs in zip(result.tokens[case], reference.tokens[case], strict=True):
        total += len(theirs)
        for one, other in zip(mine, theirs, strict=False):
            if one != other:
                break
            same += 1
    return f"{same} of {total}"


def _ratio(case: Case, peer: str, results: list[PeerResult]) -> float | None:
    rates = {result.name: result.tokens_per_s(case) for result in results}
    mine, theirs = rates.get(REFERENCE), rates.get(peer)
    return mine / theirs if mine and theirs else None


def _bar(case: Case, peer: str, least: float, results: list[PeerResult]) -> dict[str, Any]:
    ratio = _ratio(case, peer, results)
    return {
        "case": case.name,
        "peer": peer,
        "at_least": least,
        "ratio": ratio and round(ratio, 2),
        "met": ratio is not None and ratio >= least,
    }


def _page(report: dict[str, Any], stem: str) -> str:
    names = report["cases"]
    peers = [peer for peer in report["peers"] if any(peer["tokens_per_s"].values())]
    first = peers[0]["tokens_per_s"] if peers else {}

    def cell(peer: dict[str, Any], name: str) -> str:
        rate = peer["tokens_per_s"][name]
        if not rate:
            return "-"
        share = f" ({rate / first[name]:.2f})" if first.get(name) else ""
        return f"{rate:.1f}{share}"

    lines = [
        f"# Next to other engines: {report['isa']}",
        "",
        f"SmolLM2-135M-Instruct with the same bfloat16 weights, {report['machine']}, "
        f"{report['threads']} threads, {report['date']}. Medians of {report['rounds']} rounds in "
        "which every peer took every case in turn, in tokens/s of all streams together; in "
        "parentheses the share of forerun's.",
        "",
        f"| | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    lines += [
        f"| {peer['name']} | {' | '.join(cell(peer, name) for name in names)} |" for peer in peers
    ]
    lines += ["", f"![The same as bars]({stem}.svg)", "", "## Bars", ""]
    lines += ["| case | next to | at least | measured | |", "|---|---|---|---|---|"]
    for bar in report["bars"]:
        measured = "-" if bar["ratio"] is None else f"{bar['ratio']:.2f}"
        verdict = "met" if bar["met"] else "missed" if bar["ratio"] else "not measured"
        lines.append(
            f"| {bar['case']} | {bar['peer']} | {bar['at_least']:.1f} | {measured} | {verdict} |"
        )
    lines += ["", "## Peers", ""]
    for peer in report["peers"]:
        versions = ", ".join(f"{name} {version}" for name, version in peer["versions"].items())
        said = [f"computes in {peer['computes_in']}"] if peer["computes_in"] else []
        agreed = [f"{same} tokens" for same in [peer["same_tokens"][names[0]]] if same]
        if agreed and peer["name"] != REFERENCE:
            said.append(f"{agreed[0]} as forerun's in the first case")
        said += [f"**failed: {peer['failed']}**"] if peer["failed"] else []
        lines.append(f"- {peer['name']}: {'; '.join([versions, *said] if versions else said)}")
    return "\n".join(lines) + "\n"
