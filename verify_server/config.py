"""All settings of a verify server, in one frozen object made once from flags and environment.

A flag wins over its environment variable (--max-nodes: FORERUN_VERIFY_MAX_NODES), which wins over
the default. Unknown variables with that prefix are errors, since a misspelt setting that is
ignored is worse than none.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from typing import Any, Literal

from forerun.tree import Budget

ENVIRONMENT_PREFIX = "FORERUN_VERIFY_"
MIB = 1 << 20


def _setting(
    default: Any,
    help: str,
    parse: Callable[[str], Any] = str,
    *,
    metavar: str | None = None,
    choices: tuple[str, ...] | None = None,
    minimum: int | None = None,
) -> Any:
    metadata = {
        "help": help,
        "parse": parse,
        "metavar": metavar,
        "choices": choices,
        "minimum": minimum,
    }
    return field(default=default, metadata=metadata)


def _parse_bool(text: str) -> bool:
    if text.lower() in ("1", "true", "yes"):
        return True
    if text.lower() in ("0", "false", "no"):
        return False
    raise ValueError(f"{text!r} is neither true nor false")


@dataclass(frozen=True, slots=True)
class VerifyConfig:
    """Settings of a verify server; each field's help says what it means, and its unit.

    Raises ValueError, naming the setting, the value and what is allowed.
    """

    listen: str = _setting(
        "127.0.0.1:50052", "where to listen: host:port or unix:/path", metavar="ADDRESS"
    )
    model: str | None = _setting(
        None,
        "folder of a checkpoint, or a .gguf file; the default model if not given",
        metavar="PATH",
    )
    dtype: Literal["bfloat16", "float32"] = _setting(
        "bfloat16", "precision of activations and KV", choices=("bfloat16", "float32")
    )
    threads: int = _setting(0, "threads of the engine; 0: one a physical core", int, minimum=0)
    page_size: int = _setting(32, "tokens in a page of the KV cache", int, minimum=1)
    kv_tokens: int = _setting(32768, "tokens that the KV cache holds", int, minimum=1)
    max_context: int = _setting(
        8192, "prompt and output tokens of a session at most", int, minimum=2
    )
    prefill_chunk: int = _setting(256, "prompt rows in one step at most", int, minimum=1)
    max_nodes: int = _setting(64, "proposed nodes in a tree at most", int, minimum=1)
    max_depth: int = _setting(64, "depth of a tree at most", int, minimum=1)
    draft_nodes: int = _setting(8, "nodes that a round is granted at most", int, minimum=0)
    draft_depth: int = _setting(8, "depth that a round is granted at most", int, minimum=0)
    row_budget: int = _setting(
        32, "rows that the trees of one step should have together", int, minimum=1
    )
    patience_ms: float = _setting(
        20.0, "wait for a tree before a plain step, in milliseconds", float, minimum=0
    )
    max_sessions: int = _setting(256, "open sessions on one stream at most", int, minimum=1)
    max_waiting: int = _setting(
        256, "sessions of all streams that may wait for pages at most", int, minimum=0
    )
    max_taps: int = _setting(4, "hidden taps of one session at most", int, minimum=0)
    max_message_bytes: int = _setting(
        64 * MIB, "bytes in one message at most", int, minimum=64 << 10
    )
    outbox_bytes: int = _setting(
        16 * MIB, "bytes that may wait for a slow reader before its stream is ended", int, minimum=1
    )
    grace_s: float = _setting(
        30.0, "seconds that open sessions get to finish on shutdown", float, minimum=0
    )
    metrics_port: int | None = _setting(
        None, "port of the Prometheus metrics over HTTP; off if not given", int, minimum=0
    )
    reflection: bool = _setting(True, "whether to serve gRPC reflection", _parse_bool)
    tls_cert: str | None = _setting(None, "PEM file: the certificate chain", metavar="PATH")
    tls_key: str | None = _setting(None, "PEM file: the private key", metavar="PATH")
    tls_ca: str | None = _setting(
        None, "PEM file: who signs the certificates that clients must show", metavar="PATH"
    )
    token_file: str | None = _setting(
        None, "file with the token that callers must send", metavar="PATH"
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            value, minimum = getattr(self, item.name), item.metadata["minimum"]
            choices = item.metadata["choices"]
            if minimum is not None and value is not None and value < minimum:
                raise ValueError(f"{_flag(item)} is {value}; it must be at least {minimum}")
            if choices and value not in choices:
                raise ValueError(f"{_flag(item)} is {value!r}; it must be one of {choices}")
        if self.draft_nodes > self.max_nodes:
            raise ValueError(
                f"--draft-nodes is {self.draft_nodes}; it must not exceed --max-nodes"
                f" {self.max_nodes}"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key belong together; give both or neither")
        if self.tls_ca and not self.tls_cert:
            raise ValueError("--tls-ca needs --tls-cert and --tls-key")

    @property
    def max_rows(self) -> int:
        """Rows that the engine must take in one step."""
        return self.prefill_chunk + max(self.row_budget, self.max_nodes + 1)

    @property
    def draft_limit(self) -> Budget:
        """The most that a round is granted."""
        return Budget(self.draft_nodes, min(self.draft_depth, self.max_depth))

    def describe(self) -> str:
        """All settings on one line, for the log."""
        return " ".join(f"{name}={value}" for name, value in asdict(self).items())

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Adds a flag for each setting; a flag that is not given leaves None."""
        for item in fields(VerifyConfig):
            help = item.metadata["help"].replace("%", "%%")
            if item.type == "bool":
                parser.add_argument(
                    f"--no-{item.name}",
                    dest=item.name,
                    action="store_const",
                    const=False,
                    help=f"do not: {help.removeprefix('whether to ')}",
                )
                continue
            default = "" if item.default is None else f" (default: {item.default})"
            parser.add_argument(
                _flag(item),
                dest=item.name,
                type=item.metadata["parse"],
                choices=item.metadata["choices"],
                metavar=item.metadata["metavar"] or (None if item.metadata["choices"] else "N"),
                help=help + default,
            )

    @staticmethod
    def from_args(
        arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ
    ) -> VerifyConfig:
        """The settings of parsed flags, then of `environment`, then the defaults."""
        items = {item.name: item for item in fields(VerifyConfig)}
        values: dict[str, Any] = {}
        for variable, text in environment.items():
            if not variable.startswith(ENVIRONMENT_PREFIX):
                continue
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            if name not in items:
                raise ValueError(f"{variable} is not a setting; one of {', '.join(sorted(items))}")
            try:
                values[name] = items[name].metadata["parse"](text)
            except ValueError as error:
                raise ValueError(f"{variable} is {text!r}: {error}") from None
        given = {name: getattr(arguments, name, None) for name in items}
        values.update({name: value for name, value in given.items() if value is not None})
        return VerifyConfig(**values)


def _flag(item: Field[Any]) -> str:
    return "--" + item.name.replace("_", "-")
