"""Owns the KV bookkeeping: page-table rows, slot lists, and moving accepted K and V.

`req_to_token` [requests, pool_len] is the page table at the grain of tokens: the KV slot of each
token of each request. `req_pool_indices` [bs] names the row of each session, 0..requests-1; several
sessions may name one row. All index arguments are int32 or int64, each on its own. Every operation
raises `ValueError` for a wrong argument and then has written nothing.

Source: the layout of the operations of these names in SGLang.
"""

from __future__ import annotations

from typing import TypeVar, cast

from forerun import _native
from forerun.ops.tensor import Tensor

TensorT = TypeVar("TensorT", bound=Tensor)


def assign_req_to_token_pool(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Scatter newly allocated slots into the page table.

    In: req_pool_indices [bs]; start_offset and end_offset [bs], columns with
    0 <= start <= end <= pool_len; out_cache_loc [at least sum(end - start)], the slots, session
    after session; pool_len, the columns of req_to_token.
    Out: req_to_token [requests, pool_len]; row[start:end] of each session.
    """
    _native.assign_req_to_token_pool(
        req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len
    )


def assign_extend_cache_locs(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Gather slots densely from the page table.

    In: req_pool_indices [bs]; req_to_token [requests, pool_len]; start_offset and end_offset [bs],
    columns with 0 <= start <= end <= pool_len; pool_len, the columns of req_to_token.
    Out: out_cache_loc [at least sum(end - start)]; row[start:end] of each session, one after
    another. Entries behind them are left as they are.
    """
    _native.assign_extend_cache_locs(
        req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len
    )


def build_draft_decode_metadata(
    req_to_token: TensorT,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> TensorT:
    """Expand the page table for a draft decode of several steps: one row for each branch.

    In: req_to_token [requests, pool_len]; req_pool_indices [bs]; seq_lens [bs], the lengths of the
    prefixes, each at most pool_len - topk*num_steps; topk branches of num_steps slots each, both
    at least 1; pool_len, the columns of req_to_token.
    Returns a new tensor [bs*topk, pool_len] of the kind and dtype of req_to_token. Row b*topk + k
    holds the seq_len slots of the prefix, then the num_steps slots of branch k, which stand at
    seq_len + k*num_steps + s in the session's row, then zeros.
    """
    expanded = _native.build_draft_decode_metadata(
        req_to_token, req_pool_indices, seq_lens, topk, num_steps, pool_len
    )
    return cast(TensorT, expanded)


def assign_draft_cache_locs_contiguous(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Gather the slots that a draft decode of several steps writes to.

    In: req_pool_indices [bs]; req_to_token [requests, pool_len]; seq_lens [bs], each at most
    pool_len - topk*num_steps; pool_len, the columns of req_to_token; topk and num_steps, both at
    least 1.
    Out: out_cache_loc [bs*topk*num_steps] or [bs, topk, num_steps]; step s of branch k has the slot
    at seq_len + k*num_steps + s of the session's row.
    """
    _native.assign_draft_cache_locs_contiguous(
        req_pool_indices, req_to_token, seq_lens, out_cache_loc, pool_len, topk, num_steps
    )


def fill_accept_out_cache_loc(
    accept_index: Tensor,
    out_cache_loc: Tensor,
    accept_out_cache_loc: Tensor,
    size: int | None = None,
) -> int:
    """Compact the slots of accepted nodes, in order; returns how many there are.

    In: accept_index, any shape, places in out_cache_loc or -1 for none, as `verify_tree_greedy`
    writes them; out_cache_loc, any shape, the slot of each node of the batch; size, how many
    entries of accept_index count (all of them by default).
    Out: accept_out_cache_loc [at least the number of accepted nodes]. Entries behind them are left
    as they are.
    """
    return _native.fill_accept_out_cache_loc(
        accept_index, out_cache_loc, accept_out_cache_loc, size
    )


def fill_bonus_tokens(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    """Pick each session's bonus token, the last of the tokens that a round emitted.

    In: accept_tokens [bs*accept_stride] or [bs, accept_stride], the emitted tokens of each session;
    accept_lens [bs], how many there are, the bonus token counted, 1..accept_stride.
    Out: bonus_tokens [bs] = accept_tokens[accept_stride*b + accept_lens[b] - 1].
    """
    _native.fill_bonus_tokens(accept_tokens, accept_lens, bonus_tokens, accept_stride)


def compact_kv(
    k_pool: Tensor, v_pool: Tensor, tgt_cache_loc: Tensor, src_cache_loc: Tensor
) -> None:
    """Move K and V of accepted nodes to the slots of the committed tail.

    In: tgt_cache_loc and src_cache_loc [moves], slots 0..slots-1: the slots behind the committed
    prefix (`assign_extend_cache_locs`) and those of the accepted nodes
    (`fill_accept_out_cache_loc`), in the same order.
    Out: k_pool and v_pool [slots, ...], any dtype, as many slots in both. A slot must be dense;
    slots may lie apart, so pool[:, 0] and pool[:, 1] of one array are fine. Each may have its own
    shape of a slot, and V may be a part of K.

    All slots are read before any is written, so targets may overlap sources in any order, and
    since slots are single tokens, moves cross pages of any size. A target may come twice only from
    the same source (as the 0 <- 0 of padded lists does); two sources are a `ValueError`.
    """
    _native.compact_kv(k_pool, v_pool, tgt_cache_loc, src_cache_loc)
