"""Extend attention on a grid of shapes against a float64 reference, with NaN in unused slots."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.ops import extend_attention
from tests.fixtures.engines import ISA_LEVELS

PREFIXES = [0, 1, 31, 32, 33, 63, 64, 65, 1000]
NEW_ROWS = [1, 2, 5, 8, 31, 33, 64]
RATIOS = [1, 3, 4, 8]
PAGE_SIZES = [1, 16, 32, 64]
Floats = NDArray[np.float32]


def to_bf16(x: Floats) -> NDArray[np.uint16]:
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclass
class Case:
    """One or more requests over scattered pages whose unused slots are NaN."""

    prefixes: list[int]
    new: list[int]
    ratio: int
    page_size: int
    head_dim: int = 64
    kv_heads: int = 2
    tree: bool = True
    bf16: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        total, heads = sum(self.new), self.kv_heads * self.ratio
        self.q = rng.standard_normal((total, heads, self.head_dim), dtype=np.float32)
        self.k = rng.standard_normal((total, self.kv_heads, self.head_dim), dtype=np.float32)
        self.v = rng.standard_normal((total, self.kv_heads, self.head_dim), dtype=np.float32)
        held = [-(-prefix // self.page_size) for prefix in self.prefixes]
        pages = rng.permutation(sum(held) + 3)
        shape = (len(pages), self.page_size, self.kv_heads, self.head_dim)
        self.k_pool = np.full(shape, np.nan, np.float32)
        self.v_pool = np.full(shape, np.nan, np.float32)
        self.table = np.full((len(held), max(1, *held)), -1, np.int32)
        self.context: list[tuple[Floats, Floats]] = []
        taken = 0
        for b, (prefix, count) in enumerate(zip(self.prefixes, held, strict=True)):
            self.table[b, :count] = pages[taken : taken + count]
            taken += count
            keys, values = rng.standard_normal(
                (2, prefix, self.kv_heads, self.head_dim), dtype=np.float32
            )
            for p in range(prefix):
                slot = self.table[b, p // self.page_size], p % self.page_size
                self.k_pool[slot], self.v_pool[slot] = keys[p], values[p]
            self.context.append((keys, values))
        self.masks = [random_mask(n, rng) if self.tree else np.tri(n, dtype=bool) for n in self.new]

    def run(self, isa: str, **options: Any) -> Floats:
        out = np.full(self.q.shape, np.nan, np.float32)
        new = np.asarray(self.new, np.int64)
        kv = [to_bf16(x) if self.bf16 else x for x in (self.k, self.v, self.k_pool, self.v_pool)]
        extend_attention(
            self.q,
            kv[0],
            kv[1],
            out,
            kv[2],
            kv[3],
            self.table,
            np.arange(len(new), dtype=np.int32),
            np.asarray(self.prefixes, np.int32) + new.astype(np.int32),
            new,
            np.cumsum(new) - new,
            scale=self.head_dim**-0.5,
            tree_mask=np.concatenate([m.ravel() for m in self.masks]) if self.tree else None,
            isa=isa,
            **options,
        )
        return out

    def reference(self, logit_cap: float = 0.0, sliding_window: int = 0) -> Floats:
        """Plain attention, one row and head at a time, in float64."""
        round_ = (lambda x: from_bf16(to_bf16(x))) if self.bf16 else (lambda x: x)
        out = np.zeros(self.q.shape, np.float32)
        row = 0
        for (keys, values), mask in zip(self.context, self.masks, strict=True):
            for i, h in itertools.product(range(len(mask)), range(self.q.shape[1])):
                seen = row + np.flatnonzero(mask[i])
                kv_head = h // self.ratio
                k = np.concatenate([keys[:, kv_head], self.k[seen, kv_head]])
                v = np.concatenate([values[:, kv_head], self.v[seen, kv_head]])
                if sliding_window:
                    k, v = k[-sliding_window:], v[-sliding_window:]
                q = round_(self.q[row + i, h]).astype(np.float64)
                s = round_(k).astype(np.float64) @ q * self.head_dim**-0.5
                if logit_cap:
                    s = logit_cap * np.tanh(s / logit_cap)
                p = np.exp(s - s.max())
                out[row + i, h] = p @ round_(v).astype(np.float64) / p.sum()
            row += len(mask)
        return out


def random_mask(n: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    mask = np.zeros((n, n), bool)
    for i in range(n):
        if i:
            mask[i] = mask[rng.integers(0, i)]
        mask[i, i] = True
    return mask


@pytest.mark.parametrize("prefix", PREFIXES)
def test_grid_against_the_reference(prefix: int) -> None:
    """Every number of new rows, head ratio, page size and level; trees, chains and both precisions
    take turns."""
    turns = itertools.cycle(itertools.product([True, False, True], [False, True]))
    for seed, (new, ratio, page_size) in enumerate(itertools.product(NEW_ROWS, RATIOS, PAGE_SIZES)):
        tree, bf16 = next(turns)
        compare(Case([prefix], [new], ratio, page_size, 64, 1, tree, bf16, seed))


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 256])
def test_head_dims(head_dim: int) -> None:
    compare(Case([17, 70], [9, 3], 3, 16, head_dim=head_dim))


def compare(case: Case) -> None:
    expected = case.reference()
    for isa in ISA_LEVELS:
        np.testing.assert_allclose(
            case.run(isa), expected, rtol=2e-5, atol=2e-5, err_msg=f"{isa} {case}"
        )


def test_trees_of_different_sizes_in_one_call() -> None:
    compare(Case([0, 40, 33, 300], [7, 1, 20, 12], 3, 16, bf16=True, seed=5))


@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_a_row_has_the_same_bits_with_its_ancestors_cached(
    isa: str, bf16: bool, page_size: int
) -> None:
    """Each node alone, its ancestors moved into the pages, in other page sizes and batches."""
    case = Case([45, 250], [12, 9], 3, page_size, bf16=bf16, seed=page_size)
    out = case.run(isa, threads=2)
    row = 0
    for b, mask in enumerate(case.masks):
        for i in range(len(mask)):
            ancestors = row + np.flatnonzero(mask[i])[:-1]
            keys, values = case.context[b]
            alone = Case([len(keys) + len(ancestors)], [1], 3, 64 // page_size, bf16=bf16)
            alone.q, alone.k, alone.v = (x[row + i : row + i + 1] for x in (case.q, case.k, case.v))
            every_key = np.concatenate([keys, case.k[ancestors]])
            every_value = np.concatenate([values, case.v[ancestors]])
            for p in range(alone.prefixes[0]):
                slot = alone.table[0, p // alone.page_size], p % alone.page_size
                alone.k_pool[slot], alone.v_pool[slot] = every_key[p], every_value[p]
            np.testing.assert_array_equal(alone.run(isa)[0], out[row + i])
        row += len(mask)


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_logit_cap_and_sliding_window(isa: str) -> None:
    for window in (1, 7, 40, 300):
        case = Case([310, 20], [6, 11], 4, 16, seed=window)
        got = case.run(isa, logit_cap=5.0, sliding_window=window)
        np.testing.assert_allclose(got, case.reference(5.0, window), rtol=2e-5, atol=2e-5)


def test_rows_of_no_request_are_zero() -> None:
    case = Case([4], [3], 1, 16)
    out = np.full((5, *case.q.shape[1:]), np.nan, np.float32)
    pad = [
        np.concatenate([x, np.full((2, *x.shape[1:]), np.nan, np.float32)])
        for x in (case.q, case.k, case.v)
    ]
    one = np.asarray([3])
    extend_attention(
        *pad,
        out,
        case.k_pool,
        case.v_pool,
        case.table,
        np.asarray([0]),
        np.asarray([7]),
        one,
        np.asarray([0]),
        scale=0.125,
    )
    assert not out[3:].any()
    assert np.isfinite(out[:3]).all()


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("seq_lens", [2], r"seq_lens\[0\] is 2"),
        ("seq_lens", [99], r"seq_lens\[0\] (is 99|leaves)"),
        ("extend_seq_lens", [9], r"extend_seq_lens\[0\] is 9"),
        ("extend_start_loc", [1], r"extend_start_loc\[0\] is 1"),
        ("request_rows", [1], r"request_rows\[0\] is 1"),
        ("page_table", [[77]], r"page_table\[0, 0\] is 77"),
        ("tree_mask", np.ones(8, bool), "tree_mask has 8 entries"),
        ("tree_mask", np.ones(9, bool), "tree_mask allows row 0 to see row 1"),
        ("q", np.zeros((3, 2, 8), np.float32), "k|head dim"),
        ("k", np.zeros((3, 2, 64), np.float64), "k"),
        ("out", np.zeros((3, 2, 32), np.float32), "out"),
    ],
)
def test_wrong_arguments_are_named(argument: str, value: Any, message: str) -> None:
    case = Case([4], [3], 1, 16)
    arguments: dict[str, Any] = {
        "q": case.q,
        "k": case.k,
        "v": case.v,
        "out": np.zeros_like(case.q),
        "k_pool": case.k_pool,
        "v_pool": case.v_pool,
        "page_table": case.table,
        "request_rows": np.asarray([0]),
        "seq_lens": np.asarray([7]),
        "extend_seq_lens": np.asarray([3]),
        "extend_start_loc": np.asarray([0]),
    }
    arguments[argument] = np.asarray(value)
    with pytest.raises(ValueError, match=message):
        extend_attention(**arguments, scale=0.125)


def test_torch_tensors_are_taken_in_place() -> None:
    torch = pytest.importorskip("torch")
    case = Case([20], [4], 2, 16, bf16=True)
    expected = case.run("")
    out = torch.empty(case.q.shape)
    bf16 = [torch.from_numpy(x).bfloat16() for x in (case.k, case.v, case.k_pool, case.v_pool)]
    extend_attention(
        torch.from_numpy(case.q),
        bf16[0],
        bf16[1],
        out,
        bf16[2],
        bf16[3],
        torch.from_numpy(case.table),
        torch.tensor([0]),
        torch.tensor([24]),
        torch.tensor([4]),
        torch.tensor([0]),
        scale=64**-0.5,
        tree_mask=torch.from_numpy(case.masks[0].ravel()),
    )
    np.testing.assert_array_equal(out.numpy(), expected)
