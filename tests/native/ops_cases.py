"""Owns one right call of each operation, for tests that make it wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from forerun import ops

Arguments = dict[str, Any]


def links(bs: int, ndt: int) -> Arguments:
    names = ("positions", "retrieve_index", "retrieve_next_token", "retrieve_next_sibling")
    return {name: np.full((bs, ndt), -9) for name in names}


def verify_arguments() -> Arguments:
    """Two trees 0 -> {1, 2}."""
    return {
        "predicts": np.full((2, 3), -9, np.int32),
        "accept_index": np.full((2, 2), -9, np.int32),
        "accept_token_num": np.full(2, -9, np.int32),
        "candidates": np.array([[7, 8, 9], [7, 8, 9]]),
        "retrieve_index": np.arange(6).reshape(2, 3),
        "retrieve_next_token": np.array([[1, -1, -1], [1, -1, -1]]),
        "retrieve_next_sibling": np.array([[-1, 2, -1], [-1, 2, -1]]),
        "target_predict": np.array([[8, 1, 2], [9, 1, 2]]),
    }


def build_arguments() -> Arguments:
    """Two trees of the candidates 0, 1 and 2 = 0's first child; prefixes of 4 and 5."""
    return {
        "parent_list": np.array([[-1, 0, 1], [-1, 0, 1]]),
        "selected_index": np.array([[0, 1, 2], [0, 1, 2]]),
        "verified_seq_len": np.array([4, 5]),
        "tree_mask": np.ones(8 * 4 + 9 * 4, np.bool_),
        **links(2, 4),
        "topk": 2,
        "depth": 2,
        "ndt": 4,
        "mask_mode": 0,
    }


def reconstruct_arguments() -> Arguments:
    return {
        "tree_mask": np.tril(np.ones((2, 3, 3), np.bool_)),
        "verified_seq_len": np.array([4, 5]),
        **links(2, 3),
        "bs": 2,
        "ndt": 3,
    }


def rows_arguments() -> Arguments:
    return {
        "req_pool_indices": np.array([2, 0]),
        "req_to_token": np.arange(24).reshape(3, 8),
        "start_offset": np.array([1, 2]),
        "end_offset": np.array([4, 4]),
        "out_cache_loc": np.arange(50, 55),
        "pool_len": 8,
    }


def expand_arguments() -> Arguments:
    return {
        "req_to_token": np.arange(24).reshape(3, 8),
        "req_pool_indices": np.array([2, 0]),
        "seq_lens": np.array([2, 1]),
        "topk": 2,
        "num_steps": 3,
        "pool_len": 8,
    }


OPERATIONS: dict[Callable[..., Any], tuple[Callable[[], Arguments], tuple[str, ...]]] = {
    ops.verify_tree_greedy: (verify_arguments, ("predicts", "accept_index", "accept_token_num")),
    ops.build_tree: (build_arguments, ("tree_mask", *links(1, 1))),
    ops.reconstruct_indices_from_tree_mask: (reconstruct_arguments, tuple(links(1, 1))),
    ops.assign_req_to_token_pool: (rows_arguments, ("req_to_token",)),
    ops.assign_extend_cache_locs: (rows_arguments, ("out_cache_loc",)),
    ops.build_draft_decode_metadata: (expand_arguments, ()),
    ops.assign_draft_cache_locs_contiguous: (
        lambda: {**expand_arguments(), "out_cache_loc": np.full(12, -9)},
        ("out_cache_loc",),
    ),
    ops.fill_accept_out_cache_loc: (
        lambda: {
            "accept_index": np.array([[0, 2], [3, -1]]),
            "out_cache_loc": np.arange(60, 64),
            "accept_out_cache_loc": np.full(3, -9),
        },
        ("accept_out_cache_loc",),
    ),
    ops.fill_bonus_tokens: (
        lambda: {
            "accept_tokens": np.arange(6).reshape(2, 3),
            "accept_lens": np.array([3, 1]),
            "bonus_tokens": np.full(2, -9),
            "accept_stride": 3,
        },
        ("bonus_tokens",),
    ),
    ops.compact_kv: (
        lambda: {
            "k_pool": np.arange(12.0).reshape(4, 3),
            "v_pool": np.arange(12.0).reshape(4, 3),
            "tgt_cache_loc": np.array([0, 1]),
            "src_cache_loc": np.array([1, 3]),
        },
        ("k_pool", "v_pool"),
    ),
}


def arguments_of(operation: Callable[..., Any]) -> Arguments:
    return OPERATIONS[operation][0]()


def refuse(
    operation: Callable[..., Any],
    arguments: Arguments,
    match: str,
    error: type[Exception] = ValueError,
) -> None:
    """The call raises, and none of its arguments has changed."""
    before = {k: v.copy() for k, v in arguments.items() if isinstance(v, np.ndarray)}
    with pytest.raises(error, match=match):
        operation(**arguments)
    for name, value in before.items():
        np.testing.assert_array_equal(arguments[name], value)
