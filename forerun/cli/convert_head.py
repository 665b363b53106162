"""`forerun convert-head`: makes a head that was published as pytorch_model.bin loadable."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from forerun.cli.errors import CommandError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("head", type=Path, metavar="DIR", help="folder with pytorch_model.bin")


def run(args: argparse.Namespace) -> None:
    """Writes model.safetensors beside it."""
    if importlib.util.find_spec("torch") is None:
        raise CommandError("converting needs PyTorch, of forerun's extra torch: pip install torch")

    from forerun.training.convert import convert

    print(f"wrote {convert(args.head)}")
