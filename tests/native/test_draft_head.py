"""The draft head against a plain reading of its forward, and its cache against a fresh one."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.engine import Rows
from forerun.engine.draft_head import DraftedNodes, DraftHead, HeadRows
from forerun.models.eagle3 import EMBEDDING
from tests.fixtures.eagle3 import (
    TAPS,
    TOP_K,
    Reference,
    head_tensors,
    load_head,
    write_head,
    write_speculators_head,
)
from tests.fixtures.engines import ISA_LEVELS, ids, tiny_engine
from tests.fixtures.tiny import NUM_TOKENS, random_prompts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_head(tmp_path_factory.mktemp("head"))


def features_of(token_ids: list[int]) -> NDArray[np.uint16]:
    """The hidden states of all positions but the last, as T gives them."""
    engine = tiny_engine(dtype="float32")
    sequence = engine.open()
    assert engine.reserve(sequence, len(token_ids))
    (out,) = engine.forward([Rows(sequence, ids(token_ids), None, "none", TAPS)])
    engine.release(sequence)
    assert out.hidden is not None
    return out.hidden.reshape(len(token_ids), -1)[:-1]


def draft(
    head: DraftHead, token_ids: list[int], nodes: int, depth: int, chunks: tuple[int, ...] = ()
) -> DraftedNodes:
    """The tree behind `token_ids`, with the rows cached in pieces of these sizes."""
    sequence, features = head.open(), features_of(token_ids)
    for size in (*chunks, len(features) - sum(chunks)):
        start, last = sequence.length, sequence.length + size == len(features)
        limits = (nodes, depth) if last else (0, 0)
        assert head.reserve(sequence, start + size + limits[0])
        rows = HeadRows(
            sequence,
            features[start : start + size],
            ids(token_ids[start + 1 : start + size + 1]),
            *limits,
        )
        (drafted,) = head.draft([rows], 0.0, math.inf)
    head.release(sequence)
    assert head.pages_free == head.info.pages_total
    return drafted


def paths(drafted: DraftedNodes) -> list[list[int]]:
    """The tokens from the root down to each node."""
    found: list[list[int]] = []
    for token_id, parent in zip(drafted.token_ids, drafted.parents, strict=True):
        found.append([*(found[parent] if parent >= 0 else []), int(token_id)])
    return found


@pytest.mark.parametrize("page_size", [1, 16, 24])
def test_probabilities_are_those_of_the_plain_reading(folder: Path, page_size: int) -> None:
    head = load_head(folder, dtype="float32", page_size=page_size)
    for prompt in random_prompts(3, min_length=20, max_length=50, seed=5):
        features = (features_of(prompt).astype(np.uint32) << 16).view(np.float32)
        reference = Reference(folder, features, prompt[1:])
        drafted = draft(head, prompt, nodes=12, depth=4)
        assert len(drafted.token_ids) == 12
        assert max(map(len, paths(drafted))) > 1, "a tree of one level tests little"
        for path, probability in zip(paths(drafted), drafted.probabilities, strict=True):
            expected = reference.probabilities(path[:-1])
            assert probability == pytest.approx(expected[path[-1]], abs=1e-4)


@pytest.mark.parametrize(("keys", "normed"), [({}, True), ({"norm_before_residual": False}, False)])
def test_the_speculators_layout_says_what_the_residual_is(
    tmp_path: Path, keys: dict[str, bool], normed: bool
) -> None:
    folder = write_speculators_head(tmp_path, **keys)
    head = load_head(folder, dtype="float32")
    prompt = random_prompts(1, min_length=30, seed=5)[0]
    features = (features_of(prompt).astype(np.uint32) << 16).view(np.float32)
    reference = Reference(folder, features, prompt[1:], normed)
    drafted = draft(head, prompt, nodes=12, depth=4)
    for path, probability in zip(paths(drafted), drafted.probabilities, strict=True):
        expected = reference.probabilities(path[:-1])
        assert probability == pytest.approx(expected[path[-1]], abs=1e-4)


def test_the_tree_is_the_best_one_of_its_size(folder: Path) -> None:
    """No node that was left out has a more probable path than one that was taken."""
    head = load_head(folder, dtype="float32")
    prompt = random_prompts(1, min_length=30, seed=9)[0]
    features = (features_of(prompt).astype(np.uint32) << 16).view(np.float32)
    reference = Reference(folder, features, prompt[1:])
    drafted = draft(head, prompt, nodes=6, depth=3)
    taken = {tuple(path) for path in paths(drafted)}
    products: dict[tuple[int, ...], float] = {}
    for parent in sorted([(), *taken], key=len):
        if len(parent) < 3:
            share = products[parent] if parent else 1.0
            children = reference.probabilities(list(parent))
            for token in sorted(children, key=lambda token: -children[token])[:TOP_K]:
                products[(*parent, token)] = share * children[token]
    worst = min(products[path] for path in taken)
    assert all(p <= worst + 1e-6 for path, p in products.items() if path not in taken)


@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_cache_made_in_pieces_is_that_of_a_fresh_head(folder: Path, isa: str, dtype: str) -> None:
    prompt = random_prompts(1, min_length=48, seed=3)[0]
    fresh = draft(load_head(folder, isa=isa, dtype=dtype), prompt, 10, 5)
    for chunks, page_size, threads in (((1,) * 20, 1, 1), ((16, 3), 16, 2), ((31,), 5, 1)):
        head = load_head(folder, isa=isa, dtype=dtype, page_size=page_size, threads=threads)
        rolled = draft(head, prompt, 10, 5, chunks)
        for name in ("token_ids", "parents", "probabilities"):
            assert getattr(rolled, name).tobytes() == getattr(fresh, name).tobytes()


def test_sessions_of_one_call_do_not_touch_each_other(folder: Path) -> None:
    prompts = random_prompts(4, min_length=10, max_length=40, seed=7)
    head = load_head(folder)
    alone = [draft(head, prompt, 8, 4) for prompt in prompts]
    batch = []
    for prompt in prompts:
        sequence, features = head.open(), features_of(prompt)
        assert head.reserve(sequence, len(features) + 8)
        batch.append(HeadRows(sequence, features, ids(prompt[1:]), 8, 4))
    together = head.draft(batch, 0.0, math.inf)
    for one, other in zip(alone, together, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.probabilities.tobytes() == other.probabilities.tobytes()
    for rows in batch:
        head.release(rows.sequence)
    assert head.pages_free == head.info.pages_total


def test_norms_of_more_than_4096_elements_are_loaded_whole(tmp_path: Path) -> None:
    tensors = head_tensors(hidden=4112)
    tensors[EMBEDDING] = np.zeros((NUM_TOKENS, 4112), np.float32)
    head = load_head(write_head(tmp_path, tensors, hidden_size=4112), dtype="float32")
    prompt = random_prompts(1, min_length=8, max_length=8, seed=2)[0]
    assert len(draft(head, prompt, nodes=3, depth=2).token_ids) == 3


def test_limits_of_a_tree(folder: Path) -> None:
    head = load_head(folder)
    prompt = random_prompts(1, min_length=20, seed=1)[0]
    sequence, features = head.open(), features_of(prompt)
    assert head.reserve(sequence, len(features) + 30)
    rows = HeadRows(sequence, features, ids(prompt[1:]), 30, 3)
    (likely,) = head.draft([rows], 0.05, math.inf)
    products: list[float] = []
    for parent, probability in zip(likely.parents, likely.probabilities, strict=True):
        products.append((products[parent] if parent >= 0 else 1.0) * float(probability))
    assert 0 < len(products) < 30
    assert min(products) >= 0.05
    head.release(sequence)

    sequence = head.open()
    assert head.reserve(sequence, len(features) + 30)
    (hurried,) = head.draft([HeadRows(sequence, features, ids(prompt[1:]), 30, 3)], 0.0, 0.0)
    assert sequence.length == len(features), "the rows are cached whatever the time"
    assert set(hurried.parents.tolist()) == {-1}, "and nothing below the first level is tried"
    head.release(sequence)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": ids([1] * 3)}, "features must have shape"),
        ({"features": np.zeros((5, 7), np.uint16)}, "features must have shape"),
        ({"token_ids": ids([1, 2, 3, 4, 9999])}, "token id is 9999"),
        ({"nodes": 100}, "pages held"),
    ],
)
def test_rows_out_of_limits_are_refused(
    folder: Path, change: dict[str, object], message: str
) -> None:
    head = load_head(folder)
    sequence = head.open()
    assert head.reserve(sequence, 10)
    features = np.zeros((5, head.info.feature_size), np.uint16)
    values: dict[str, object] = {"features": features, "token_ids": ids([1, 2, 3, 4, 5])}
    with pytest.raises(ValueError, match=message):
        head.draft([HeadRows(sequence, depth=2, **{"nodes": 4} | values | change)], 0.0, 1.0)  # type: ignore[arg-type]
    head.release(sequence)
