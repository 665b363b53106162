"""Runs a draft server: `python -m draft_server` or `forerun serve-draft`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from draft_server.config import DraftConfig
from forerun.errors import ForerunError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    DraftConfig.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serves until a signal. Raises ValueError and its kin for settings that cannot work."""
    from draft_server.app import run as run_server
    from forerun.obs.logs import configure_logging

    if not logging.getLogger().handlers:
        configure_logging()
    run_server(DraftConfig.from_args(args))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="draft_server", description=__doc__)
    add_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except (ForerunError, MemoryError, OSError, RuntimeError, ValueError) as error:
        print(f"draft_server: error: {str(error) or type(error).__name__}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
