"""All settings of a verify server, in one frozen object (see forerun.settings)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from forerun.address import MAX_PORT, check_listen_address
from forerun.settings import Settings, parse_bool, setting
from forerun.tree import Budget

MIB = 1 << 20
MAX_BYTES = 2**63 - 1
# Rows of a tree, or of all trees in one step: buffers of the engine are made for them.
MAX_TREE_ROWS = 4096
# A message tells of them in milliseconds that fit 32 bits.
MAX_GRACE_S = 4_000_000


@dataclass(frozen=True, slots=True)
class VerifyConfig(Settings):
    """Settings of a verify server; each field's help says what it means, and its unit.

    Raises ValueError, naming the setting, the value and what is allowed.
    """

    environment_prefix: ClassVar[str] = "FORERUN_VERIFY_"

    listen: str = setting(
        "127.0.0.1:50052", "where to listen: host:port or unix:/path", metavar="ADDRESS"
    )
    model: str | None = setting(
        None,
        "folder of a checkpoint, or a .gguf file; the default model if not given",
        metavar="PATH",
    )
    dtype: Literal["bfloat16", "float32"] = setting(
        "bfloat16", "precision of activations and KV", choices=("bfloat16", "float32")
    )
    threads: int = setting(0, "threads of the engine; 0: one a physical core", int, minimum=0)
    page_size: int = setting(32, "tokens in a page of the KV cache", int, minimum=1)
    kv_tokens: int = setting(32768, "tokens that the KV cache holds", int, minimum=1)
    prefix_cache_bytes: int | None = setting(
        None,
        "bytes of the KV cache kept for prompts that begin alike; 0: none, not given: what is free",
        int,
        minimum=0,
        maximum=MAX_BYTES,
    )
    max_context: int = setting(
        8192, "prompt and output tokens of a session at most", int, minimum=2
    )
    prefill_chunk: int = setting(256, "prompt rows in one step at most", int, minimum=1)
    step_ms: float = setting(
        0.0,
        "milliseconds that a step should take at most while sessions decode; 0: three times what"
        " it takes without prompts",
        float,
        minimum=0,
    )
    adaptive: bool = setting(
        True, "whether to grant and run only nodes that pay for their time, as measured", parse_bool
    )
    max_nodes: int = setting(
        64, "proposed nodes in a tree at most", int, minimum=1, maximum=MAX_TREE_ROWS
    )
    max_depth: int = setting(64, "depth of a tree at most", int, minimum=1, maximum=MAX_TREE_ROWS)
    draft_nodes: int = setting(8, "nodes that a round is granted at most", int, minimum=0)
    draft_depth: int = setting(8, "depth that a round is granted at most", int, minimum=0)
    row_budget: int = setting(
        32,
        "rows that the trees of one step should have together",
        int,
        minimum=1,
        maximum=MAX_TREE_ROWS,
    )
    patience_ms: float = setting(
        20.0, "wait for a tree before a plain step, in milliseconds", float, minimum=0
    )
    max_patience_ms: float = setting(
        2000.0, "most that a session may have the server wait for a tree", float, minimum=0
    )
    max_sessions: int = setting(256, "open sessions on one stream at most", int, minimum=1)
    max_waiting: int = setting(
        256, "sessions of all streams that may wait for pages at most", int, minimum=0
    )
    max_taps: int = setting(4, "hidden taps of one session at most", int, minimum=0)
    max_message_bytes: int = setting(
        64 * MIB, "bytes in one message at most", int, minimum=64 << 10
    )
    outbox_bytes: int = setting(
        16 * MIB,
        "bytes that may wait for a slow reader before its stream is ended",
        int,
        minimum=1,
        maximum=MAX_BYTES,
    )
    hang_s: float = setting(
        30.0, "seconds that a step may take before health says NOT_SERVING", float, minimum=0.1
    )
    grace_s: float = setting(
        30.0,
        "seconds that open sessions get to finish on shutdown",
        float,
        minimum=0,
        maximum=MAX_GRACE_S,
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

    def __post_init__(self) -> None:
        self.check_ranges()
        check_listen_address(self.listen)
        if self.draft_nodes > self.max_nodes:
            raise ValueError(
                f"--draft-nodes is {self.draft_nodes}; it must not exceed --max-nodes"
                f" {self.max_nodes}"
            )
        if self.patience_ms > self.max_patience_ms:
            raise ValueError(
                f"--patience-ms is {self.patience_ms:g}; it must not exceed --max-patience-ms"
                f" {self.max_patience_ms:g}"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key belong together; give both or neither")
        if self.tls_ca and not self.tls_cert:
            raise ValueError("--tls-ca needs --tls-cert and --tls-key")

    @property
    def max_rows(self) -> int:
        """Rows that the engine must take in one step: those of trees, and those of prompts.

        Prompts may claim a quarter of all rows, so theirs are at least a third of the trees'. They
        have no use for more than a context in one step, and memory is taken for each.
        """
        trees = max(self.row_budget, self.max_nodes + 1)
        prompts = min(self.prefill_chunk, self.max_context, self.kv_tokens)
        return trees + max(prompts, -(-trees // 3))

    @property
    def draft_limit(self) -> Budget:
        """The most that a round is granted."""
        return Budget(self.draft_nodes, min(self.draft_depth, self.max_depth))
