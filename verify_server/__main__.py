"""Runs a verify server: `python -m verify_server` or `forerun serve-verify`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from verify_server.config import VerifyConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    VerifyConfig.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serves until a signal. Raises ValueError and its kin for settings that cannot work."""
    from forerun.obs.logs import configure_logging
    from verify_server.app import run as run_server

    if not logging.getLogger().handlers:
        configure_logging()
    run_server(VerifyConfig.from_args(args))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="verify_server", description=__doc__)
    add_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except (MemoryError, OSError, RuntimeError, ValueError) as error:
        print(f"verify_server: error: {str(error) or type(error).__name__}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
