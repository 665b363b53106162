"""The error that a command ends with: one line for the person who typed it."""

from __future__ import annotations


class CommandError(Exception):
    """What was wrong, with which value, and what to do about it, in one line."""
