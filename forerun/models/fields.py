"""Typed access to a table of untrusted settings (config.json, GGUF metadata).

Refuses a value of the wrong type or range by the name of its key, so that a broken file is an
error at load and never a wrong number in the forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from forerun.models.errors import ModelError


class Fields:
    """Reads settings by name from `table`, which came from `source` (named in errors).

    A key that is absent or null takes its default; without a default it is an error.
    """

    def __init__(self, table: Mapping[str, Any], source: str) -> None:
        self.table = table
        self.source = source

    def has(self, key: str) -> bool:
        """Whether `key` is present and not null."""
        return self.table.get(key) is not None

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        """Return an integer of at least `minimum` and less than 2**31."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value < 2**31:
            raise self.error(key, value, f"an integer from {minimum} to 2147483647")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number above zero."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(key, value, "a number")
        if not (math.isfinite(value) and value > 0):
            raise self.error(key, value, "a finite number above 0")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return a boolean."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.error(key, value, "a string")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """Return token ids given as one integer, a list of integers, or nothing."""
        value = self.table.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        for token_id in ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
                raise self.error(key, value, "a token id or a list of token ids")
        return tuple(ids)

    def nested(self, key: str) -> Fields:
        """Return the settings inside an object."""
        value = self._value(key, None)
        if not isinstance(value, dict):
            raise self.error(key, value, "an object")
        return Fields(value, f"{self.source}: {key}")

    def error(self, key: str, value: object, expected: str) -> ModelError:
        """Build the error for a value that is not what was expected."""
        return ModelError(f"{self.source}: {key} is {value!r:.200}; expected {expected}")

    def _value(self, key: str, default: object) -> Any:
        value = self.table.get(key)
        if value is not None:
            return value
        if default is None:
            raise ModelError(f"{self.source}: {key} is missing; the checkpoint is incomplete")
        return default
