"""Writes a model, or its first layers, and a prompt into the flat file that model_test reads.

The format stands in native/tests/model_file.h.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from forerun.engine.weights import angles, native_name
from forerun.models import Checkpoint, default_model_path, open_checkpoint

PROMPTS = Path(__file__).parents[2] / "data" / "smollm2_greedy_fp32.jsonl"
NAME_BYTES = 24
MAX_CONTEXT = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--layers", type=int, help="default: all of the model's")
    args = parser.parse_args()
    with PROMPTS.open() as prompts:
        prompt = json.loads(prompts.readline())["prompt_token_ids"]
    with open_checkpoint(default_model_path()) as checkpoint, args.file.open("wb") as file:
        write(checkpoint, args.layers or checkpoint.config.num_layers, prompt, file)


def write(checkpoint: Checkpoint, layers: int, prompt: list[int], file: BinaryIO) -> None:
    """Writes the first `layers` layers of the checkpoint, with its embedding and head."""
    c = dataclasses.replace(checkpoint.config, num_layers=layers)
    tensors = [
        (tensor, shape, *native_name(tensor))
        for tensor, shape in checkpoint.tensor_shapes.items()
        if native_name(tensor)[1] < layers
    ]
    file.write(b"forerun model 1\n")
    numbers(
        file,
        *(c.vocab_size, c.vocab_size, c.hidden_size, c.intermediate_size, layers),
        *(c.num_heads, c.num_kv_heads, c.head_dim),
        *(c.tie_word_embeddings, c.qk_norm, c.sliding_window or 0),
    )
    file.write(struct.pack("<f", c.rms_norm_eps))
    numbers(file, MAX_CONTEXT)
    for table in angles(c.rope, c.head_dim, MAX_CONTEXT):
        file.write(np.ascontiguousarray(table, "<f4").tobytes())
    numbers(file, len(prompt), *prompt, len(tensors))
    for tensor, shape, name, layer in tensors:
        file.write(name.encode().ljust(NAME_BYTES, b"\0"))
        rows = shape[0] if len(shape) == 2 else 0
        numbers(file, layer, rows, shape[-1])
        file.write(checkpoint.read(tensor).tobytes())


def numbers(file: BinaryIO, *values: int) -> None:
    file.write(struct.pack(f"<{len(values)}i", *values))


if __name__ == "__main__":
    main()
