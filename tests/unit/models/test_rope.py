"""Rotary frequencies against Transformers' own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.models import RopeConfig
from forerun.models.config import config_from_hugging_face
from tests.fixtures.tiny import tiny_config

LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPES: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 10_000.0},
    {"rope_type": "default", "rope_theta": 100_000.0},
    {"rope_type": "default", "rope_theta": 1_000_000.0},
    {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.5},
    {**LLAMA3, "rope_theta": 500_000.0, "factor": 8.0, "original_max_position_embeddings": 8192},
    {**LLAMA3, "rope_theta": 500_000.0, "factor": 32.0, "original_max_position_embeddings": 8192},
    {**LLAMA3, "rope_theta": 10_000.0, "factor": 8.0, "original_max_position_embeddings": 64},
]
HEAD_DIMS = [16, 64, 72, 80, 96, 128, 256]

_PRINT_FREQUENCIES = """
import json, sys
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
for settings in json.load(sys.stdin):
    rope = LlamaRotaryEmbedding(AutoConfig.for_model(**settings))
    assert rope.attention_scaling == 1.0
    print(rope.inv_freq.numpy().tobytes().hex())
"""


@pytest.fixture(scope="module")
def reference() -> list[NDArray[np.float32]]:
    """Transformers' frequencies with PyTorch's scalar kernels, whose powers are the same on every
    CPU; its vectorised ones round a few powers the other way.
    """
    cases = [tiny_config(head_dim=d, rope_parameters=rope) for rope in ROPES for d in HEAD_DIMS]
    finished = subprocess.run(
        [sys.executable, "-c", _PRINT_FREQUENCIES],
        input=json.dumps(cases),
        env={"ATEN_CPU_CAPABILITY": "default", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = finished.stdout.split()
    return [np.frombuffer(bytes.fromhex(line), dtype=np.float32) for line in lines]


def test_equal_transformers_bit_for_bit(reference: list[NDArray[np.float32]]) -> None:
    cases = [(rope, head_dim) for rope in ROPES for head_dim in HEAD_DIMS]
    for (rope, head_dim), expected in zip(cases, reference, strict=True):
        raw = tiny_config(head_dim=head_dim, rope_parameters=rope)
        config = config_from_hugging_face(raw, {}, "tiny")
        ours = config.rope.inverse_frequencies(head_dim)
        assert ours.dtype == np.float32
        assert ours.tobytes() == expected.tobytes(), (rope, head_dim)


def test_divisors_divide_the_plain_frequencies() -> None:
    divisors = (1.0, 1.5, 8.0, 8.0)
    plain = RopeConfig(theta=1e4).inverse_frequencies(8)
    scaled = RopeConfig(theta=1e4, type="llama3", divisors=divisors).inverse_frequencies(8)
    assert scaled.dtype == np.float32
    assert scaled.tolist() == (plain / np.array(divisors, np.float32)).tolist()
