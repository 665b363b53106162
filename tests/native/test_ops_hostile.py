"""Wrong values and malformed trees: refused by name, with nothing written, in bounded work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun import ops
from tests.native import tree_ops_reference as reference
from tests.native.ops_cases import arguments_of, refuse
from tests.native.tensors import EXAMPLES

BIG = 2**62
ROWS = (ops.assign_req_to_token_pool, ops.assign_extend_cache_locs)
BRANCHES = (ops.build_draft_decode_metadata, ops.assign_draft_cache_locs_contiguous)

# The operation, the argument, the place of the wrong value, the value, and what the error names.
WRONG_VALUES: list[tuple[Callable[..., Any], str, tuple[int, ...], int, str]] = [
    *[(op, "req_pool_indices", (1,), v, rf"\[1\] is {v}, ") for op in ROWS for v in (-1, 3, BIG)],
    *[(op, "start_offset", (0,), v, rf"\[0\] is {v}, ") for op in ROWS for v in (-1, 9, -BIG)],
    *[(op, "end_offset", (0,), v, rf"\[0\] is {v}, ") for op in ROWS for v in (0, 9, BIG)],
    *[(op, "end_offset", (0,), 6, "") for op in ROWS],  # spans more than out_cache_loc has
    *[(op, "req_pool_indices", (0,), v, rf"\[0\] is {v}, ") for op in BRANCHES for v in (-1, 3)],
    *[(op, "seq_lens", (1,), v, rf"\[1\] is {v}, ") for op in BRANCHES for v in (-1, 3, BIG)],
    (ops.fill_accept_out_cache_loc, "accept_index", (0, 1), 4, r"\[0, 1\] is 4, outside -1..3"),
    (ops.fill_accept_out_cache_loc, "accept_index", (0, 1), -2, r"\[0, 1\] is -2, "),
    (ops.fill_bonus_tokens, "accept_lens", (1,), 0, r"\[1\] is 0, outside 1..3"),
    (ops.fill_bonus_tokens, "accept_lens", (1,), 4, r"\[1\] is 4, "),
    (ops.compact_kv, "tgt_cache_loc", (1,), 4, r"\[1\] is 4, outside 0..3"),
    (ops.compact_kv, "src_cache_loc", (0,), -1, r"\[0\] is -1, "),
    (ops.compact_kv, "tgt_cache_loc", (1,), 0, " holds slot 0 twice, from the slots 1 and 3"),
    (ops.build_tree, "verified_seq_len", (1,), -1, r"\[1\] is -1, "),
    (ops.build_tree, "verified_seq_len", (1,), BIG, r"\[1\] is 46116860184273\d*, too long"),
    (ops.reconstruct_indices_from_tree_mask, "verified_seq_len", (0,), -1, r"\[0\] is -1, "),
]


@pytest.mark.parametrize(("operation", "name", "place", "value", "names"), WRONG_VALUES)
def test_values_out_of_range(
    operation: Callable[..., Any], name: str, place: tuple[int, ...], value: int, names: str
) -> None:
    arguments = arguments_of(operation)
    arguments[name][place] = value
    refuse(operation, arguments, f"^{name}{names}" if names else "out_cache_loc has 5 entries")


@pytest.mark.parametrize("operation", [*ROWS, *BRANCHES])
@pytest.mark.parametrize("pool_len", [-1, 0, 7, 9, BIG])
def test_pool_len_is_the_columns_of_the_table(operation: Any, pool_len: int) -> None:
    refuse(operation, {**arguments_of(operation), "pool_len": pool_len}, "^req_to_token has shape")


@pytest.mark.parametrize("operation", BRANCHES)
@pytest.mark.parametrize("change", [{"topk": 0}, {"num_steps": -1}, {"topk": BIG}, {"topk": 3}])
def test_branches_fit_a_row(operation: Any, change: dict[str, int]) -> None:
    refuse(operation, {**arguments_of(operation), **change}, "^topk is ")


@pytest.mark.parametrize(
    ("operation", "name", "value"),
    [
        (ops.build_tree, "topk", 0),
        (ops.build_tree, "topk", BIG),
        (ops.build_tree, "depth", 0),
        (ops.build_tree, "ndt", 0),
        (ops.build_tree, "ndt", BIG),
        (ops.build_tree, "mask_mode", 3),
        (ops.reconstruct_indices_from_tree_mask, "bs", -1),
        (ops.reconstruct_indices_from_tree_mask, "bs", BIG),
        (ops.reconstruct_indices_from_tree_mask, "ndt", 0),
        (ops.fill_accept_out_cache_loc, "size", 5),
        (ops.fill_accept_out_cache_loc, "size", -1),
        (ops.fill_bonus_tokens, "accept_stride", 0),
        (ops.fill_bonus_tokens, "accept_stride", BIG),
    ],
)
def test_numbers_out_of_range(operation: Any, name: str, value: int) -> None:
    refuse(operation, {**arguments_of(operation), name: value}, f"^{name} is {value}; ")


def test_outputs_that_are_too_narrow() -> None:
    arguments = arguments_of(ops.verify_tree_greedy)
    arguments["target_predict"][0, 0] = 2**31
    with pytest.raises(ops.TreeError, match=r"predicts is int32 and cannot hold 2147483648"):
        ops.verify_tree_greedy(**arguments)
    arguments = arguments_of(ops.assign_extend_cache_locs)
    arguments["req_to_token"][2, 1] = 2**31
    arguments["out_cache_loc"] = arguments["out_cache_loc"].astype(np.int32)
    refuse(ops.assign_extend_cache_locs, arguments, "^out_cache_loc is int32 and cannot hold")


def test_a_bit_mask_is_as_wide_as_its_tree() -> None:
    arguments = {**arguments_of(ops.build_tree), "mask_mode": ops.MaskMode.BITPACK}
    arguments["tree_mask"] = np.zeros((2, 4), np.uint16)
    refuse(ops.build_tree, arguments, "^tree_mask has dtype uint16; expected uint8")
    refuse(
        ops.build_tree,
        {
            **arguments,
            "ndt": 33,
            "selected_index": np.zeros((2, 32), np.int64),
            **{name: np.zeros((2, 33), np.int64) for name in LINKS},
        },
        "^ndt of a BITPACK mask is 33",
    )


LINKS = ("positions", "retrieve_index", "retrieve_next_token", "retrieve_next_sibling")


def test_a_path_longer_than_accept_index() -> None:
    arguments = arguments_of(ops.verify_tree_greedy)
    arguments["accept_index"] = np.full((2, 1), -9)
    refuse(ops.verify_tree_greedy, arguments, "accept_index has 1 columns, .* needs 2")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"retrieve_next_token": (1, 1)}, "form a loop|points at that node too"),
        ({"retrieve_next_token": (1, 0)}, "loop through the root"),
        ({"retrieve_next_token": (2, 2)}, "points at that node too"),
        ({"retrieve_next_token": (1, 3)}, r"retrieve_next_token\[1, 1\] is 3, outside -1..2"),
        ({"retrieve_next_token": (1, -2)}, r"retrieve_next_token\[1, 1\] is -2, "),
        ({"retrieve_next_sibling": (2, 1)}, "points at that node too"),
        ({"retrieve_next_sibling": (0, 1)}, "but the root has no siblings"),
        ({"retrieve_next_sibling": (1, BIG)}, r"retrieve_next_sibling\[1, 1\] is "),
        ({"retrieve_index": (2, 6)}, r"retrieve_index\[1, 2\] is 6, outside 0..5"),
    ],
)
def test_a_malformed_tree_is_its_own_sessions_error(
    change: dict[str, tuple[int, int]], what: str
) -> None:
    arguments = arguments_of(ops.verify_tree_greedy)
    for name, (node, value) in change.items():
        arguments[name][1, node] = value
    with pytest.raises(ops.TreeError, match=what) as caught:
        ops.verify_tree_greedy(**arguments)
    assert list(caught.value.sessions) == [1]
    assert arguments["predicts"].tolist() == [[8, 1, -9], [-9, -9, -9]]
    assert arguments["accept_index"].tolist() == [[0, 1], [-9, -9]]
    assert arguments["accept_token_num"].tolist() == [1, -9]


def test_a_loop_apart_from_the_root() -> None:
    arguments = arguments_of(ops.verify_tree_greedy)
    arguments["retrieve_next_token"][0] = [-1, 2, 1]
    arguments["retrieve_next_sibling"][0] = -1
    with pytest.raises(ops.TreeError, match="form a loop through node 1"):
        ops.verify_tree_greedy(**arguments)


@pytest.mark.parametrize(
    ("name", "place", "value", "what"),
    [
        ("selected_index", 0, -1, r"selected_index\[1, 0\] is -1, outside 0..5"),
        ("selected_index", 2, 6, r"selected_index\[1, 2\] is 6, "),
        ("selected_index", 1, 0, "is 0 after 0; give the candidates in ascending order"),
        ("parent_list", 1, -1, r"parent_list\[1, 1\] is -1, the parent of candidate 2, which is "),
        ("parent_list", 1, 2, "which it must come before"),
        ("parent_list", 1, BIG, "which it must come before"),
    ],
)
def test_malformed_candidates(name: str, place: int, value: int, what: str) -> None:
    arguments = arguments_of(ops.build_tree)
    arguments[name][1, place] = value
    with pytest.raises(ops.TreeError, match=what) as caught:
        ops.build_tree(**arguments)
    assert list(caught.value.sessions) == [1]
    assert arguments["positions"].tolist() == [[4, 5, 5, 6], [-9] * 4]
    assert arguments["tree_mask"][32:].all()


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ([0, 0, 1], "row 2 attends to no earlier node"),
        ([0, 1, 1], "row 2 and the row of its parent 1 differ at node 0"),
    ],
)
def test_malformed_masks(row: list[int], what: str) -> None:
    arguments = arguments_of(ops.reconstruct_indices_from_tree_mask)
    arguments["tree_mask"][1, 2] = row
    with pytest.raises(ops.TreeError, match=what) as caught:
        ops.reconstruct_indices_from_tree_mask(**arguments)
    assert list(caught.value.sessions) == [1]
    assert arguments["positions"].tolist() == [[4, 5, 6], [-9] * 3]
    arguments["tree_mask"][1, 0, 2] = True
    with pytest.raises(ops.TreeError, match="row 0 attends to the later node 2"):
        ops.reconstruct_indices_from_tree_mask(**arguments)


@EXAMPLES
@given(st.data(), st.integers(1, 6))
def test_random_links_end_in_a_path_or_an_error(data: st.DataObject, ndt: int) -> None:
    row = st.lists(st.integers(-2, ndt), min_size=ndt, max_size=ndt)
    first, siblings = data.draw(row), data.draw(row)
    accept_index = np.full((1, ndt), -1)
    try:
        ops.verify_tree_greedy(
            np.zeros(ndt, np.int64),
            accept_index,
            np.zeros(1, np.int64),
            np.array([data.draw(row)]),
            np.arange(ndt)[None],
            np.array([first]),
            np.array([siblings]),
            np.array([data.draw(row)]),
        )
    except ops.TreeError:
        return
    accepted = [node for node in accept_index[0].tolist() if node >= 0]
    assert len(set(accepted)) == len(accepted)


@EXAMPLES
@given(st.data(), st.integers(1, 6))
def test_random_masks_are_trees_or_errors(data: st.DataObject, ndt: int) -> None:
    cells = st.lists(st.booleans(), min_size=ndt * ndt, max_size=ndt * ndt)
    mask = np.tril(np.reshape(data.draw(cells), (ndt, ndt))) | np.eye(ndt, dtype=np.bool_)
    outputs = {name: np.full((1, ndt), -1) for name in LINKS}
    try:
        ops.reconstruct_indices_from_tree_mask(
            mask[None], np.zeros(1, np.int64), **outputs, bs=1, ndt=ndt
        )
    except ops.TreeError:
        return
    parents = [-1] + [max(j for j in range(t) if mask[t, j]) for t in range(1, ndt)]
    assert reference.mask(parents) == mask.tolist()


def test_nothing_to_do_is_no_error() -> None:
    for operation in (
        ops.verify_tree_greedy,
        ops.build_tree,
        ops.reconstruct_indices_from_tree_mask,
        *ROWS,
        *BRANCHES,
    ):
        arguments = {
            name: value[:0] if isinstance(value, np.ndarray) and name != "req_to_token" else value
            for name, value in arguments_of(operation).items()
        }
        operation(**({**arguments, "bs": 0} if "bs" in arguments else arguments))
    none = np.zeros(0, np.int64)
    assert ops.fill_accept_out_cache_loc(none, none, none.copy()) == 0
    ops.fill_bonus_tokens(none, none, none.copy(), 4)
    pool = np.arange(4)
    ops.compact_kv(pool, pool.copy(), none, none)
    ops.compact_kv(none, none.copy(), none, none)
    assert pool.tolist() == [0, 1, 2, 3]
