"""KV bookkeeping: random page tables against the plain references, and whole verify rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun import ops
from tests.native import tree_ops_reference as reference
from tests.native.tensors import EXAMPLES, as_list, index_tensor

REQUESTS, POOL_LEN = 4, 12


@st.composite
def page_tables(draw: st.DrawFn) -> list[list[int]]:
    slots = draw(st.permutations(range(1, 1 + REQUESTS * POOL_LEN)))
    return [list(slots[r * POOL_LEN : (r + 1) * POOL_LEN]) for r in range(REQUESTS)]


SPANS = st.tuples(st.integers(0, POOL_LEN), st.integers(0, POOL_LEN)).map(
    lambda span: (min(span), max(span))
)
ROWS_AND_SPANS = st.lists(st.tuples(st.integers(0, REQUESTS - 1), SPANS), max_size=5)


@EXAMPLES
@given(st.data(), page_tables(), ROWS_AND_SPANS)
def test_assign_req_to_token_pool_scatters(
    data: st.DataObject, table: list[list[int]], sessions: list[tuple[int, tuple[int, int]]]
) -> None:
    rows, spans = [row for row, _ in sessions], [span for _, span in sessions]
    total = sum(end - start for start, end in spans)
    slots = list(range(100, 100 + total))
    tensor = index_tensor(data, table)
    ops.assign_req_to_token_pool(
        index_tensor(data, rows),
        tensor,
        index_tensor(data, [start for start, _ in spans]),
        index_tensor(data, [end for _, end in spans]),
        index_tensor(data, slots),
        POOL_LEN,
    )
    assert as_list(tensor) == reference.scatter_rows(table, rows, spans, slots)


@EXAMPLES
@given(st.data(), page_tables(), ROWS_AND_SPANS)
def test_assign_extend_cache_locs_gathers(
    data: st.DataObject, table: list[list[int]], sessions: list[tuple[int, tuple[int, int]]]
) -> None:
    rows, spans = [row for row, _ in sessions], [span for _, span in sessions]
    total = sum(end - start for start, end in spans)
    spare = data.draw(st.integers(0, 3))
    out = index_tensor(data, np.full(total + spare, -5))
    ops.assign_extend_cache_locs(
        index_tensor(data, rows),
        index_tensor(data, table),
        index_tensor(data, [start for start, _ in spans]),
        index_tensor(data, [end for _, end in spans]),
        out,
        POOL_LEN,
    )
    assert as_list(out) == reference.gather_rows(table, rows, spans) + [-5] * spare


@EXAMPLES
@given(st.data(), page_tables(), st.integers(1, 3), st.integers(1, 4))
def test_draft_decode_slots(
    data: st.DataObject, table: list[list[int]], topk: int, num_steps: int
) -> None:
    longest = POOL_LEN - topk * num_steps
    sessions = data.draw(
        st.lists(
            st.tuples(st.integers(0, REQUESTS - 1), st.integers(0, longest)),
            max_size=3,
        )
    )
    rows, seq_lens = [row for row, _ in sessions], [seq_len for _, seq_len in sessions]
    tensor = index_tensor(data, table)
    expanded = ops.build_draft_decode_metadata(
        tensor,
        index_tensor(data, rows),
        index_tensor(data, seq_lens),
        topk,
        num_steps,
        POOL_LEN,
    )
    assert type(expanded) is type(tensor) and expanded.dtype == tensor.dtype
    assert tuple(expanded.shape) == (len(rows) * topk, POOL_LEN)
    assert as_list(expanded) == reference.expand_rows(table, rows, seq_lens, topk, num_steps)

    out = index_tensor(data, np.zeros(len(rows) * topk * num_steps))
    ops.assign_draft_cache_locs_contiguous(
        index_tensor(data, rows),
        tensor,
        index_tensor(data, seq_lens),
        out,
        POOL_LEN,
        topk,
        num_steps,
    )
    spans = [(seq_len, seq_len + topk * num_steps) for seq_len in seq_lens]
    assert as_list(out) == reference.gather_rows(table, rows, spans)


@EXAMPLES
@given(st.data(), st.lists(st.integers(-1, 15), max_size=12))
def test_fill_accept_out_cache_loc_compacts(data: st.DataObject, nodes: list[int]) -> None:
    slots = data.draw(st.permutations(range(50, 66)))
    size = data.draw(st.none() | st.integers(0, len(nodes)))
    accepted = [slots[node] for node in nodes[:size] if node >= 0]
    spare = data.draw(st.integers(0, 3))
    out = index_tensor(data, np.zeros(len(accepted) + spare))
    count = ops.fill_accept_out_cache_loc(
        index_tensor(data, nodes), index_tensor(data, slots), out, size
    )
    assert count == len(accepted)
    assert as_list(out) == accepted + [0] * spare


@EXAMPLES
@given(st.data(), st.integers(1, 5), st.integers(0, 4))
def test_fill_bonus_tokens_picks_the_last(data: st.DataObject, stride: int, bs: int) -> None:
    tokens = np.arange(1000, 1000 + bs * stride).reshape(bs, stride)
    lens = [data.draw(st.integers(1, stride)) for _ in range(bs)]
    out = index_tensor(data, np.zeros(bs))
    given_tokens = tokens.reshape(-1) if data.draw(st.booleans()) else tokens
    ops.fill_bonus_tokens(index_tensor(data, given_tokens), index_tensor(data, lens), out, stride)
    assert as_list(out) == [int(tokens[b, n - 1]) for b, n in enumerate(lens)]


@EXAMPLES
@given(st.data(), st.integers(1, 12))
def test_compact_kv_moves_as_if_all_were_read_first(data: st.DataObject, slots: int) -> None:
    target = data.draw(st.lists(st.integers(0, slots - 1), unique=True))
    source = [data.draw(st.integers(0, slots - 1)) for _ in target]
    k = torch.arange(slots * 6, dtype=torch.bfloat16).reshape(slots, 2, 3)
    v = np.arange(slots, dtype=np.float64)
    k_before = k.clone()
    ops.compact_kv(k, v, index_tensor(data, target), index_tensor(data, source))
    moved = reference.move_slots(list(range(slots)), target, source)
    assert v.tolist() == moved
    assert torch.equal(k, k_before[moved])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.complex128])
def test_compact_kv_takes_items_of_any_size(dtype: Any) -> None:
    pool = np.arange(8, dtype=dtype).reshape(4, 2)
    v_pool = pool.copy()
    ops.compact_kv(pool, v_pool, np.array([1, 2]), np.array([2, 3]))
    assert pool.tolist() == [[0, 1], [4, 5], [6, 7], [6, 7]]
    assert v_pool.tolist() == pool.tolist()


def test_compact_kv_takes_interleaved_pools() -> None:
    pool = np.arange(16).reshape(4, 2, 2)
    ops.compact_kv(pool[:, 0], pool[:, 1], np.array([0, 1]), np.array([1, 0]))
    assert pool.tolist() == np.arange(16).reshape(4, 2, 2)[[1, 0, 2, 3]].tolist()


def test_compact_kv_moves_v_that_is_a_part_of_k_once() -> None:
    pool = np.arange(12).reshape(4, 3)
    ops.compact_kv(pool, pool[:, :2], np.array([0, 1]), np.array([1, 2]))
    assert pool.tolist() == [[3, 4, 5], [6, 7, 8], [6, 7, 8], [9, 10, 11]]


def test_compact_kv_takes_padded_lists() -> None:
    pool = np.arange(4)
    ops.compact_kv(pool, pool.copy(), np.array([2, 0, 0]), np.array([3, 0, 0]))
    assert pool.tolist() == [0, 1, 3, 3]


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_a_round_leaves_the_cache_of_a_fresh_prefill(page_size: int) -> None:
    """Accepts 0 -> 3 -> 7 -> 12 of 16 nodes; the committed tail must hold the K and V of those."""
    ndt, seq_len = 16, 13  # with pages of 16 and 64 the path crosses a page edge or stays inside
    rng = np.random.default_rng(page_size)
    pages = rng.permutation(128 // page_size)
    slots = (pages[:, None] * page_size + np.arange(page_size)).reshape(-1)
    pool_len = 64
    req_to_token = slots.reshape(2, pool_len).astype(np.int32)
    row, columns = np.array([1]), np.array([seq_len])
    tree = torch.from_numpy(req_to_token[1, seq_len : seq_len + ndt].astype(np.int64))

    parents = [-1, 0, 0, 0, 1, 2, 3, 3, 3, 4, 6, 7, 7, 8, 12, 12]
    tokens = list(range(500, 500 + ndt))
    target = [0] * ndt
    for node, child in ((0, 3), (3, 7), (7, 12)):
        target[node] = tokens[child]
    target[12] = 777
    outputs = [np.full((1, ndt), -1) for _ in range(4)]
    mask = np.array([reference.mask(parents)])
    ops.reconstruct_indices_from_tree_mask(mask, columns, *outputs, 1, ndt)
    predicts = np.zeros(ndt, np.int32)
    accept_index = np.full((1, 5), -1, np.int32)
    accept_token_num = np.zeros(1, np.int32)
    ops.verify_tree_greedy(
        predicts,
        accept_index,
        accept_token_num,
        np.array([tokens]),
        *outputs[1:],
        np.array([target]),
    )
    assert accept_index.tolist() == [[0, 3, 7, 12, -1]]
    emitted = predicts[accept_index[accept_index >= 0]]
    bonus = np.zeros(1, np.int64)
    ops.fill_bonus_tokens(emitted, accept_token_num + 1, bonus, len(emitted))
    assert bonus.tolist() == [777]

    # A slot's K and V are made of the depth that was computed there; committed slots hold -1.
    k_pool = np.full((128, 2, 4), -1.0, np.float32)
    v_pool = np.full((128, 2, 4), -1.0, np.float32)
    for node in range(ndt):
        k_pool[tree[node]] = node
        v_pool[tree[node]] = 100 + node
    before = k_pool.copy()
    kept = int(accept_token_num[0]) + 1
    tgt, src = np.zeros(5, np.int64), np.zeros(5, np.int64)
    ops.assign_extend_cache_locs(row, req_to_token, columns, columns + kept, tgt, pool_len)
    assert ops.fill_accept_out_cache_loc(accept_index, tree, src) == kept
    ops.compact_kv(k_pool, v_pool, tgt[:kept], src[:kept])

    tail = req_to_token[1, seq_len : seq_len + kept]
    assert k_pool[tail, 0, 0].tolist() == [0, 3, 7, 12]
    assert v_pool[tail, 1, 3].tolist() == [100, 103, 107, 112]
    untouched = np.setdiff1d(np.arange(128), tail)
    assert (k_pool[untouched] == before[untouched]).all()
