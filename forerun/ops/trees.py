"""Owns the operations on token trees: verify, build, reconstruct.

Node 0 of a tree is the root, the last committed token; links are "left child, right sibling", -1
where there is none. `bs` counts sessions, `ndt` the nodes of a tree with its root (1 to 65536).
Shapes [bs, ndt] that come from a flat layout elsewhere may be given flat where the text says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from forerun import _native
from forerun.ops.tensor import Tensor


class MaskMode(IntEnum):
    """How `build_tree` writes a mask. True or a set bit: the row's node may attend to that node."""

    FULL = 0
    """bool, ragged and flat: for each session ndt rows of verified_seq_len + ndt columns."""

    QLEN_ONLY = 1
    """bool [bs, ndt, ndt], or flat: the new rows alone."""

    BITPACK = 2
    """One unsigned integer a node, [bs, ndt] or flat, bit j = node j: uint8 for up to 8 nodes,
    uint16 for up to 16, uint32 for up to 32."""


class TreeError(ValueError):
    """Malformed trees in a call. `sessions` maps the number of each to what is wrong with it.

    Nothing was written for those sessions; all others of the call were written in full.
    """

    def __init__(self, operation: str, errors: Sequence[tuple[int, str]]) -> None:
        self.sessions: dict[int, str] = dict(errors)
        session, what = errors[0]
        more = f" (and {len(errors) - 1} more sessions)" if len(errors) > 1 else ""
        super().__init__(f"{operation}: session {session}: {what}{more}")


def verify_tree_greedy(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Accept, in each tree, the path from the root that equals the target's own argmax.

    Out, int32 or int64:
        predicts [bs*ndt] or [bs, ndt]: the target's token at each accepted node; the entry of the
            last one is the bonus token. Entries of other nodes are left as they are.
        accept_index [bs, S]: flat places (`retrieve_index`) of the accepted nodes, the root first,
            then -1. S is the number of nodes on the deepest path, the root counted.
        accept_token_num [bs]: accepted draft nodes; neither the root nor the bonus token counts.
    In, int32 or int64:
        candidates [bs, ndt]: the token of each node.
        retrieve_index [bs, ndt]: the flat place of each node, `b*ndt + i`, in 0..bs*ndt-1.
        retrieve_next_token [bs, ndt]: a node's first child, or -1.
        retrieve_next_sibling [bs, ndt]: the next child of a node's parent, or -1.
        target_predict [bs, ndt] or flat: the target's argmax after each node.

    From the last accepted node its children are scanned for the predicted token; the first that
    carries it is accepted, and the walk goes on from there. Links that form a loop, meet in one
    node, point at the root or leave the tree are a `TreeError`, found in O(ndt); so is a path
    longer than S. Other faults are a `ValueError`, with nothing written.

    Source: greedy tree verification of SpecInfer (arXiv 2305.09781) and EAGLE (arXiv 2401.15077),
    in the layout of SGLang's operation of this name.
    """
    errors = _native.verify_tree_greedy(
        predicts,
        accept_index,
        accept_token_num,
        candidates,
        retrieve_index,
        retrieve_next_token,
        retrieve_next_sibling,
        target_predict,
    )
    if errors:
        raise TreeError("verify_tree_greedy", errors)


def build_tree(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    ndt: int,
    mask_mode: int,
) -> None:
    """Derive mask, positions and links from the candidates that a drafter selected.

    In, int32 or int64:
        parent_list [bs, topk*(depth-1)+1]: the candidate behind each group of topk candidates;
            entry 0 stands for the root and is not read. May be [bs, 0] when depth is 1.
        selected_index [bs, ndt-1]: candidates in ascending order, in
            0..topk+(depth-1)*topk*topk-1; node i is selected_index[b, i-1].
        verified_seq_len [bs]: KV length before the root's own row, at least 0.
    Out:
        tree_mask: see `MaskMode`; a row attends to the root, its ancestors and itself. The prefix
            columns of FULL are the caller's to fill with true.
        positions, retrieve_index, retrieve_next_token, retrieve_next_sibling [bs, ndt] or flat,
            int32 or int64: verified_seq_len + depth of the node; b*ndt + i; the lowest-numbered
            child; the next child of the same parent.
    topk, depth: candidates a step and steps, 1 to 65536. mask_mode: a `MaskMode`; BITPACK takes
    ndt up to 32.

    Drafting step 0 yields the candidates 0..topk-1, step i >= 1 the candidates
    topk + (i-1)*topk*topk + j. The parent of candidate s is the root when s // topk is 0, else
    candidate parent_list[b, s // topk]. A parent that is not selected or does not come before its
    child (a cycle), and candidates out of range or order, are a `TreeError`, found in
    O(ndt log ndt). Other faults are a `ValueError`, with nothing written.

    Source: EAGLE-2 (arXiv 2406.16858), in the layout of SGLang's `build_tree_kernel_efficient`.
    """
    errors = _native.build_tree(
        parent_list,
        selected_index,
        verified_seq_len,
        tree_mask,
        positions,
        retrieve_index,
        retrieve_next_token,
        retrieve_next_sibling,
        topk,
        depth,
        ndt,
        mask_mode,
    )
    if errors:
        raise TreeError("build_tree", errors)


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    bs: int,
    ndt: int,
) -> None:
    """Derive positions and links of irregular trees (n-gram drafting) from their masks.

    In:
        tree_mask bool [bs, ndt, ndt] or flat: lower triangular; row t attends to the ancestors of
            node t. The diagonal is not read.
        verified_seq_len [bs], int32 or int64: KV length before the root's own row, at least 0.
    Out: positions, retrieve_index, retrieve_next_token, retrieve_next_sibling as in `build_tree`.
    bs: 0 to 2^30. ndt: 1 to 65536.

    The parent of node t is the largest j < t set in row t, its depth the number of bits set below
    t. A row above the diagonal, without a parent, or that differs from the row of its parent below
    it is a `TreeError`. Other faults are a `ValueError`, with nothing written.

    Source: the layout of SGLang's operation of this name.
    """
    errors = _native.reconstruct_indices_from_tree_mask(
        tree_mask,
        verified_seq_len,
        positions,
        retrieve_index,
        retrieve_next_token,
        retrieve_next_sibling,
        bs,
        ndt,
    )
    if errors:
        raise TreeError("reconstruct_indices_from_tree_mask", errors)
