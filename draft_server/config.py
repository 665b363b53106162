"""All settings of a draft server, in one frozen object (see forerun.settings)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from draft_server.drafters.registry import METHODS, DraftSettings, check_method
from forerun.address import MAX_PORT, check_listen_address, check_port
from forerun.settings import Settings, parse_bool, setting

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class DraftConfig(Settings):
    """Settings of a draft server; each field's help says what it means, and its unit.

    Raises ValueError, naming the setting, the value and what is allowed.
    """

    environment_prefix: ClassVar[str] = "FORERUN_DRAFT_"

    listen: str = setting(
        "127.0.0.1:50051", "where to listen: host:port or unix:/path", metavar="ADDRESS"
    )
    verifier: str = setting(
        "127.0.0.1:50052", "the verify server: host:port or unix:/path", metavar="ADDRESS"
    )
    model: str | None = setting(
        None,
        "checkpoint of the target, for its tokenizer and embedding; the default model if not given",
        metavar="PATH",
    )
    draft: str = setting("ngram", "drafting method", choices=tuple(METHODS))
    draft_model: str | None = setting(
        None,
        "the draft model of --draft standalone, the head of --draft eagle and eagle3 (one for the "
        "default model is at hand), or the layer of --draft mtp where the target brings none",
        metavar="PATH",
    )
    dtype: Literal["bfloat16", "float32"] = setting(
        "bfloat16", "precision of the draft model", choices=("bfloat16", "float32")
    )
    threads: int = setting(
        0, "threads of the draft model's engine; 0: one a physical core", int, minimum=0
    )
    kv_tokens: int = setting(32768, "tokens that the draft model's KV cache holds", int, minimum=1)
    max_context: int = setting(
        0, "tokens of one session in the draft model; 0: as many as it can", int, minimum=0
    )
    prefill_chunk: int = setting(
        256, "rows in one forward of the draft model at most", int, minimum=1
    )
    min_match: int = setting(1, "tokens that --draft ngram must match at least", int, minimum=1)
    min_probability: float = setting(
        0.03, "least path probability of a node of --draft ngram", float, minimum=0
    )
    archive_tokens: int = setting(
        0, "tokens of ended outputs in which --draft ngram looks as well; 0: none", int, minimum=0
    )
    draft_timeout_ms: float = setting(
        100.0, "a round that is not drafted by then is decoded plainly", float, minimum=0
    )
    reopen_timeout_s: float = setting(
        30.0, "seconds that a session waits for the verify server to come back", float, minimum=0
    )
    max_message_bytes: int = setting(
        64 * MIB, "bytes in one message at most", int, minimum=64 << 10
    )
    grace_s: float = setting(
        30.0, "seconds that open generations get to finish on shutdown", float, minimum=0
    )
    metrics_port: int | None = setting(
        None,
        "port of the Prometheus metrics over HTTP; off if not given",
        int,
        minimum=0,
        maximum=MAX_PORT,
    )
    tracing: bool = setting(
        False,
        "whether to export a trace of each request by OpenTelemetry, as OTEL_ variables say",
        parse_bool,
    )
    reflection: bool = setting(True, "whether to serve gRPC reflection", parse_bool)
    tls_cert: str | None = setting(None, "PEM file: the certificate chain", metavar="PATH")
    tls_key: str | None = setting(None, "PEM file: the private key", metavar="PATH")
    tls_ca: str | None = setting(
        None, "PEM file: who signs the certificates that clients must show", metavar="PATH"
    )
    token_file: str | None = setting(
        None, "file with the token that callers must send", metavar="PATH"
    )
    verifier_tls_ca: str | None = setting(
        None, "PEM file: who signs the verify server's certificate; turns TLS on", metavar="PATH"
    )
    verifier_tls_cert: str | None = setting(
        None, "PEM file: the certificate to show to the verify server", metavar="PATH"
    )
    verifier_tls_key: str | None = setting(
        None, "PEM file: the private key of that certificate", metavar="PATH"
    )
    verifier_token_file: str | None = setting(
        None, "file with the token to send to the verify server", metavar="PATH"
    )

    def __post_init__(self) -> None:
        self.check_ranges()
        check_listen_address(self.listen)
        check_port(self.verifier)
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
            archive_tokens=self.archive_tokens,
            target=Path(self.model) if self.model else None,
            model=Path(self.draft_model) if self.draft_model else None,
            dtype=self.dtype,
            threads=self.threads or None,
            kv_tokens=self.kv_tokens,
            max_context=self.max_context or None,
            prefill_chunk=self.prefill_chunk,
        )
