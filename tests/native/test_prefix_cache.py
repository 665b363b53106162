"""Pages that another sequence computed hold what the sequence would have computed itself, bit for
bit, and speculation behind them goes on as behind its own."""

from __future__ import annotations

import random

import numpy as np
import pytest

from forerun.engine import Engine, Rows
from forerun.engine.config import EngineConfig
from forerun.models import open_checkpoint
from tests.fixtures.engines import base, cached, empty, ids, prefill, step, tiny_engine
from tests.fixtures.tiny import shared_checkpoint

COMMON = random.Random(1).choices(range(256), k=70)


def go_on(engine: Engine, tokens: list[int], count: int) -> tuple[list[bytes], list[int], int]:
    """KV of the tokens, `count` tokens after them, and how many were not computed."""
    sequence = engine.open()
    gained = engine.reuse(sequence, tokens[:-1])
    rest = ids(tokens[gained:])
    assert engine.reserve(sequence, len(tokens))
    (out,) = engine.forward([Rows(sequence, rest, None, "last")])
    engine.commit([(sequence, len(rest))])
    kv = cached(engine, sequence)
    said = [int(out.predictions[0])]
    while len(said) < count:
        said.append(step(engine, sequence, said[-1]))
    engine.share(sequence, [*tokens, *said])
    engine.release(sequence)
    engine.poison_free_pages()
    return kv, said, gained


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("page_size", [1, 5, 16, 24])
def test_shared_pages_change_no_bit(dtype: str, page_size: int) -> None:
    engine = tiny_engine(dtype=dtype, page_size=page_size)
    gains = []
    for tail in ([7, 8, 9], [7, 8, 9], [9] * 20, []):
        tokens = [*COMMON, *tail]
        fresh, _ = prefill(engine, tokens)
        kv = cached(engine, fresh)
        engine.release(fresh)
        shared_kv, said, gained = go_on(engine, tokens, 12)
        assert shared_kv == kv
        assert said == base(engine, tokens, 12)
        gains.append(gained)
    whole = len(COMMON) // page_size * page_size
    assert gains[0] == 0 and gains[1] == (len(COMMON) + 2) // page_size * page_size
    assert gains[2] == whole and gains[3] == (len(COMMON) - 1) // page_size * page_size
    empty(engine)


def test_a_tree_behind_shared_pages_leaves_them_alone() -> None:
    """Two sessions verify different trees in one forward behind the same pages."""
    engine = tiny_engine(dtype="bfloat16", page_size=16)
    go_on(engine, COMMON[:48], 1)
    sequences = [engine.open(), engine.open()]
    for sequence in sequences:
        assert engine.reuse(sequence, COMMON) == 48
        assert engine.reserve(sequence, 48 + 5)
    assert sequences[0].pages[:3] == sequences[1].pages[:3]
    assert not set(sequences[0].pages[3:]) & set(sequences[1].pages[3:])
    parents = ids([-1, 0, 0, 1, 2])
    trees = [[COMMON[48], 1, 2, 3, 4], [COMMON[48], 5, 6, 7, 8]]
    engine.forward([Rows(s, ids(t), parents, "all") for s, t in zip(sequences, trees, strict=True)])
    engine.commit([(sequences[0], [0, 2, 4]), (sequences[1], [0, 1, 3])])
    for sequence, path in zip(sequences, ([2, 4], [5, 7]), strict=True):
        alone, _ = prefill(engine, [*COMMON[:49], *path])
        assert cached(engine, sequence) == cached(engine, alone)
        engine.release(alone)
        engine.release(sequence)
    empty(engine)


def test_a_shared_page_is_not_cut() -> None:
    engine = tiny_engine(page_size=16)
    sequence, _ = prefill(engine, COMMON)
    engine.share(sequence, COMMON)
    with pytest.raises(ValueError, match="length is 33, which is inside a page"):
        engine.truncate(sequence, 33)
    assert sequence.length == len(COMMON)
    engine.truncate(sequence, 65)
    engine.truncate(sequence, 32)
    engine.release(sequence)
    assert engine.pages_cached == 4
    empty(engine)


@pytest.mark.parametrize(("dtype", "pages"), [("float32", 2), ("bfloat16", 4)])
def test_the_limit_is_in_bytes_of_keys_and_values(dtype: str, pages: int) -> None:
    with open_checkpoint(shared_checkpoint()) as checkpoint:
        model = checkpoint.config
        floats = 2 * model.num_layers * model.num_kv_heads * model.head_dim * 16
        config = EngineConfig(
            dtype="float32" if dtype == "float32" else "bfloat16", page_size=16, kv_tokens=512,
            threads=1, pin=False, prefix_cache_bytes=2 * floats * np.dtype(np.float32).itemsize,
        )  # fmt: skip
        engine = Engine.load(checkpoint, config)
    sequence, _ = prefill(engine, COMMON)
    engine.share(sequence, COMMON)
    engine.release(sequence)
    assert engine.pages_cached == min(pages, len(COMMON) // 16)
    assert engine.pages_free + engine.pages_cached == engine.info.pages_total
