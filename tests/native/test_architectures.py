"""Each architecture and rope type, against Transformers in float32 on tiny random models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forerun.engine import Engine, Rows
from tests.fixtures.engines import base, ids, tiny_engine
from tests.fixtures.reference import greedy_reference, hidden_states, logits
from tests.fixtures.tiny import random_prompts, shared_checkpoint

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"architecture": "llama"},
    "llama untied": {"architecture": "llama", "tie_word_embeddings": False},
    "llama biases": {"architecture": "llama", "attention_bias": True, "mlp_bias": True},
    "llama MHA": {"architecture": "llama", "num_key_value_heads": 4},
    "llama rope linear": {
        "architecture": "llama",
        "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    },
    "llama rope llama3": {
        "architecture": "llama",
        "rope_theta": 10000.0,
        "rope_scaling": LLAMA3,
        "max_position_embeddings": 512,
    },
    "qwen2": {"architecture": "qwen2"},
    "qwen3": {"architecture": "qwen3"},
    "mistral": {"architecture": "mistral", "sliding_window": None},
    "mistral window": {"architecture": "mistral", "sliding_window": 24},
}


def states(engine: Engine, prompt: list[int], layer: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    sequence = engine.open()
    assert engine.reserve(sequence, len(prompt))
    (out,) = engine.forward([Rows(sequence, ids(prompt), None, "none", (layer,))])
    engine.release(sequence)
    assert out.hidden is not None
    return (out.hidden[:, 0].astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("name", MODELS)
def test_hidden_states_and_greedy_ids(name: str) -> None:
    path = shared_checkpoint(**MODELS[name])
    engine = tiny_engine(MODELS[name], dtype="float32")
    for prompt in random_prompts(2, min_length=60, max_length=120, seed=2):
        expected = hidden_states(path, prompt)
        for layer in (1, engine.info.num_layers):
            # Taps are rounded to bfloat16: half a unit in the last of 8 bits.
            np.testing.assert_allclose(
                states(engine, prompt, layer), expected[layer], rtol=2**-8, atol=1e-5
            )
        assert base(engine, prompt, 40) == greedy_reference(path, prompt, 40)


@pytest.mark.parametrize("name", ["llama", "llama rope linear", "llama rope llama3"])
@pytest.mark.parametrize("position", [0, 1000, 3000])
def test_rope_far_into_the_context(name: str, position: int) -> None:
    """A rope type that is read but not used is right at position 0 and drifts from there."""
    model = {**MODELS[name], "max_position_embeddings": 8192}
    engine = tiny_engine(model, dtype="float32", kv_tokens=4096)
    prompt = random_prompts(1, min_length=position + 1, max_length=position + 1, seed=4)[0]
    sequence = engine.open()
    for start in range(0, len(prompt), 500):
        part = ids(prompt[start : start + 500])
        assert engine.reserve(sequence, sequence.length + len(part))
        (out,) = engine.forward([Rows(sequence, part, None, "last", (engine.info.num_layers,))])
        engine.commit([(sequence, len(part))])
    engine.release(sequence)
    assert out.hidden is not None
    got = (out.hidden[-1, 0].astype(np.uint32) << 16).view(np.float32)
    path = shared_checkpoint(**model)
    np.testing.assert_allclose(got, hidden_states(path, prompt)[-1][-1], rtol=2**-7, atol=2e-4)
    assert out.predictions[0] == logits(path, prompt)[-1].argmax()


def test_padding_rows_of_the_embedding_are_never_predicted() -> None:
    """The head of the padding rows is made the largest of all; ids stop at the vocabulary."""
    model = {"architecture": "llama", "vocab_size": 272}
    padded = tiny_engine(model, dtype="float32", vocab_size=250)
    free = tiny_engine(model, dtype="float32")
    beyond = 0
    for prompt in random_prompts(40, seed=9):
        assert base(padded, prompt, 1)[0] < 250
        beyond += base(free, prompt, 1)[0] >= 250
    assert beyond > 0, "some prompt must prefer an id beyond the vocabulary"


def test_what_reaches_the_kernel_in_each_kind_of_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """The length is committed plus new rows in every kind of forward: a verify that passed the
    committed length alone would hide the draft's rows from each other."""
    engine = tiny_engine(dtype="float32", page_size=16)
    seen: list[tuple[int, int]] = []
    native = engine._native

    class Spy:
        def forward(self, batch: Any, taps: Any) -> Any:
            seen.extend((length, len(tokens)) for length, tokens, *_ in batch)
            return native.forward(batch, taps)

        def __getattr__(self, name: str) -> Any:
            return getattr(native, name)

    monkeypatch.setattr(engine, "_native", Spy())
    sequence, other = engine.open(), engine.open()
    prompt = random_prompts(1, min_length=20, max_length=20)[0]

    def run(tokens: list[int], parents: list[int] | None, keep: list[int] | int) -> None:
        assert engine.reserve(sequence, sequence.length + len(tokens))
        engine.forward(
            [Rows(sequence, ids(tokens), None if parents is None else ids(parents), "all")]
        )
        engine.commit([(sequence, keep)])

    run(prompt, None, 20)  # prefill
    run([1], None, 1)  # plain decode
    run([1, 2, 3, 4, 5], None, 2)  # verify, a chain
    run([1, 2, 3, 4, 5, 6, 7], [-1, 0, 0, 1, 1, 2, 2], [0, 2, 5])  # verify, a tree
    run([1], None, 1)
    assert engine.reserve(other, 3)
    assert engine.reserve(sequence, sequence.length + 1)
    engine.forward(
        [Rows(sequence, ids([9]), None, "all"), Rows(other, ids([1, 2, 3]), None, "none")]
    )
    assert seen == [(20, 20), (21, 1), (26, 5), (30, 7), (27, 1), (28, 1), (3, 3)]
    engine.release(sequence)
    engine.release(other)
