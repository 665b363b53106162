"""Owns the public operations on token trees and on the KV cache, on CPU tensors.

They keep the names, the order of arguments and the meaning that the EAGLE and SGLang line of work
gave them. Arguments are numpy arrays or anything with `__dlpack__` (torch tensors), each dense in
row-major order; they are used in place, never copied, and outputs are written in place. Every index
argument may be int32 or int64, each on its own.

Everything is checked before it is used. A wrong shape, dtype, layout or value is a `ValueError`
that names the argument, what was found and what is expected; something that is no tensor is a
`TypeError`. An output that shares memory with another argument is a `ValueError`. Arguments must
not be changed by other threads during a call: the GIL is released while native code runs.
"""

from __future__ import annotations

from forerun.ops.attention import extend_attention
from forerun.ops.kv import (
    assign_draft_cache_locs_contiguous,
    assign_extend_cache_locs,
    assign_req_to_token_pool,
    build_draft_decode_metadata,
    compact_kv,
    fill_accept_out_cache_loc,
    fill_bonus_tokens,
)
from forerun.ops.tensor import Tensor
from forerun.ops.trees import (
    MaskMode,
    TreeError,
    build_tree,
    reconstruct_indices_from_tree_mask,
    verify_tree_greedy,
)

__all__ = [
    "MaskMode",
    "Tensor",
    "TreeError",
    "assign_draft_cache_locs_contiguous",
    "assign_extend_cache_locs",
    "assign_req_to_token_pool",
    "build_draft_decode_metadata",
    "build_tree",
    "compact_kv",
    "extend_attention",
    "fill_accept_out_cache_loc",
    "fill_bonus_tokens",
    "reconstruct_indices_from_tree_mask",
    "verify_tree_greedy",
]
