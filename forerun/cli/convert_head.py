"""`forerun convert-head`: makes a head that was published as pytorch_model.bin loadable."""

from __future__ import annotations

import argparse
from pathlib import Path

from forerun.cli.torch_extra import require_torch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("head", type=Path, metavar="DIR", help="folder with pytorch_model.bin")


def run(args: argparse.Namespace) -> None:
    """Writes model.safetensors beside it."""
    require_torch("converting")

    from forerun.training.convert import convert

    print(f"wrote {convert(args.head)}")
