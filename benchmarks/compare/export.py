"""Owns the one set of weights that all peers load: bfloat16, as a Hugging Face folder and as GGUF.

Both hold, bit for bit, what forerun computes with: the default model's quantised weights, rounded
to bfloat16. They are read back and compared before anything is measured.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize
from safetensors import TensorSpec, serialize_file

from forerun.models import default_model_path, load_tokenizer, open_checkpoint
from forerun.models.bfloat16 import round_to_bfloat16
from forerun.models.checkpoint import Checkpoint

FOLDER, GGUF = "hugging-face", "model.bf16.gguf"
# What the writer adds by itself.
OWN_KEYS = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture")


def export(directory: Path) -> None:
    """Writes FOLDER and GGUF into `directory`, unless both are there.

    Raises RuntimeError where what was written is not what was read.
    """
    source = default_model_path()
    folder, gguf = directory / FOLDER, directory / GGUF
    if folder.is_dir() and gguf.is_file():
        return
    directory.mkdir(parents=True, exist_ok=True)
    scratch = directory / "incomplete"
    shutil.rmtree(scratch, ignore_errors=True)
    (scratch / FOLDER).mkdir(parents=True)
    with open_checkpoint(source) as checkpoint:
        _write_folder(checkpoint, scratch / FOLDER)
        _write_gguf(source, scratch / GGUF)
        for path in (scratch / FOLDER, scratch / GGUF):
            _require_same(checkpoint, path)
    load_tokenizer(source).backend.save(str(scratch / FOLDER / "tokenizer.json"))
    shutil.rmtree(folder, ignore_errors=True)
    (scratch / FOLDER).rename(folder)
    (scratch / GGUF).rename(gguf)
    scratch.rmdir()


def _write_folder(checkpoint: Checkpoint, folder: Path) -> None:
    tensors = {name: checkpoint.read(name) for name in checkpoint.tensor_shapes}
    specs = {  # which point into the arrays above: NumPy has no bfloat16 to hand over
        name: TensorSpec(
            dtype="bfloat16",
            shape=list(bits.shape),
            data_ptr=bits.ctypes.data,
            data_len=bits.nbytes,
        )
        for name, bits in tensors.items()
    }
    serialize_file(specs, folder / "model.safetensors", {"format": "pt"})
    config = checkpoint.config
    values: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": config.architecture,
        "hidden_act": "silu",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_positions,
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_ids[0],
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(values, indent=2), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}), encoding="utf-8"
    )


def _write_gguf(source: Path, target: Path) -> None:
    """The same file with other numbers: vectors in float32, as llama.cpp wants them, but with
    values that bfloat16 holds."""
    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(target, architecture)
    for field in reader.fields.values():
        if field.name in OWN_KEYS:
            continue
        value, kind = field.contents(), field.types[0]
        if field.name == "general.file_type":
            value = LlamaFileType.MOSTLY_BF16
        sub_type = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, kind, sub_type=sub_type)
    for tensor in reader.tensors:
        bits = round_to_bfloat16(dequantize(tensor.data, tensor.tensor_type))
        if bits.ndim == 1:
            values = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, bits.view(np.uint8), raw_dtype=GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _require_same(checkpoint: Checkpoint, path: Path) -> None:
    with open_checkpoint(path) as written:
        if written.tensor_shapes != checkpoint.tensor_shapes:
            raise RuntimeError(f"{path} has other tensors than {checkpoint.path}")
        for name in checkpoint.tensor_shapes:
            if not np.array_equal(written.read(name), checkpoint.read(name)):
                raise RuntimeError(f"{path}: {name} differs from {checkpoint.path}")
