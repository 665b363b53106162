"""The `forerun` command."""

from forerun.cli.parser import main

__all__ = ["main"]
