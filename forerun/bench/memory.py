"""Owns what a verify server holds in memory, and what it may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forerun.models import ModelConfig
from forerun.v1 import verify_pb2

KV_BYTES = {"bfloat16": 2, "float32": 4}
# What may come on top of the weights and the KV pool: working memory, libraries, messages.
ALLOWED_FACTOR, ALLOWED_BYTES = 1.25, 250_000_000


def resident_memory(pid: int) -> dict[str, int]:
    """Bytes of a process: `rss` now, `peak_rss` since it began; raises OSError if it is gone."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    return {
        name: 1024 * int(values[field].split()[0])
        for name, field in (("rss", "VmRSS"), ("peak_rss", "VmHWM"))
    }


def memory_report(
    pid: int, target: verify_pb2.GetTargetInfoResponse, model: ModelConfig, weight_bytes: int
) -> dict[str, Any]:
    """The memory of the verify server `pid` that serves `target`, against its limit; all bytes."""
    token_bytes = 2 * model.num_kv_heads * model.head_dim * KV_BYTES[target.dtype]
    pool = target.pages_total * target.page_size * model.num_layers * token_bytes
    return {
        **resident_memory(pid),
        "weights": weight_bytes,
        "kv_pool": pool,
        "limit": int(ALLOWED_FACTOR * weight_bytes) + pool + ALLOWED_BYTES,
    }
