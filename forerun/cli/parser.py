"""Owns the table of subcommands, and how a command ends: its exit code and its one line of error.

Knows nothing of what a command does. A command's module is imported only once its name was typed,
so `forerun --help` needs neither gRPC nor numpy. Such a module has two functions:
`add_arguments(parser)` and `run(args) -> int | None`, None meaning 0.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from forerun import __version__

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("forerun.cli.demo", "generate with and without speculation here, and compare"),
    "serve-verify": ("verify_server.__main__", "serve the target model to draft servers"),
    "serve-draft": ("draft_server.__main__", "serve text generation to clients"),
    "generate": ("forerun.cli.generate", "generate from a prompt, or from a file of prompts"),
    "health": ("forerun.cli.health", "ask a server whether it is ready"),
    "top": ("forerun.cli.top", "show what servers do at this moment"),
    "bench": ("forerun.cli.bench", "measure forerun on this machine"),
    "train-draft": ("forerun.cli.train_draft", "train a drafting head for a target model"),
    "convert-head": ("forerun.cli.convert_head", "make a head's pytorch_model.bin loadable"),
    "doctor": ("forerun.cli.doctor", "tell what this machine offers, and what is chosen"),
}

# These need the engine, which refuses a processor on which NumPy, imported by others before it,
# would crash.
NEED_ENGINE = {"demo", "serve-verify", "serve-draft", "bench"}

INTERRUPTED = 130  # 128 + SIGINT, as shells report it
BROKEN_PIPE = 141  # 128 + SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code: 0, 1 after one line of error, 2 for a wrong
    command line, 130 after Ctrl-C, 141 when the reader of standard output went away.

    With FORERUN_DEBUG set, an error keeps its traceback.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        args = build_parser(arguments).parse_args(arguments)
        code = importlib.import_module(COMMANDS[args.command][0]).run(args)
        return int(code or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes standard output once more as it exits; that must not fail as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except SystemExit as ending:
        if isinstance(ending.__context__, BrokenPipeError):  # which rich has dealt with, as above
            return BROKEN_PIPE
        raise
    except Exception as error:
        if os.environ.get("FORERUN_DEBUG") or not _is_for_people(error):
            raise
        told = f"{error}; {_remedy(error)}" if isinstance(error, ImportError) else str(error)
        print(f"forerun: error: {told or type(error).__name__}", file=sys.stderr)
        return 1


def build_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser for these arguments: every command is listed, the one that is named is filled."""
    parser = argparse.ArgumentParser(
        prog="forerun",
        description="Exact greedy LLM serving on CPUs by speculative decoding.",
    )
    parser.add_argument("--version", action="version", version=f"forerun {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=_sentence(summary))
        if name in arguments[:1]:
            if name in NEED_ENGINE:
                importlib.import_module("forerun.engine")
            importlib.import_module(module).add_arguments(command)
    return parser


def _remedy(missing: ImportError) -> str:
    """What a client's own installation lacks: the extras are all that forerun does not bring."""
    extra = "torch" if missing.name == "torch" else "serve"
    return f"the extra brings it: pip install '.[{extra}]' where forerun's sources are"


def _is_for_people(error: Exception) -> bool:
    """Whether str(error) is a message to a person, and not a defect of this program."""
    from forerun.cli.errors import CommandError
    from forerun.errors import ForerunError

    if isinstance(error, ImportError):
        # Of what others wrote; that a module of this project lacks something is a defect.
        return (error.name or "").split(".")[0] not in {"forerun", "draft_server", "verify_server"}
    # gRPC tells of an address that is taken by a RuntimeError; its subclasses tell of defects.
    return type(error) is RuntimeError or isinstance(
        error, (CommandError, ForerunError, MemoryError, OSError, ValueError)
    )


def _sentence(summary: str) -> str:
    return summary[0].upper() + summary[1:] + "."
