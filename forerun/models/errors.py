"""The one error of this package."""

from __future__ import annotations


class ModelError(ValueError):
    """A checkpoint, tokenizer or chat template that forerun cannot serve exactly.

    The message names the thing, the value found and the remedy, and is meant for the person who
    chose the model.
    """
