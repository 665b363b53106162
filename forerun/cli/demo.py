"""`forerun demo`: one answer, streamed with its accepted proposals coloured, then the comparison.

Owns the course of the demonstration: the prompt, the runs and the check that all of them gave the
same tokens. What is printed is in demo_report.py.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from forerun.cli.errors import CommandError
from forerun.cli.limits import check_at_least_one, check_max_tokens
from forerun.cli.local import add_local_arguments, local_options, local_servers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forerun.client import Chunk, Client, Generation, GenerationStream

DEFAULT_MAX_TOKENS = 128
DEFAULT_REPEATS = 2

# An answer that repeats much of its prompt, as editing and summing up do: what n-gram drafting is
# for. An answer that shares nothing with its prompt gains little from it.
PROMPT = """\
Repeat the following text word for word:

The lighthouse stands on a narrow rock at the edge of the bay. Every evening the keeper climbs the \
two hundred steps, lights the lamp, and writes the time and the weather in a large blue book. When \
the fog comes in, the keeper rings the bell once every minute until the fog is gone. On clear \
nights the light can be seen from the hills behind the town, more than twenty miles away."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("prompt", nargs="?", default=PROMPT, help="another prompt")
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=DEFAULT_MAX_TOKENS,
        metavar="N",
        help=f"of each run; default: {DEFAULT_MAX_TOKENS}",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=DEFAULT_REPEATS,
        metavar="N",
        help=f"measured pairs of runs; default: {DEFAULT_REPEATS}",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object alone")
    add_local_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the demonstration; 0 when every run gave the same tokens."""
    check_at_least_one(args, "repeats")
    check_max_tokens(args.max_tokens)
    options = local_options(args)
    if options.draft == "none":
        raise CommandError("the demo compares drafting with none; take --draft ngram or standalone")

    from forerun.cli import demo_report
    from forerun.client import Client
    from forerun.models import default_model_path

    model = options.model or default_model_path()
    with (
        local_servers(replace(options, model=model)) as address,
        Client(address, timeout=None) as client,
    ):
        info = client.model_info()
        ask = _asker(client, args, chat=info.has_chat_template)
        if args.json:
            answer = ask().result()
        else:
            demo_report.print_heading(info, args.prompt)
            answer = _stream(ask, demo_report.AnswerPrinter(_token_texts(model)).print)
        plain, drafted = _measure(ask, args.repeats)
    _require_identical(answer, [*plain, *drafted])
    comparison = demo_report.Comparison.of(plain, drafted)
    if args.json:
        print(json.dumps(comparison.to_json(info, args.prompt), ensure_ascii=False))
    else:
        demo_report.print_comparison(comparison)
    return 0


def _asker(
    client: Client, args: argparse.Namespace, *, chat: bool
) -> Callable[..., GenerationStream]:
    """Starts a run of the prompt; takes further arguments of `Client.generate`."""
    if chat:
        messages = [{"role": "user", "content": args.prompt}]
        return partial(client.generate, messages=messages, max_tokens=args.max_tokens)
    return partial(client.generate, args.prompt, max_tokens=args.max_tokens)


def _stream(ask: Callable[..., GenerationStream], show: Callable[[Chunk], None]) -> Generation:
    stream = ask()
    for chunk in stream:
        show(chunk)
    return stream.result()


def _measure(
    ask: Callable[..., GenerationStream], repeats: int
) -> tuple[list[Generation], list[Generation]]:
    """Runs without and with drafts. They take turns, since a machine's speed drifts."""
    plain: list[Generation] = []
    drafted: list[Generation] = []
    for _ in range(repeats):
        plain.append(ask(plain=True).result())
        drafted.append(ask().result())
    return plain, drafted


def _require_identical(answer: Generation, others: list[Generation]) -> None:
    for other in others:
        if other.token_ids != answer.token_ids:
            raise CommandError(
                f"two runs of one prompt differ: {list(answer.token_ids)} and "
                f"{list(other.token_ids)}; this is a defect, please report it"
            )


def _token_texts(model: Path) -> Callable[[int], str]:
    """Gives the text that each token completes, in order; it never splits a character."""
    from forerun.models import TextStream, load_tokenizer

    stream = TextStream(load_tokenizer(model))
    return lambda token_id: stream.push([token_id])
