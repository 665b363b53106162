"""Owns extend attention over plain tensors, the operation behind a verify forward.

Source: the extend attention of the SGLang line of work, over a paged cache; the order of the
computation is forerun's own (docs/architecture.md, row invariance).
"""

from __future__ import annotations

from forerun import _native
from forerun.ops.tensor import Tensor


def extend_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    request_rows: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    *,
    scale: float,
    logit_cap: float = 0.0,
    sliding_window: int = 0,
    tree_mask: Tensor | None = None,
    isa: str = "",
    threads: int = 1,
) -> None:
    """Attend from new rows to the cached prefix of their request and to each other.

    In: q [T, H, D]; k and v [T, Hkv, D], the new rows; k_pool and v_pool
    [pages, page_size, Hkv, D]; page_table [requests, max_pages], the pages of each request in
    order (with page_size 1 a table of token slots); request_rows [bs], the rows of page_table;
    seq_lens [bs], prefix and new rows together; extend_seq_lens [bs], new rows;
    extend_start_loc [bs], the first row of a request in q. H is a multiple of Hkv, D of 16.
    q, k, v and pools are float32 or bfloat16 (torch.bfloat16, or its bits as numpy uint16); k, v
    and the pools alike. With bfloat16 keys, q is rounded to bfloat16; all sums are float32.
    scale multiplies the scores. logit_cap c > 0 turns a score x into c * tanh(x / c).
    sliding_window w > 0: a row sees the w positions up to its own.
    tree_mask: bool, one dense block [new, new] a request, one after the other: whether a new row
    sees another; each row sees its ancestors and itself, and earlier rows alone. Its position is
    prefix + its number of ancestors. Without it, rows see the rows before them.
    isa: level of the kernels, "" the best. threads: at least 1.
    Out: out float32 [T, H, D]; rows of no request, and rows that see nothing, are zero.

    `prefix = seq_len - extend_seq_len` is made here and nowhere else. Slots beyond a request's
    length are never read. A row's result has the same bits whether its ancestors are new rows or
    cached, whatever else the call holds, whatever the page size and the threads.
    Raises ValueError for a wrong shape, dtype, length, page or mask, naming the argument.
    """
    _native.extend_attention(
        q,
        k,
        v,
        out,
        k_pool,
        v_pool,
        page_table,
        request_rows,
        seq_lens,
        extend_seq_lens,
        extend_start_loc,
        scale,
        logit_cap,
        sliding_window,
        tree_mask,
        isa,
        threads,
    )
