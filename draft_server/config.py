"""All settings of a draft server, in one frozen object made once from flags and environment.

A flag wins over its environment variable (--draft: FORERUN_DRAFT_DRAFT), which wins over the
default. Unknown variables with that prefix are errors, since a misspelt setting that is ignored is
worse than none.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from draft_server.drafters.registry import METHODS, DraftSettings, check_method

ENVIRONMENT_PREFIX = "FORERUN_DRAFT_"
MIB = 1 << 20


def _parse_bool(text: str) -> bool:
    if text.lower() in ("1", "true", "yes"):
        return True
    if text.lower() in ("0", "false", "no"):
        return False
    raise ValueError("it is neither true nor false")


def _setting(
    default: Any,
    help: str,
    parse: Callable[[str], Any] = str,
    *,
    minimum: float | None = None,
    choices: tuple[str, ...] | None = None,
    metavar: str | None = None,
) -> Any:
    metavar = metavar or (None if choices else "N")
    metadata = {"help": help, "parse": parse, "minimum": minimum}
    return field(default=default, metadata=metadata | {"choices": choices, "metavar": metavar})


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """Settings of a draft server; each field's help says what it means, and its unit.

    Raises ValueError, naming the setting, the value and what is allowed.
    """

    listen: str = _setting(
        "127.0.0.1:50051", "where to listen: host:port or unix:/path", metavar="ADDRESS"
    )
    verifier: str = _setting(
        "127.0.0.1:50052", "the verify server: host:port or unix:/path", metavar="ADDRESS"
    )
    model: str | None = _setting(
        None,
        "checkpoint of the target, for its tokenizer; the default model if not given",
        metavar="PATH",
    )
    draft: str = _setting("ngram", "drafting method", choices=tuple(METHODS))
    draft_model: str | None = _setting(
        None, "checkpoint of the draft model, for --draft standalone", metavar="PATH"
    )
    dtype: Literal["bfloat16", "float32"] = _setting(
        "bfloat16", "precision of the draft model", choices=("bfloat16", "float32")
    )
    threads: int = _setting(
        0, "threads of the draft model's engine; 0: one a physical core", int, minimum=0
    )
    kv_tokens: int = _setting(32768, "tokens that the draft model's KV cache holds", int, minimum=1)
    max_context: int = _setting(
        0, "tokens of one session in the draft model; 0: as many as it can", int, minimum=0
    )
    prefill_chunk: int = _setting(
        256, "rows in one forward of the draft model at most", int, minimum=1
    )
    min_match: int = _setting(2, "tokens that --draft ngram must match at least", int, minimum=1)
    min_probability: float = _setting(
        0.1, "least path probability of a node of --draft ngram", float, minimum=0
    )
    draft_timeout_ms: float = _setting(
        100.0, "a round that is not drafted by then is decoded plainly", float, minimum=0
    )
    reopen_timeout_s: float = _setting(
        30.0, "seconds that a session waits for the verify server to come back", float, minimum=0
    )
    max_message_bytes: int = _setting(
        64 * MIB, "bytes in one message at most", int, minimum=64 << 10
    )
    grace_s: float = _setting(
        30.0, "seconds that open generations get to finish on shutdown", float, minimum=0
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
    verifier_tls_ca: str | None = _setting(
        None, "PEM file: who signs the verify server's certificate; turns TLS on", metavar="PATH"
    )
    verifier_tls_cert: str | None = _setting(
        None, "PEM file: the certificate to show to the verify server", metavar="PATH"
    )
    verifier_tls_key: str | None = _setting(
        None, "PEM file: the private key of that certificate", metavar="PATH"
    )
    verifier_token_file: str | None = _setting(
        None, "file with the token to send to the verify server", metavar="PATH"
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            value, minimum = getattr(self, item.name), item.metadata["minimum"]
            choices = item.metadata["choices"]
            if minimum is not None and value is not None and value < minimum:
                raise ValueError(f"{_flag(item)} is {value}; it must be at least {minimum}")
            if choices and value not in choices and item.name != "draft":
                raise ValueError(f"{_flag(item)} is {value!r}; it must be one of {choices}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key belong together; give both or neither")
        if self.tls_ca and not self.tls_cert:
            raise ValueError("--tls-ca needs --tls-cert and --tls-key")
        if (self.verifier_tls_cert is None) != (self.verifier_tls_key is None):
            raise ValueError("--verifier-tls-cert and --verifier-tls-key belong together")
        if self.verifier_tls_cert and not self.verifier_tls_ca:
            raise ValueError("--verifier-tls-cert needs --verifier-tls-ca, which turns TLS on")
        check_method(self.draft, self.draft_settings)

    @property
    def draft_settings(self) -> DraftSettings:
        return DraftSettings(
            min_match=self.min_match,
            min_probability=self.min_probability,
            model=Path(self.draft_model) if self.draft_model else None,
            dtype=self.dtype,
            threads=self.threads or None,
            kv_tokens=self.kv_tokens,
            max_context=self.max_context or None,
            prefill_chunk=self.prefill_chunk,
        )

    def describe(self) -> str:
        """All settings on one line, for the log."""
        return " ".join(f"{name}={value}" for name, value in asdict(self).items())

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Adds a flag for each setting; a flag that is not given leaves None."""
        for item in fields(DraftConfig):
            help = item.metadata["help"]
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
                metavar=item.metadata["metavar"],
                help=help + default,
            )

    @staticmethod
    def from_args(
        arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ
    ) -> DraftConfig:
        """The settings of parsed flags, then of `environment`, then the defaults."""
        items = {item.name: item for item in fields(DraftConfig)}
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
        return DraftConfig(**values)


def _flag(item: Field[Any]) -> str:
    return "--" + item.name.replace("_", "-")
