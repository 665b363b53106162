"""Owns what `forerun bench` prints on a terminal; the figures are in the reports it is given."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def print_engine(report: dict[str, Any]) -> None:
    """The step times of `forerun bench engine`."""
    console = Console()
    console.print(
        f"{_heading(report)}: memory reads {report['read_bandwidth_gb_per_s']} GB/s; one decoding "
        f"step uses {report['fraction_of_bandwidth']:.0%} of it for its weights"
    )
    table = Table("step", "rows", "ms", "times one row")

    def add(step: str, by_rows: dict[str, float]) -> None:
        one = next(iter(by_rows.values()))
        for rows, ms in by_rows.items():
            table.add_row(step, rows, f"{ms:.2f}", f"{ms / one:.2f}")

    add("decode, sessions", report["decode_ms"])
    for context, by_nodes in report["verify_ms"].items():
        add(f"verify at {context}, nodes", by_nodes)
    console.print(table)
    for length, rate in report["prefill_tokens_per_s"].items():
        console.print(f"prefill of {length}: {rate:.0f} tokens/s")


def print_e2e(report: dict[str, Any]) -> None:
    """The generations of `forerun bench e2e`."""
    console = Console()
    console.print(
        f"{_heading(report)}; {report['prompts']} prompts of {report['prompt_tokens']:.0f} tokens "
        f"on average, {report['answers']} answers of {report['max_tokens']} tokens a stream, "
        f"{report['rounds']} rounds"
    )
    table = Table("drafts", "streams", "tokens/s", "times plain", "decoding", "accepted a round")
    table.add_column("first token, ms\np50 / p90 / p99")
    table.add_column("next token, ms\np50 / p90 / p99")
    for row in report["settings"]:
        table.add_row(
            row["draft"],
            str(row["concurrency"]),
            f"{row['tokens_per_s']:.1f}",
            _number(row.get("times_plain"), ".2f"),
            _number(row.get("decoding_times_plain"), ".2f"),
            _number(row["accepted_per_round"], ".2f"),
            " / ".join(_number(value, ".0f") for value in row["ttft_ms"].values()),
            " / ".join(_number(value, ".1f") for value in row["inter_token_ms"].values()),
        )
    console.print(table)
    for streams, engine in report["engine"].items():
        console.print(
            f"the engine alone, {streams} sessions: {engine['tokens_per_s']:.1f} tokens/s; "
            f"through both servers without drafts: {_number(engine['share'], '.0%')} of it"
        )
    memory = report["verify_server_bytes"]
    console.print(
        f"the verify server holds {_mb(memory['rss'])} MB, {_mb(memory['peak_rss'])} at most; "
        f"{_mb(memory['weights'])} of weights and a KV pool of {_mb(memory['kv_pool'])} allow "
        f"{_mb(memory['limit'])}"
    )


def print_acceptance(report: dict[str, Any]) -> None:
    """The drafts of `forerun bench acceptance`."""
    console = Console()
    console.print(
        f"{report['model']}, drafts by {report['draft']}, {report['max_tokens']} tokens a "
        f"question, {report['concurrency']} at once"
    )
    table = Table()
    table.add_column("category", no_wrap=True)
    for name in ("same ids", "accepted a round", "a step", "drafted a round", "by depth"):
        table.add_column(name)
    for name, row in [*report["categories"].items(), ("all", report["all"])]:
        table.add_row(
            name,
            f"{row['identical']} of {row['questions']}",
            _number(row["accepted_per_round"], ".2f"),
            _number(row["accepted_per_step"], ".2f"),
            _number(row["drafted_per_round"], ".1f"),
            " ".join(_number(share, ".2f") for share in row["accepted_by_depth"]),
        )
    console.print(table)


def _heading(report: dict[str, Any]) -> str:
    return f"{report['model']}, {report['dtype']}, {report['isa']}, {report['threads']} threads"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _mb(count: int) -> str:
    return f"{count / 1e6:.0f}"
