"""Owns the way from a checkpoint's tensors to the native model; knows no file format."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from forerun import _native
from forerun.engine.fingerprint import Fingerprint
from forerun.models import Checkpoint, RopeConfig

Progress = Callable[[int, int], None]

_ROWS_AT_ONCE_BYTES = 4 << 20

_MATRICES = {
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "o",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}
_VECTORS = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "mlp_norm",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
}


def native_name(tensor: str) -> tuple[str, int]:
    """The native name and the layer (0 where there is none) of a canonical tensor name."""
    whole = {
        "model.embed_tokens.weight": "embedding",
        "lm_head.weight": "head",
        "model.norm.weight": "final_norm",
    }
    if tensor in whole:
        return whole[tensor], 0
    _, _, layer, rest = tensor.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    if kind == "bias":
        return f"{_MATRICES[stem]}_bias", int(layer)
    return _MATRICES.get(stem) or _VECTORS[stem], int(layer)


def load_model(
    checkpoint: Checkpoint, vocab_size: int | None, progress: Progress | None
) -> tuple[_native.Model, str]:
    """The checkpoint's weights, packed, and their fingerprint. Holds a few megabytes beside them at
    any time.

    progress: called with (bytes done, bytes in all) of the checkpoint in bfloat16.
    Raises ValueError for a shape that the native layer cannot run, naming it.
    """
    config = checkpoint.config
    model = _native.Model(
        vocab_rows=config.vocab_size,
        vocab_size=min(vocab_size or config.vocab_size, config.vocab_size),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        layers=config.num_layers,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.rms_norm_eps,
        tied=config.tie_word_embeddings,
        qk_norm=config.qk_norm,
        window=config.sliding_window or 0,
    )
    fingerprint = Fingerprint(config)
    done = 0
    for tensor, shape in checkpoint.tensor_shapes.items():
        name, layer = native_name(tensor)
        if len(shape) == 1:
            vector = checkpoint.read(tensor)
            fingerprint.add(tensor, 0, vector)
            model.load_vector(name, layer, vector)
            done += 2 * shape[0]
        else:
            rows, columns = shape
            for start, stop in row_blocks(rows, columns):
                block = checkpoint.read_rows(tensor, start, stop)
                fingerprint.add(tensor, start, block)
                model.load_rows(name, layer, start, block)
                done += 2 * (stop - start) * columns
                if progress is not None:
                    progress(done, checkpoint.weight_bytes)
    model.check_complete()
    return model, str(fingerprint)


def row_blocks(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """The rows of a matrix in bfloat16 as ranges (start, stop) of a few megabytes each."""
    step = max(1, _ROWS_AT_ONCE_BYTES // (2 * columns))
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def angles(
    rope: RopeConfig, head_dim: int, max_context: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """cos and sin of every position's angles, float32 [max_context, head_dim / 2].

    Angles are float32 products, as Transformers computes them.
    """
    positions = np.arange(max_context, dtype=np.float32)
    products = np.outer(positions, rope.inverse_frequencies(head_dim)).astype(np.float32)
    return np.cos(products), np.sin(products)
