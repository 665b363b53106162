"""`forerun bench`: measures forerun on this machine. Owns the arguments and the tables.

Absolute times belong to one machine in one hour; the ratios within a run are what to compare.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    benches = parser.add_subparsers(dest="bench", metavar="BENCH", required=True)
    engine = benches.add_parser(
        "engine", help="step times of the engine alone", description="Step times of the engine."
    )
    engine.add_argument("--model", type=Path, help="folder or GGUF file; default: the embedded one")
    engine.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    engine.add_argument("--threads", type=int, help="default: one a physical core")
    engine.add_argument("--page-size", type=int, default=32, help="tokens in a KV page")
    engine.add_argument("--rounds", type=int, default=15, help="timed steps of each kind")
    engine.add_argument("--quick", action="store_true", help="few kinds of steps, short contexts")
    engine.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Measures and prints."""
    report = _measure_engine(args)
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        _print_engine(report)
    return 0


def _measure_engine(args: argparse.Namespace) -> dict[str, Any]:
    from forerun.bench.engine import Plan, measure
    from forerun.engine import Engine, EngineConfig
    from forerun.models import default_model_path, open_checkpoint
    from forerun.obs.progress import progress

    plan = Plan(rounds=args.rounds)
    if args.quick:
        plan = Plan((1, 4), (1, 8), (128,), (128,), rounds=args.rounds)
    config = EngineConfig(
        dtype=args.dtype,
        page_size=args.page_size,
        kv_tokens=plan.kv_tokens,
        max_rows=max(plan.prefill_chunk, *plan.nodes, *plan.sessions),
        threads=args.threads,
    )
    with open_checkpoint(args.model or default_model_path()) as checkpoint:
        name = checkpoint.config.name
        with progress("loading") as advance:
            engine = Engine.load(checkpoint, config, advance)
    with progress("measuring", "items") as advance:
        return {"model": name, **measure(engine, plan, advance)}


def _print_engine(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(
        f"{report['model']}, {report['dtype']}, {report['isa']}, {report['threads']} threads: "
        f"memory reads {report['read_bandwidth_gb_per_s']} GB/s; one decoding step uses "
        f"{report['fraction_of_bandwidth']:.0%} of it for its weights"
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
