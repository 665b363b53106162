"""Owns the target as training sees it: an engine that runs it, and its weights as torch tensors.

Knows nothing of data or drafting heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.engine import Engine, EngineConfig, Rows
from forerun.models import ModelConfig, Tokenizer, load_tokenizer, open_checkpoint
from forerun.obs.progress import progress


def from_bits(bits: NDArray[np.uint16]) -> Tensor:
    """The bfloat16 tensor of bfloat16 bit patterns; shares their memory."""
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Target:
    """A target, ready to run. For one thread at a time.

    embedding: bfloat16 [vocab_size, hidden]. head: float32 [vocab_size, hidden], for scores of the
    next token from states after the final norm. last_layer: the last layer's tensors by their name
    within the layer ("self_attn.q_proj.weight"), float32; first_norm: the first layer's norm before
    attention; final_norm: that before the head. Padding rows beyond the tokenizer are left out.
    """

    engine: Engine
    config: ModelConfig
    tokenizer: Tokenizer
    embedding: Tensor
    head: Tensor
    last_layer: dict[str, Tensor]
    first_norm: Tensor
    final_norm: Tensor

    @property
    def vocab_size(self) -> int:
        return self.embedding.shape[0]

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end an answer."""
        return self.tokenizer.eos_token_ids or self.config.eos_token_ids

    def hidden(self, token_ids: Sequence[int] | NDArray[np.int32], taps: tuple[int, ...]) -> Tensor:
        """The hidden taps of every token, bfloat16 [n, taps, hidden], by a prefill of its own.

        taps: as for `forerun.engine.Rows`. Raises ValueError where the tokens do not fit into the
        engine's cache.
        """
        ids = np.asarray(token_ids, dtype=np.int32)
        engine, sequence = self.engine, self.engine.open()
        if not engine.reserve(sequence, len(ids)):
            raise ValueError(
                f"{len(ids)} tokens do not fit into the engine's cache of "
                f"{engine.info.pages_total * engine.info.page_size}; shorten the answers"
            )
        parts = []
        try:
            for start in range(0, len(ids), engine.info.max_rows):
                chunk = ids[start : start + engine.info.max_rows]
                engine.reserve(sequence, start + len(chunk))
                (out,) = engine.forward([Rows(sequence, chunk, None, "none", taps)])
                engine.commit([(sequence, len(chunk))])
                assert out.hidden is not None
                parts.append(from_bits(out.hidden))
        finally:
            engine.release(sequence)
        return torch.cat(parts)


def load_target(path: Path, *, kv_tokens: int, max_rows: int, threads: int | None) -> Target:
    """Loads a checkpoint with progress on standard error.

    kv_tokens, max_rows, threads: as for EngineConfig. Raises ModelError for a checkpoint that
    cannot be used.
    """
    tokenizer = load_tokenizer(path)
    with open_checkpoint(path) as checkpoint, progress(f"loading {path.name}") as report:
        config = checkpoint.config
        vocab_size = min(tokenizer.vocab_size, config.vocab_size)
        settings = EngineConfig(
            kv_tokens=kv_tokens,
            max_rows=max_rows,
            threads=threads,
            vocab_size=vocab_size,
            # Training runs for hours beside other work, which may need the same processors.
            pin=False,
        )
        engine = Engine.load(checkpoint, settings, report)

        def read(name: str) -> Tensor:
            return from_bits(checkpoint.read(name))

        embedding = read("model.embed_tokens.weight")[:vocab_size]
        head = embedding if config.tie_word_embeddings else read("lm_head.weight")[:vocab_size]
        last = f"model.layers.{config.num_layers - 1}."
        return Target(
            engine=engine,
            config=config,
            tokenizer=tokenizer,
            embedding=embedding,
            head=head.float(),
            last_layer={
                name.removeprefix(last): read(name).float()
                for name in checkpoint.tensor_shapes
                if name.startswith(last)
            },
            first_norm=read("model.layers.0.input_layernorm.weight").float(),
            final_norm=read("model.norm.weight").float(),
        )
