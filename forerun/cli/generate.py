"""`forerun generate`: from a prompt on the command line or standard input, or from a file of them.

Owns where prompts come from and where answers go. Answers are streamed as text; a file of prompts
gives one JSON object a line, in the order of the prompts. A prompt that is plain text goes through
the chat template where the model has one, unless --raw is given.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from typing import TYPE_CHECKING, TextIO

from forerun.cli.answers import Answers, open_answers
from forerun.cli.connection import add_connection_arguments, connection_options
from forerun.cli.errors import CommandError
from forerun.cli.limits import check_at_least_one, check_max_tokens, check_timeout
from forerun.cli.local import (
    add_local_arguments,
    given_local_flags,
    local_options,
    local_servers,
)
from forerun.cli.prompts import Prompt, is_text, read_prompts

if TYPE_CHECKING:
    from forerun.cli.batch import Settings
    from forerun.client import AsyncClient, GenerationStats, ModelInfo
    from forerun.client.connection import ConnectionOptions
    from forerun.obs.progress import Report

DEFAULT_CONCURRENCY = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("prompt", nargs="?", help="text; read from standard input if not given")
    parser.add_argument(
        "--input",
        metavar="PATH",
        help="file of prompts, one JSON object a line with prompt, messages or prompt_token_ids; "
        "its other keys are carried through; - for standard input",
    )
    parser.add_argument(
        "--output", metavar="PATH", help="file for the answers to --input; default: standard output"
    )
    parser.add_argument(
        "--concurrency",
        type=int,
        default=DEFAULT_CONCURRENCY,
        metavar="N",
        help=f"prompts of --input in flight at once; default: {DEFAULT_CONCURRENCY}",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--address", help="host:port or unix:/path of a draft server; default: FORERUN_ADDRESS"
    )
    where.add_argument(
        "--local", action="store_true", help="start both servers for this command alone"
    )
    parser.add_argument("--max-tokens", type=int, metavar="N", help="default: the context limit")
    parser.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be repeated"
    )
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="of one generation; default: no limit"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--chat",
        action="store_true",
        default=None,
        help="send text through the chat template; default where the model has one",
    )
    form.add_argument(
        "--raw", dest="chat", action="store_false", default=None, help="send text as it is"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, not the text")
    add_local_arguments(parser)
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Generates; 0 when every prompt has its answer."""
    _check_limits(args)
    if not args.local and (flags := given_local_flags(args)):
        raise CommandError(f"{flags[0]} sets up a server of this command's own; add --local")
    if args.output and not args.input:
        raise CommandError("--output goes with --input; redirect standard output instead")
    prompts = _prompts(args)
    options = connection_options(args)
    lines = args.input or args.json  # one prompt is streamed as text otherwise
    with (
        open_answers(args.output, args.input) if lines else nullcontext() as answers,
        _address(args) as address,
    ):
        asyncio.run(_generate(args, address, options, prompts, answers))
    return 0


def _check_limits(args: argparse.Namespace) -> None:
    """What would be refused anyway, before servers start for it."""
    from forerun.client.request import generate_request

    check_at_least_one(args, "concurrency")
    check_max_tokens(args.max_tokens)
    check_timeout(args.timeout)
    if "" in (args.stop or ()):
        raise CommandError("--stop is empty; give at least one character")
    generate_request("any", stop=args.stop)


def _prompts(args: argparse.Namespace) -> list[Prompt]:
    if args.input:
        if args.prompt is not None:
            raise CommandError("a prompt and --input exclude each other; give one")
        if args.input == "-":
            return read_prompts(_standard_input(), "standard input")
        try:
            with open(args.input, encoding="utf-8-sig") as file:
                return read_prompts(file, args.input)
        except UnicodeDecodeError as error:
            raise CommandError(f"{args.input} is not UTF-8: {error.reason}") from error
    if args.prompt is None and _standard_input().isatty():
        raise CommandError("no prompt; give one as an argument, on standard input or by --input")
    text = sys.stdin.read() if args.prompt is None else args.prompt
    if not text:
        raise CommandError("the prompt is empty; give at least one character")
    if not is_text(text):
        raise CommandError("the prompt is not UTF-8; convert it first")
    return [Prompt("the prompt", text=text)]


def _standard_input() -> TextIO:
    if sys.stdin is None:
        raise CommandError("standard input is closed; give a prompt as an argument or by --input")
    return sys.stdin


@contextmanager
def _address(args: argparse.Namespace) -> Iterator[str | None]:
    if args.local:
        with local_servers(local_options(args)) as address:
            yield address
    else:
        yield args.address


async def _generate(
    args: argparse.Namespace,
    address: str | None,
    options: ConnectionOptions,
    prompts: Sequence[Prompt],
    answers: Answers | None,
) -> None:
    """Streams the one prompt where there are no `answers` to write lines to."""
    from forerun.cli.batch import Settings, generate_all
    from forerun.cli.results import output_line
    from forerun.client import AsyncClient

    async with AsyncClient(address, timeout=args.timeout, **options) as client:
        info = await _model_info(client, address)
        chat = info.has_chat_template if args.chat is None else args.chat
        settings = Settings(args.max_tokens, tuple(args.stop or ()), chat)
        if answers is not None:
            with _progress(len(prompts), answers.file) as report:
                generations = generate_all(
                    client, prompts, settings, concurrency=args.concurrency, report=report
                )
                async with aclosing(generations):
                    async for prompt, generation in generations:
                        answers.print(output_line(prompt.carried, generation, info.eos_token_ids))
        else:
            await _stream(client, prompts[0], settings)


async def _model_info(client: AsyncClient, address: str | None) -> ModelInfo:
    from forerun.errors import Unavailable

    try:
        return await client.model_info()
    except Unavailable as error:
        if error.reason != "UNREACHABLE":  # it answers, and says what it lacks itself
            raise
        raise CommandError(
            f"no draft server answers at {address or 'FORERUN_ADDRESS'} ({error}); start one with "
            "forerun serve-draft, or give --local"
        ) from error


async def _stream(client: AsyncClient, prompt: Prompt, settings: Settings) -> None:
    from forerun.cli.batch import start

    async with start(client, prompt, settings) as stream:
        async for chunk in stream:
            print(chunk.text, end="", flush=True)
    print()
    if sys.stderr.isatty() and stream.stats is not None:
        print(_summary(stream.stats), file=sys.stderr)


def _summary(stats: GenerationStats) -> str:
    parts = [f"{stats.emitted} tokens", f"first after {stats.ttft_s:.3f} s"]
    if stats.tokens_per_second is not None:
        parts.append(f"then {stats.tokens_per_second:.1f} tokens/s")
    if stats.mean_accepted_length is not None:
        parts.append(f"{stats.mean_accepted_length:.2f} proposed tokens accepted a round")
    return ", ".join(parts)


def _progress(prompts: int, output: TextIO) -> AbstractContextManager[Report]:
    """Nothing for one prompt, nor where the answers themselves scroll by."""
    from forerun.obs.logs import configure_logging
    from forerun.obs.progress import progress

    if prompts == 1 or output.isatty():
        return nullcontext(lambda done, total: None)
    configure_logging("info")
    return progress("generating", unit="items")
