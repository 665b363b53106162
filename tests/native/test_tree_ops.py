"""Trees: worked examples, and random ones against the plain references."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun import ops
from tests.native import tree_ops_reference as reference
from tests.native.tensors import EXAMPLES, as_list, index_tensor, library_tensor, trees

BATCHES = st.tuples(st.integers(0, 4), st.integers(1, 12))


def filled(data: st.DataObject, shape: tuple[int, ...]) -> Any:
    return index_tensor(data, np.full(shape, -1))


@EXAMPLES
@given(st.data(), BATCHES)
def test_verify_accepts_the_reference_path(data: st.DataObject, size: tuple[int, int]) -> None:
    bs, ndt = size
    parents = [data.draw(trees(ndt)) for _ in range(bs)]
    token_rows = st.lists(st.integers(0, 2), min_size=ndt, max_size=ndt)
    tokens = [data.draw(token_rows) for _ in range(bs)]
    target = [data.draw(token_rows) for _ in range(bs)]
    first = [reference.links(tree)[0] for tree in parents]
    siblings = [reference.links(tree)[1] for tree in parents]
    columns = max((max(reference.depths(tree)) + 1 for tree in parents), default=1)

    predicts = filled(data, (bs * ndt,))
    accept_index = filled(data, (bs, columns))
    accept_token_num = filled(data, (bs,))
    ops.verify_tree_greedy(
        predicts,
        accept_index,
        accept_token_num,
        index_tensor(data, np.reshape(tokens, (bs, ndt))),
        index_tensor(data, np.arange(bs * ndt).reshape(bs, ndt)),
        index_tensor(data, np.reshape(first, (bs, ndt))),
        index_tensor(data, np.reshape(siblings, (bs, ndt))),
        index_tensor(data, np.reshape(target, (bs, ndt))),
    )

    paths = [reference.verify(*tree) for tree in zip(parents, tokens, target, strict=True)]
    expected_predicts = [-1] * (bs * ndt)
    for b, path in enumerate(paths):
        for node in path:
            expected_predicts[b * ndt + node] = target[b][node]
    assert as_list(predicts) == expected_predicts
    assert as_list(accept_token_num) == [len(path) - 1 for path in paths]
    assert as_list(accept_index) == [
        [b * ndt + node for node in path] + [-1] * (columns - len(path))
        for b, path in enumerate(paths)
    ]


def verify_one(
    tokens: list[int], first: list[int], siblings: list[int], target: list[int], columns: int
) -> tuple[list[int], list[int], int]:
    predicts = np.full(len(tokens), -7, np.int32)
    accept_index = np.full((1, columns), -1, np.int32)
    accept_token_num = np.full(1, -1, np.int32)
    ops.verify_tree_greedy(
        predicts,
        accept_index,
        accept_token_num,
        np.array([tokens]),
        np.arange(len(tokens))[None],
        np.array([first]),
        np.array([siblings]),
        np.array([target]),
    )
    return predicts.tolist(), accept_index[0].tolist(), int(accept_token_num[0])


def test_verify_example_of_a_chain() -> None:
    assert verify_one([10, 3, 4, 5], [1, 2, 3, -1], [-1] * 4, [3, 4, 9, 9], 4) == (
        [3, 4, 9, -7],
        [0, 1, 2, -1],
        2,
    )


def test_verify_of_the_root_alone_gives_the_bonus_token() -> None:
    assert verify_one([10], [-1], [-1], [42], 1) == ([42], [0], 0)


def test_verify_takes_siblings_in_any_order() -> None:
    # Children of the root: 3 before 1, as a drafter that sorts by score links them.
    tokens, first, siblings = [9, 5, 6, 7], [3, 2, -1, -1], [-1, -1, -1, 1]
    assert verify_one(tokens, first, siblings, [5, 6, 1, 1], 3) == ([5, 6, 1, -7], [0, 1, 2], 2)


def test_verify_replaces_stale_entries_of_accept_index() -> None:
    accept_index = np.array([[5, 5, 5]], np.int32)
    one = np.zeros((1, 1), np.int64)
    ops.verify_tree_greedy(
        np.zeros(1, np.int32), accept_index, np.zeros(1, np.int32), one, one, one - 1, one - 1, one
    )
    assert accept_index.tolist() == [[0, -1, -1]]


def eagle_candidates(
    rng: random.Random, topk: int, depth: int, ndt: int
) -> tuple[list[int], list[int]]:
    """A parent list, and up to ndt-1 candidates, each with its ancestors, as a drafter has them."""
    step = list(range(topk))
    parent_list = [-1]
    open_candidates = list(step)
    children: dict[int, list[int]] = {}
    for i in range(1, depth):
        chosen = rng.sample(step, topk)
        base = topk + (i - 1) * topk * topk
        step = list(range(base, base + topk * topk))
        for group, parent in enumerate(chosen):
            children[parent] = step[group * topk : (group + 1) * topk]
        parent_list += chosen
    selected: list[int] = []
    while open_candidates and len(selected) < ndt - 1:
        candidate = open_candidates.pop(rng.randrange(len(open_candidates)))
        selected.append(candidate)
        open_candidates += children.get(candidate, [])
    return parent_list, sorted(selected)


def mask_tensor(mode: int, seq_lens: list[int], ndt: int) -> np.ndarray[Any, Any]:
    """Poisoned in the tree's columns, true in the prefix columns of FULL."""
    if mode == ops.MaskMode.BITPACK:
        width = np.uint8 if ndt <= 8 else np.uint16 if ndt <= 16 else np.uint32
        return np.full((len(seq_lens), ndt), np.iinfo(width).max, width)
    if mode == ops.MaskMode.QLEN_ONLY:
        return np.ones((len(seq_lens), ndt, ndt), np.bool_)
    return np.ones(sum((seq_len + ndt) * ndt for seq_len in seq_lens), np.bool_)


