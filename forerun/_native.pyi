"""The compiled module. `forerun.ops` and `forerun.engine` alone import it."""

import numpy as np
from numpy.typing import NDArray

from forerun.ops.tensor import Tensor

def verify_tree_greedy(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    target_predict: Tensor,
) -> list[tuple[int, str]]: ...
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
) -> list[tuple[int, str]]: ...
def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    bs: int,
    ndt: int,
) -> list[tuple[int, str]]: ...
def assign_req_to_token_pool(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None: ...
def assign_extend_cache_locs(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None: ...
def build_draft_decode_metadata(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor: ...
def assign_draft_cache_locs_contiguous(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None: ...
def fill_accept_out_cache_loc(
    accept_index: Tensor,
    out_cache_loc: Tensor,
    accept_out_cache_loc: Tensor,
    size: int | None = None,
) -> int: ...
def fill_bonus_tokens(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None: ...
def compact_kv(
    k_pool: Tensor, v_pool: Tensor, tgt_cache_loc: Tensor, src_cache_loc: Tensor
) -> None: ...
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
    scale: float,
    logit_cap: float,
    sliding_window: int,
    tree_mask: Tensor | None,
    isa: str,
    threads: int,
) -> None: ...

class CpuFeatures:
    x86_64_v2: bool
    avx2: bool
    os_avx: bool
    avx512: bool
    os_avx512: bool
    avx512_bf16: bool
    slow_bf16_products: bool
    amx: bool
    os_amx: bool
    amx_palette: bool
    amx_permission: bool
    def __init__(self) -> None: ...

def detect_cpu() -> CpuFeatures: ...
def isa_levels(cpu: CpuFeatures) -> list[tuple[str, bool, str]]: ...
def select_isa(cpu: CpuFeatures, forced: str = "") -> str: ...
def read_bandwidth(threads: int, cpus: list[int], bytes: int, repeats: int) -> float: ...

class Model:
    def __init__(
        self,
        *,
        vocab_rows: int,
        vocab_size: int,
        hidden_size: int,
        intermediate_size: int,
        layers: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        rms_norm_eps: float,
        tied: bool,
        qk_norm: bool,
        window: int,
    ) -> None: ...
    @property
    def weight_bytes(self) -> int: ...
    def load_rows(
        self, name: str, layer: int, first_row: int, values: NDArray[np.uint16]
    ) -> None: ...
    def load_vector(self, name: str, layer: int, values: NDArray[np.uint16]) -> None: ...
    def check_complete(self) -> None: ...

class Engine:
    def __init__(
        self,
        *,
        model: Model,
        bf16: bool,
        page_size: int,
        pages: int,
        max_rows: int,
        threads: int,
        cpus: list[int],
        isa: str,
        cos: NDArray[np.float32],
        sin: NDArray[np.float32],
    ) -> None: ...
    def forward(
        self,
        batch: list[
            tuple[int, NDArray[np.int32], NDArray[np.int32] | None, NDArray[np.int32], int]
        ],
        taps: list[int],
    ) -> tuple[NDArray[np.int32], NDArray[np.uint16] | None]: ...
    def compact(self, pages: NDArray[np.int32], prefix: int, rows: NDArray[np.int32]) -> None: ...
    def poison(self, page: int) -> None: ...
    def token_kv(self, slot: int) -> bytes: ...

class HeadWeights:
    def __init__(
        self,
        *,
        feature_size: int,
        hidden_size: int,
        intermediate_size: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        vocab_rows: int,
        rms_norm_eps: float,
        fused: bool,
        passes_norm: bool,
        normed_residual: bool,
        draft_ids: list[int],
    ) -> None: ...
    def load_rows(self, name: str, first_row: int, values: NDArray[np.uint16]) -> None: ...
    def load_vector(self, name: str, values: NDArray[np.uint16]) -> None: ...
    def check_complete(self) -> None: ...
    @property
    def weight_bytes(self) -> int: ...

class DraftHead:
    def __init__(
        self,
        *,
        weights: HeadWeights,
        bf16: bool,
        page_size: int,
        pages: int,
        max_rows: int,
        threads: int,
        cpus: list[int],
        isa: str,
        cos: NDArray[np.float32],
        sin: NDArray[np.float32],
        top_k: int,
    ) -> None: ...
    def draft(
        self,
        batch: list[tuple[int, NDArray[np.uint16], NDArray[np.int32], NDArray[np.int32], int, int]],
        min_product: float,
        seconds: float,
    ) -> list[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]]: ...
