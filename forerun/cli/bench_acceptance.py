"""`forerun bench acceptance`: how many drafted tokens the target accepts, by category and depth.

Owns the flags, and which questions are asked.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.cli.errors import CommandError
from forerun.cli.limits import check_at_least_one
from forerun.cli.local import add_local_arguments, local_group, local_options

if TYPE_CHECKING:
    from forerun.bench.acceptance import Question
    from forerun.models import Tokenizer

DEFAULT_INPUT = Path(__file__).parents[2] / "tests" / "data" / "specbench_dev.jsonl"
DEFAULT_QUESTIONS = 40

# Spec-Bench takes these from MT-bench, five of each, and everything else forty at a time.
MT_BENCH = frozenset(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
)

# Drafts are judged by what they say, not by how fast this machine says it.
DRAFT_TIMEOUT_MS = 20_000.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument(
        "--input",
        type=Path,
        metavar="PATH",
        help="file of questions, one JSON object a line with turns, prompt, messages or "
        "prompt_token_ids, and perhaps category; default: Spec-Bench, from a source tree",
    )
    parser.add_argument(
        "--questions",
        type=int,
        default=DEFAULT_QUESTIONS,
        metavar="N",
        help=f"spread evenly over the file; default: {DEFAULT_QUESTIONS}",
    )
    parser.add_argument(
        "--max-tokens", type=int, default=96, metavar="N", help="of an answer; default: 96"
    )
    parser.add_argument(
        "--concurrency", type=int, default=1, metavar="N", help="questions in flight; default: 1"
    )
    parser.add_argument("--nodes", type=int, metavar="N", help="of a tree at most; default: 8")
    parser.add_argument("--depth", type=int, metavar="N", help="of a tree at most; default: 8")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_local_arguments(parser)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the servers and asks them."""
    check_at_least_one(args, "questions", "max_tokens", "concurrency")
    options = local_options(args)
    if options.draft == "none":
        raise CommandError("drafts are compared with none; give another --draft")

    from forerun.bench.acceptance import ask, report
    from forerun.models import default_model_path, load_tokenizer
    from forerun.obs.progress import progress

    options = replace(
        options,
        model=options.model or default_model_path(),
        draft_nodes=args.nodes,
        draft_depth=args.depth,
        adaptive=False,  # trees as large as they were asked for, whatever they cost here
        draft_timeout_ms=DRAFT_TIMEOUT_MS,
    )
    assert options.model is not None
    questions = read_questions(args.input, args.questions, load_tokenizer(options.model))
    with local_group(options, (options.draft, "none")) as group:
        with progress("asking", "items") as advance:
            answers = ask(
                group.drafts[options.draft],
                group.drafts["none"],
                questions,
                args.max_tokens,
                args.concurrency,
                advance,
            )
    return {
        "model": options.model.name,
        "draft": options.draft,
        "draft_model": str(options.draft_model) if options.draft_model else None,
        "max_tokens": args.max_tokens,
        "concurrency": args.concurrency,
        **report(answers),
    }


def read_questions(file: Path | None, count: int, tokenizer: Tokenizer) -> list[Question]:
    """`count` questions of a file, evenly spread over it; all of them where it has no more.

    Raises CommandError for a file that is not there, or a line that is none.
    """
    from forerun.bench.acceptance import Question
    from forerun.cli.prompts import encode_prompt, read_prompts

    path = file or DEFAULT_INPUT
    if not path.is_file():
        raise CommandError(f"{path} does not exist; name a file of questions with --input")
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    prompts = read_prompts(_first_turns(lines), str(path))
    count = min(count, len(prompts))
    chosen = [prompts[i * len(prompts) // count] for i in range(count)]
    return [
        Question(
            _category(str(prompt.carried.get("category", "all"))),
            encode_prompt(prompt, tokenizer),
        )
        for prompt in chosen
    ]


def _first_turns(lines: Sequence[str]) -> list[str]:
    """The lines, with the `turns` of Spec-Bench as a prompt: the first turn."""
    first: list[str] = []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            first.append(line)  # the reader names what is wrong with it
            continue
        if isinstance(entry, dict) and isinstance(turns := entry.get("turns"), list) and turns:
            line = json.dumps({"prompt": turns[0], "category": entry.get("category", "all")})
        first.append(line)
    return first


def _category(name: str) -> str:
    return "mt_bench" if name in MT_BENCH else name
