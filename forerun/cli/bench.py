"""`forerun bench`: measures forerun on this machine. Owns the arguments and what is started.

Absolute times belong to one machine in one hour; the ratios within a run are what to compare. The
tables are in bench_report.py.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.cli import bench_acceptance
from forerun.cli.errors import CommandError
from forerun.cli.limits import check_at_least_one
from forerun.cli.local import (
    DRAFTS,
    DTYPES,
    LocalOptions,
    check_draft_model,
    default_draft,
    local_group,
)

if TYPE_CHECKING:
    from forerun.v1 import verify_pb2

DEFAULT_CONCURRENCY = (1, 4, 16)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    benches = parser.add_subparsers(dest="bench", metavar="BENCH", required=True)
    engine = benches.add_parser(
        "engine", help="step times of the engine alone", description="Step times of the engine."
    )
    _add_common_arguments(engine, rounds=15)
    engine.add_argument("--page-size", type=int, default=32, help="tokens in a KV page")
    engine.add_argument("--quick", action="store_true", help="few kinds of steps, short contexts")
    e2e = benches.add_parser(
        "e2e",
        help="generations through both servers",
        description="Generations through both servers, next to the engine's own steps.",
    )
    _add_common_arguments(e2e, rounds=5)
    e2e.add_argument(
        "--input",
        type=Path,
        metavar="PATH",
        help="file of prompts, one JSON object a line, as for forerun generate; default: 16 texts",
    )
    e2e.add_argument("--max-tokens", type=int, default=64, metavar="N", help="of each answer")
    e2e.add_argument(
        "--answers",
        type=int,
        default=2,
        metavar="N",
        help="of each stream, which asks anew when one ends; default: 2",
    )
    e2e.add_argument(
        "--concurrency",
        type=_counts,
        default=DEFAULT_CONCURRENCY,
        metavar="N,...",
        help="numbers of streams at once; default: 1,4,16",
    )
    e2e.add_argument(
        "--drafts",
        type=_drafts,
        metavar="NAME,...",
        help=f"of {', '.join(DRAFTS)}; default: none, ngram and what is the default "
        "for the model, or standalone with --draft-model",
    )
    e2e.add_argument(
        "--draft-model", type=Path, metavar="PATH", help="of those drafts that take one"
    )
    acceptance = benches.add_parser(
        "acceptance",
        help="how many drafted tokens the target accepts",
        description="How many drafted tokens the target accepts, by category and depth.",
    )
    bench_acceptance.add_arguments(acceptance)


def run(args: argparse.Namespace) -> int:
    """Measures and prints."""
    from forerun.cli import bench_report

    measure, show = {
        "engine": (_measure_engine, bench_report.print_engine),
        "e2e": (_measure_e2e, bench_report.print_e2e),
        "acceptance": (bench_acceptance.measure, bench_report.print_acceptance),
    }[args.bench]
    report = measure(args)
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        show(report)
    return 0


def _add_common_arguments(parser: argparse.ArgumentParser, rounds: int) -> None:
    parser.add_argument("--model", type=Path, help="folder or GGUF file; default: a small model")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--threads", type=int, help="default: one a physical core")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"timed; default: {rounds}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(sorted({int(part) for part in text.split(",")}))
    if counts[0] < 1:
        raise argparse.ArgumentTypeError(f"{counts[0]} is no number of streams")
    return counts


def _drafts(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in DRAFTS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(DRAFTS)}")
    return names


def _measure_engine(args: argparse.Namespace) -> dict[str, Any]:
    from forerun.bench.engine import Plan, measure
    from forerun.engine import Engine, EngineConfig
    from forerun.models import default_model_path, open_checkpoint
    from forerun.obs.progress import progress

    check_at_least_one(args, "rounds")
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


def _measure_e2e(args: argparse.Namespace) -> dict[str, Any]:
    from forerun.bench.e2e import PREFILL_CHUNK, Plan, kv_tokens, measure
    from forerun.bench.memory import memory_report
    from forerun.engine import Engine, EngineConfig
    from forerun.models import default_model_path, open_checkpoint
    from forerun.obs.progress import progress

    if args.max_tokens < 2:
        raise CommandError(f"--max-tokens is {args.max_tokens}; it must be at least 2")
    third = "standalone" if args.draft_model else default_draft(args.model)
    drafts = args.drafts or tuple(dict.fromkeys(("none", "ngram", third)))
    check_draft_model(drafts, args.draft_model, args.model)
    check_at_least_one(args, "rounds", "answers")
    plan = Plan(args.concurrency, args.max_tokens, args.answers, args.rounds)
    path = args.model or default_model_path()
    options = LocalOptions(
        path,
        draft_model=args.draft_model,
        dtype=args.dtype,
        threads=args.threads,
        prefix_cache_bytes=0,  # every round sends the same prompts, and prefills them
    )
    with open_checkpoint(path) as checkpoint:
        model = checkpoint.config
        prompts = _prompts(args.input, path)
        config = EngineConfig(
            dtype=args.dtype,
            kv_tokens=kv_tokens(prompts, plan, EngineConfig().page_size),
            max_rows=max(PREFILL_CHUNK, *plan.concurrency),
            threads=args.threads,
        )
        with progress("loading") as advance:
            engine = Engine.load(checkpoint, config, advance)
    with local_group(options, drafts) as group:
        with progress("measuring", "items") as advance:
            report = measure(group.drafts, engine, prompts, plan, advance)
        target = _target_info(group.verify)
        memory = memory_report(group.verify_pid, target, model, engine.info.weight_bytes)
    info = engine.info
    return {
        "model": model.name,
        "isa": info.isa,
        "threads": info.threads,
        "dtype": info.dtype,
        **report,
        "verify_server_bytes": memory,
    }


def _prompts(file: Path | None, model: Path) -> list[list[int]]:
    """Token ids of the prompts; text goes through the chat template where the model has one."""
    from forerun.bench.prompts import PROMPTS
    from forerun.cli.prompts import Prompt, encode_prompt, read_prompts
    from forerun.models import load_tokenizer

    prompts = [Prompt("built-in", text=text) for text in PROMPTS]
    if file is not None:
        with file.open(encoding="utf-8-sig") as lines:
            prompts = read_prompts(lines, str(file))
    tokenizer = load_tokenizer(model)
    return [encode_prompt(prompt, tokenizer) for prompt in prompts]


def _target_info(address: str) -> verify_pb2.GetTargetInfoResponse:
    import grpc

    from forerun.v1 import verify_pb2, verify_pb2_grpc

    with grpc.insecure_channel(address) as channel:
        stub = verify_pb2_grpc.VerifyServiceStub(channel)
        return stub.GetTargetInfo(verify_pb2.GetTargetInfoRequest())
