"""How a server's settings come together: one frozen dataclass, from flags and the environment.

A flag wins over its environment variable (--max-nodes: FORERUN_VERIFY_MAX_NODES), which wins over
the default. Unknown variables with a server's prefix are errors, since a misspelt setting that is
ignored is worse than none. Knows no setting.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import Field, field, fields
from typing import Any, ClassVar

from typing_extensions import Self

# What every counter of the native module, of gRPC and of the messages can hold.
MAX_INT32 = 2**31 - 1


def setting(
    default: Any,
    help: str,
    parse: Callable[[str], Any] = str,
    *,
    minimum: float | None = None,
    maximum: float = MAX_INT32,
    choices: tuple[str, ...] | None = None,
    metavar: str | None = None,
) -> Any:
    """A field of Settings: `parse` reads it from text and raises ValueError for what it cannot.
    minimum and maximum: of numbers."""
    metavar = metavar or (None if choices else "N")
    metadata = {"help": help, "parse": parse, "minimum": minimum, "maximum": maximum}
    return field(default=default, metadata=metadata | {"choices": choices, "metavar": metavar})


def parse_bool(text: str) -> bool:
    if text.lower() in ("1", "true", "yes"):
        return True
    if text.lower() in ("0", "false", "no"):
        return False
    raise ValueError("it is neither true nor false")


class Settings:
    """Base of a frozen dataclass whose fields are made by `setting`.

    environment_prefix: of the variables that are its settings.
    """

    __slots__ = ()
    environment_prefix: ClassVar[str]

    def check_ranges(self) -> None:
        """Raises ValueError, naming the flag, the value and what is allowed."""
        for item in _fields(type(self)):
            value = getattr(self, item.name)
            minimum, maximum = item.metadata["minimum"], item.metadata["maximum"]
            choices = item.metadata["choices"]
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{_flag(item)} is {value}; it must be a finite number")
            if minimum is not None and value is not None and value < minimum:
                raise ValueError(f"{_flag(item)} is {value}; it must be at least {minimum}")
            if isinstance(value, (int, float)) and value > maximum:
                raise ValueError(f"{_flag(item)} is {value}; it must be at most {maximum}")
            if choices and value not in choices:
                raise ValueError(f"{_flag(item)} is {value!r}; it must be one of {choices}")

    def describe(self) -> str:
        """All settings on one line, for the log."""
        return " ".join(f"{item.name}={getattr(self, item.name)}" for item in _fields(type(self)))

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Adds a flag for each setting; a flag that is not given leaves None."""
        for item in _fields(cls):
            help = item.metadata["help"].replace("%", "%%")
            if item.type == "bool":
                act = help.removeprefix("whether to ")
                parser.add_argument(
                    f"--no-{item.name}" if item.default else _flag(item),
                    dest=item.name,
                    action="store_const",
                    const=not item.default,
                    help=f"do not {act}" if item.default else act,
                )
                continue
            default = "" if item.default is None else f" (default: {item.default})"
            parser.add_argument(
                _flag(item),
                dest=item.name,
                type=item.metadata["parse"],
                choices=item.metadata["choices"],
                metavar=item.metadata["metavar"],
                help=help + default,
            )

    @classmethod
    def from_args(
        cls, arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ
    ) -> Self:
        """The settings of parsed flags, then of `environment`, then the defaults."""
        items = {item.name: item for item in _fields(cls)}
        values: dict[str, Any] = {}
        for variable, text in environment.items():
            if not variable.startswith(cls.environment_prefix):
                continue
            name = variable.removeprefix(cls.environment_prefix).lower()
            if name not in items:
                raise ValueError(f"{variable} is not a setting; one of {', '.join(sorted(items))}")
            try:
                values[name] = items[name].metadata["parse"](text)
            except ValueError as error:
                raise ValueError(f"{variable} is {text!r}: {error}") from None
        given = {name: getattr(arguments, name, None) for name in items}
        values.update({name: value for name, value in given.items() if value is not None})
        return cls(**values)


def _fields(settings: Any) -> tuple[Field[Any], ...]:
    return fields(settings)


def _flag(item: Field[Any]) -> str:
    return "--" + item.name.replace("_", "-")
