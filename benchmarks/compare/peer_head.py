"""Owns the head that all engines load: the shipped one with heads of attention that add nothing.

Transformers, by whose description of a Llama vLLM goes, wants the hidden size to be a multiple of
the number of heads, though the size of a head is told apart. So groups of heads whose weights are
zero are added until it is: values of zero leave every output as it is.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors import TensorSpec, deserialize, serialize_file

WEIGHTS, CONFIG = "model.safetensors", "config.json"
DTYPES = {"BF16": "bfloat16", "I64": "int64", "BOOL": "bool"}


def export_head(head: Path, folder: Path) -> None:
    """Writes an EAGLE-3 head in bfloat16, as train-draft publishes it, into `folder`.

    Raises ValueError where no number of heads would do.
    """
    config = json.loads((head / CONFIG).read_text(encoding="utf-8"))
    hidden, given = config["hidden_size"], config["num_key_value_heads"]
    group = config["num_attention_heads"] // given
    kv_heads = next((n for n in range(given, hidden) if hidden % (n * group) == 0), None)
    if kv_heads is None:
        raise ValueError(f"{head}: a hidden size of {hidden} is no multiple of {group} heads")
    config |= {"num_key_value_heads": kv_heads, "num_attention_heads": kv_heads * group}
    more = (kv_heads - given) * config["head_dim"]
    # Rows and columns that a matrix gets.
    added = {"q": (group * more, 0), "k": (more, 0), "v": (more, 0), "o": (0, group * more)}
    grown = {f"midlayer.self_attn.{part}_proj.weight": size for part, size in added.items()}

    folder.mkdir(parents=True, exist_ok=True)
    specs = {}
    data = []  # which the specs point into
    tensors = deserialize((head / WEIGHTS).read_bytes())  # type: ignore[no-untyped-call]
    for name, tensor in tensors:
        shape, array = list(tensor["shape"]), np.frombuffer(tensor["data"], np.uint8)
        if name in grown:
            rows, columns = grown[name]
            shape = [shape[0] + rows, shape[1] + columns]
            array = np.pad(array.view("<u2").reshape(tensor["shape"]), ((0, rows), (0, columns)))
        data.append(array)
        specs[name] = TensorSpec(
            dtype=DTYPES[tensor["dtype"]],
            shape=shape,
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
    serialize_file(specs, folder / WEIGHTS, {"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
