"""How much memory loading takes, measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from forerun.models.config import config_from_hugging_face
from forerun.models.default_model import FILE_NAME, cache_directory
from forerun.models.tensor_set import expected_shapes
from tests.fixtures.gguf_writer import write_gguf
from tests.fixtures.tiny import tiny_config, write_tokenizer

# Every tensor is kept, as the engine keeps it packed.
_LOAD = """
import re, sys
from pathlib import Path
from forerun.models import load_tokenizer, open_checkpoint
load_tokenizer(sys.argv[1])
with open_checkpoint(sys.argv[1]) as checkpoint:
    weights = [checkpoint.read(name) for name in checkpoint.tensor_shapes]
    # The peak in getrusage would be that of the test process, which a child inherits.
    [kilobytes] = re.findall(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
    print(checkpoint.weight_bytes, 1024 * int(kilobytes))
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""
LARGE: dict[str, Any] = {
    "vocab_size": 48_000,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
}


def assert_bounded(path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", _LOAD, str(path)], capture_output=True, text=True, check=True
    )
    weight_bytes, peak_bytes = map(int, finished.stdout.split())
    assert peak_bytes <= 1.3 * weight_bytes + 300e6


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 159 MB in bfloat16; holding its float32 file as well would break the bound."""
    directory = tmp_path_factory.mktemp("large")
    config = tiny_config(**LARGE)
    shapes = expected_shapes(config_from_hugging_face(config, {}, "large"))
    (directory / "config.json").write_text(json.dumps(config))
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    save_file(weights, directory / "model.safetensors")
    write_tokenizer(directory)
    return directory


def test_safetensors(large: Path) -> None:
    assert_bounded(large)


def test_gguf(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path = cache_directory() / FILE_NAME
    if not path.is_file():
        path = write_gguf(request.getfixturevalue("large"), tmp_path / "model.gguf", "F32")
    assert_bounded(path)
