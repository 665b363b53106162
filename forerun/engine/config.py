"""Owns what a user may choose about an engine; knows nothing of the model or the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["bfloat16", "float32"]
DTYPES: tuple[Dtype, ...] = ("bfloat16", "float32")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How an engine runs.

    dtype: precision of activations and KV; weights are held in bfloat16 either way. page_size:
    tokens in a page of the KV cache, at least 1 (multiples of 16 are fastest). kv_tokens: tokens
    that the KV pool holds. max_rows: rows of one forward. max_context: tokens of a sequence; None
    is what the model was made for, as far as the pool can hold it. threads: None is one a physical
    core that the process may use. isa: level of the kernels; None is FORERUN_ISA or the best.
    vocab_size: ids from here on are never predicted (padding rows of the embedding); None is all
    rows. pin: whether each thread is bound to a processor. prefix_cache_bytes: KV of the pool that
    is kept for prompts that begin alike while no sequence holds it; None is what is free, 0 none.

    Raises ValueError for a value out of range.
    """

    dtype: Dtype = "bfloat16"
    page_size: int = 32
    kv_tokens: int = 16384
    max_rows: int = 640
    max_context: int | None = None
    threads: int | None = None
    isa: str | None = None
    vocab_size: int | None = None
    pin: bool = True
    prefix_cache_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}; it must be one of {', '.join(DTYPES)}")
        for name in ("page_size", "kv_tokens", "max_rows", "max_context", "threads", "vocab_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if self.prefix_cache_bytes is not None and self.prefix_cache_bytes < 0:
            raise ValueError(
                f"prefix_cache_bytes is {self.prefix_cache_bytes}; it must be at least 0"
            )
        if self.kv_tokens < self.page_size:
            raise ValueError(
                f"kv_tokens is {self.kv_tokens}; it must hold one page of {self.page_size} tokens"
            )
