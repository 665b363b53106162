"""EAGLE-1 heads and layers for multi-token prediction against a plain reading of their forward."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.engine import Rows
from forerun.engine.draft_head import DraftedNodes, DraftHead, HeadRows
from tests.fixtures.engines import ISA_LEVELS, engine, ids
from tests.fixtures.fused_heads import KINDS, FusedReference, load_fused
from tests.fixtures.tiny import random_prompts


def features_of(target: Path, taps: tuple[int, ...], prompt: list[int]) -> NDArray[np.uint16]:
    """What leaves the final norm at all positions but the last."""
    running = engine(target, kv_tokens=4096, threads=1, pin=False, dtype="float32")
    sequence = running.open()
    assert running.reserve(sequence, len(prompt))
    (out,) = running.forward([Rows(sequence, ids(prompt), None, "none", taps)])
    running.release(sequence)
    assert out.hidden is not None
    return out.hidden.reshape(len(prompt), -1)[:-1]


def draft(
    head: DraftHead, features: NDArray[np.uint16], prompt: list[int], pieces: tuple[int, ...] = ()
) -> DraftedNodes:
    """A tree of 12, with the rows cached in pieces of these sizes and one of what is left."""
    sequence = head.open()
    for size in (*pieces, len(features) - sum(pieces)):
        start = sequence.length
        last = start + size == len(features)
        assert head.reserve(sequence, start + size + 12)
        tokens = ids(prompt[start + 1 : start + size + 1])
        rows = HeadRows(sequence, features[start : start + size], tokens, 12 * last, 4 * last)
        (drafted,) = head.draft([rows], 0.0, math.inf)
    head.release(sequence)
    assert head.pages_free == head.info.pages_total
    return drafted


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_are_those_of_the_plain_reading(kind: str, tmp_path: Path) -> None:
    target, head = load_fused(tmp_path, kind, dtype="float32", page_size=16)
    for prompt in random_prompts(3, min_length=20, max_length=50, seed=5):
        features = features_of(target, head.info.taps, prompt)
        floats = (features.astype(np.uint32) << 16).view(np.float32)
        reference = FusedReference(target, kind, floats, prompt[1:])
        drafted = draft(head, features, prompt)
        assert len(drafted.token_ids) == 12
        paths: list[list[int]] = []
        for token, parent in zip(drafted.token_ids, drafted.parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else []), int(token)])
        assert max(map(len, paths)) > 1, "a tree of one level tests little"
        for path, probability in zip(paths, drafted.probabilities, strict=True):
            expected = reference.probabilities(path[:-1])
            assert probability == pytest.approx(expected[path[-1]], abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_never_proposed(kind: str, tmp_path: Path) -> None:
    """As if the vocabulary ended in the middle: the ids behind it take no part at all."""
    target, head = load_fused(tmp_path, kind, dtype="float32", vocab_size=40)
    prompt = random_prompts(1, min_length=20, num_ids=40, seed=5)[0]
    features = features_of(target, head.info.taps, prompt)
    floats = (features.astype(np.uint32) << 16).view(np.float32)
    shares = np.asarray(FusedReference(target, kind, floats, prompt[1:]).probabilities([]))[:40]
    drafted = draft(head, features, prompt)
    assert len(drafted.token_ids) == 12 and (drafted.token_ids < 40).all()
    first = drafted.token_ids[drafted.parents < 0]
    wanted = shares[first] / shares.sum()
    assert drafted.probabilities[drafted.parents < 0] == pytest.approx(wanted, abs=1e-4)
    assert shares[first[0]] == shares.max()


@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_made_in_pieces_is_that_of_a_fresh_head(
    kind: str, isa: str, tmp_path: Path
) -> None:
    prompt = random_prompts(1, min_length=48, seed=3)[0]
    target, head = load_fused(tmp_path / "fresh", kind, isa=isa)
    features = features_of(target, head.info.taps, prompt)
    fresh = draft(head, features, prompt)
    for number, pieces in enumerate([(1,) * 20, (16, 3), (31,)]):
        _, head = load_fused(tmp_path / str(number), kind, isa=isa, page_size=5, threads=2)
        rolled = draft(head, features, prompt, pieces)
        for name in ("token_ids", "parents", "probabilities"):
            assert getattr(rolled, name).tobytes() == getattr(fresh, name).tobytes()
