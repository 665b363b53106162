"""Measures what drafting by one head brings in several engines.

`python -m benchmarks.compare.speculation` runs every engine with drafts and without. All take
turns, round after round, while the others stand still.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path

from benchmarks.compare import llama_server
from benchmarks.compare.cases import TEXTS
from benchmarks.compare.export import FOLDER, export
from benchmarks.compare.peer_head import export_head
from benchmarks.compare.peers import PEERS, PeerFailed
from benchmarks.compare.process import PeerProcess, start
from benchmarks.compare.results import OUTPUT
from benchmarks.compare.speculation_report import Variant, write
from forerun.models import default_model_path, load_tokenizer, shipped_head
from forerun.models.default_model import cache_directory

STREAMS = (1, 12)
PROMPTS = 12
MAX_TOKENS = 48
ANSWER_TIMEOUT_S = 600.0
# The head in `models` was trained on requests like the other questions (docs/training.md).
UNSEEN_EVERY = 6

# The name of a peer, and how it drafts.
DRAFTED = (
    ("forerun, both servers", "eagle3"),
    ("forerun, both servers", "ngram+eagle3"),
    ("vLLM", "eagle3"),
    # Its package for Python cannot draft with a head.
    (llama_server.PEER.name, "eagle3"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="speculation", description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--head", type=Path, default=shipped_head("eagle3", None))
    parser.add_argument("--output", type=Path, default=OUTPUT)
    args = parser.parse_args()

    cache = cache_directory() / "compare"
    models = cache / "model"
    export(models)
    head = cache / "head"
    export_head(args.head, head)
    prompts = _prompts()
    peers = dict.fromkeys(peer for peer, _ in DRAFTED)
    variants = [Variant(peer, "none") for peer in peers] + [Variant(*each) for each in DRAFTED]
    specs = {spec.name: spec for spec in (*PEERS, llama_server.PEER)}
    with ExitStack() as stack:
        running: list[tuple[Variant, PeerProcess]] = []
        for variant in variants:
            spec = specs[variant.peer]
            try:
                if spec is llama_server.PEER:
                    llama_server.prepare(cache)
                    if variant.draft != "none":
                        llama_server.convert(cache, head, models / FOLDER)
                process = start(spec, cache, models, args.threads, variant.draft, head)
            except PeerFailed as error:
                _fail(variant, error)
                continue
            stack.callback(process.close)
            running.append((variant, process))
        for round_number in range(1 + args.rounds):
            print(f"round {round_number} of {args.rounds}", file=sys.stderr, flush=True)
            asked = prompts if round_number else prompts[:2]  # the first one warms up
            for streams in STREAMS:
                for variant, process in running:
                    _ask(variant, process, asked, streams, timed=round_number > 0)
    settings = {
        "threads": args.threads,
        "rounds": args.rounds,
        "streams": STREAMS,
        "prompts": PROMPTS,
        "max_tokens": MAX_TOKENS,
    }
    write(variants, args.output, settings)
    return 0


def _prompts() -> list[list[int]]:
    """Questions of all categories, in the model's chat template, which what peers load lacks."""
    questions = [json.loads(line) for line in TEXTS.read_text(encoding="utf-8").splitlines()]
    unseen = questions[::UNSEEN_EVERY]
    tokenizer = load_tokenizer(default_model_path())
    return [
        tokenizer.encode_chat([{"role": "user", "content": question["turns"][0]}])
        for question in (unseen[i * len(unseen) // PROMPTS] for i in range(PROMPTS))
    ]


def _ask(
    variant: Variant, process: PeerProcess, prompts: list[list[int]], streams: int, *, timed: bool
) -> None:
    if variant.failed is not None:
        return
    request = {
        "case": "answer",
        "prompts": prompts,
        "streams": streams,
        "max_tokens": MAX_TOKENS,
    }
    try:
        answer = process.ask(request, ANSWER_TIMEOUT_S)
    except PeerFailed as error:
        _fail(variant, error)
        return
    if timed:
        variant.answers.setdefault(streams, []).append(answer)


def _fail(variant: Variant, error: PeerFailed) -> None:
    variant.failed = str(error)
    print(f"{variant.peer}, {variant.draft}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