def expected_mask(mode: int, seq_lens: list[int], batch: list[list[int]]) -> Any:
    masks = [reference.mask(parents) for parents in batch]
    if mode == ops.MaskMode.BITPACK:
        return [[sum(1 << j for j, seen in enumerate(row) if seen) for row in m] for m in masks]
    if mode == ops.MaskMode.QLEN_ONLY:
        return masks
    return [
        cell
        for seq_len, rows in zip(seq_lens, masks, strict=True)
        for row in rows
        for cell in [True] * seq_len + row
    ]


@pytest.mark.parametrize("mode", list(ops.MaskMode))
@EXAMPLES
@given(st.data(), st.integers(0, 3), st.integers(1, 4), st.integers(1, 4), st.integers(1, 20))
def test_build_tree_equals_the_reference(
    mode: int, data: st.DataObject, bs: int, topk: int, depth: int, most_nodes: int
) -> None:
    rng = data.draw(st.randoms(use_true_random=False))
    # All trees of a call have as many nodes, at most what topk and depth give.
    ndt = 1 + len(eagle_candidates(rng, topk, depth, most_nodes)[1])
    drafts = [eagle_candidates(rng, topk, depth, ndt) for _ in range(bs)]
    seq_lens = [data.draw(st.integers(0, 9)) for _ in range(bs)]
    mask = library_tensor(data, mask_tensor(mode, seq_lens, ndt))
    positions, places, first, siblings = (filled(data, (bs, ndt)) for _ in range(4))
    ops.build_tree(
        index_tensor(data, np.reshape([d[0] for d in drafts], (bs, topk * (depth - 1) + 1))),
        index_tensor(data, np.reshape([d[1] for d in drafts], (bs, ndt - 1))),
        index_tensor(data, seq_lens),
        mask,
        positions,
        places,
        first,
        siblings,
        topk,
        depth,
        ndt,
        mode,
    )
    batch = [reference.candidate_parents(*draft, topk) for draft in drafts]
    assert as_list(mask) == expected_mask(mode, seq_lens, batch)
    check_links(batch, seq_lens, ndt, positions, places, first, siblings)


def check_links(
    batch: list[list[int]],
    seq_lens: list[int],
    ndt: int,
    positions: Any,
    places: Any,
    first: Any,
    siblings: Any,
) -> None:
    assert as_list(positions) == [
        [seq_len + depth for depth in reference.depths(parents)]
        for seq_len, parents in zip(seq_lens, batch, strict=True)
    ]
    assert as_list(places) == [[b * ndt + i for i in range(ndt)] for b in range(len(batch))]
    assert as_list(first) == [reference.links(parents)[0] for parents in batch]
    assert as_list(siblings) == [reference.links(parents)[1] for parents in batch]


@EXAMPLES
@given(st.data(), BATCHES)
def test_reconstruct_equals_the_reference(data: st.DataObject, size: tuple[int, int]) -> None:
    bs, ndt = size
    batch = [data.draw(trees(ndt)) for _ in range(bs)]
    seq_lens = [data.draw(st.integers(0, 9)) for _ in range(bs)]
    masks = np.reshape([reference.mask(parents) for parents in batch], (bs, ndt, ndt))
    positions, places, first, siblings = (filled(data, (bs, ndt)) for _ in range(4))
    ops.reconstruct_indices_from_tree_mask(
        library_tensor(data, masks.astype(np.bool_)),
        index_tensor(data, seq_lens),
        positions,
        places,
        first,
        siblings,
        bs,
        ndt,
    )
    check_links(batch, seq_lens, ndt, positions, places, first, siblings)


@pytest.mark.parametrize("parents", [[-1, 0, 0, 1, 2], [-1, 0, 1, 0, 3]])
def test_position_is_depth_not_the_place_in_the_block(parents: list[int]) -> None:
    mask = torch.tensor([reference.mask(parents)])
    positions, places, first, siblings = (torch.full((1, 5), -1) for _ in range(4))
    ops.reconstruct_indices_from_tree_mask(
        mask, torch.tensor([100]), positions, places, first, siblings, 1, 5
    )
    assert positions.tolist() == [[100 + depth for depth in reference.depths(parents)]]


def test_flat_layouts_are_taken_too() -> None:
    parents = [-1, 0, 0]
    flat = np.array(reference.mask(parents)).reshape(-1)
    outputs = [np.full(3, -1) for _ in range(4)]
    ops.reconstruct_indices_from_tree_mask(flat, np.array([7]), *outputs, 1, 3)
    assert [out.tolist() for out in outputs] == [[7, 8, 8], [0, 1, 2], [1, -1, -1], [-1, 2, -1]]


def test_an_empty_parent_list_is_enough_for_one_step() -> None:
    mask = np.zeros((1, 3, 3), np.bool_)
    outputs = [np.full((1, 3), -1) for _ in range(4)]
    none = np.zeros((1, 0), np.int64)
    ops.build_tree(none, np.array([[0, 3]]), np.array([5]), mask, *outputs, 4, 1, 3, 1)
    assert [out[0].tolist() for out in outputs] == [
        [5, 6, 6],
        [0, 1, 2],
        [1, -1, -1],
        [-1, 2, -1],
    ]
