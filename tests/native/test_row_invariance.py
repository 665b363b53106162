"""What the engine computes for a token depends on the token's own sequence alone, bit for bit.

The cache is compared as bytes: the keys and values of the last layer follow from everything that
the layers before it computed.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from forerun.engine import Engine, Rows
from forerun.tree import Tree, verify_greedy
from tests.fixtures.engines import ISA_LEVELS, base, cached, ids, prefill, step, tiny_engine
from tests.fixtures.tiny import random_prompts

DTYPES = ["float32", "bfloat16"]
PROMPTS = random_prompts(3, min_length=37, max_length=90, seed=7)


@pytest.fixture(params=ISA_LEVELS)
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def plain(isa: str, dtype: str) -> Engine:
    return tiny_engine(isa=isa, dtype=dtype)


def one_by_one(engine: Engine, tokens: list[int]) -> list[bytes]:
    """The cache after every token came alone: what every other way must equal."""
    sequence, _ = prefill(engine, tokens, chunk=1)
    kv = cached(engine, sequence)
    engine.release(sequence)
    return kv


@pytest.mark.parametrize("chunk", [2, 7, 16, 33, 512])
def test_chunked_prefill_equals_one_row_at_a_time(plain: Engine, chunk: int) -> None:
    for prompt in PROMPTS:
        sequence, first = prefill(plain, prompt, chunk)
        assert cached(plain, sequence) == one_by_one(plain, prompt)
        assert first == base(plain, prompt, 1)[0]
        plain.release(sequence)


@pytest.mark.parametrize("page_size", [1, 5, 16, 24, 64])
def test_page_size_changes_nothing(plain: Engine, isa: str, dtype: str, page_size: int) -> None:
    other = tiny_engine(isa=isa, dtype=dtype, page_size=page_size)
    for prompt in PROMPTS:
        sequence, _ = prefill(other, prompt, 19)
        assert cached(other, sequence) == one_by_one(plain, prompt)
        other.release(sequence)
        assert base(other, prompt, 12) == base(plain, prompt, 12)


def test_thread_count_changes_nothing(plain: Engine, isa: str, dtype: str) -> None:
    for threads in (2, 3):
        other = tiny_engine(isa=isa, dtype=dtype, threads=threads)
        sequence, _ = prefill(other, PROMPTS[0])
        assert cached(other, sequence) == one_by_one(plain, PROMPTS[0])
        other.release(sequence)


def test_the_rest_of_the_batch_changes_nothing(plain: Engine) -> None:
    """All prompts prefill in one forward, then decode together, in shrinking batches."""
    sequences = [plain.open() for _ in PROMPTS]
    for sequence, prompt in zip(sequences, PROMPTS, strict=True):
        assert plain.reserve(sequence, len(prompt) + 12)
    outs = plain.forward(
        [Rows(s, ids(p), None, "last") for s, p in zip(sequences, PROMPTS, strict=True)]
    )
    plain.commit([(s, len(p)) for s, p in zip(sequences, PROMPTS, strict=True)])
    tokens = [[int(out.predictions[0])] for out in outs]
    for round_ in range(1, 10):
        live = [i for i in range(len(PROMPTS)) if round_ <= 4 * (i + 1)]
        for i in live:
            assert plain.reserve(sequences[i], sequences[i].length + 1)
        outs = plain.forward([Rows(sequences[i], ids(tokens[i][-1:]), None, "all") for i in live])
        plain.commit([(sequences[i], 1) for i in live])
        for i, out in zip(live, outs, strict=True):
            tokens[i].append(int(out.predictions[0]))
    for i, prompt in enumerate(PROMPTS):
        assert tokens[i] == base(plain, prompt, len(tokens[i]))
        assert cached(plain, sequences[i]) == one_by_one(plain, prompt + tokens[i][:-1])
        plain.release(sequences[i])


def random_tree(root: int, truth: list[int], rng: random.Random, nodes: int) -> Tree:
    """A tree of random shape in which the target's own path appears as far as luck has it."""
    token_ids, parents, depths = [root], [-1], [0]
    used: set[tuple[int, int]] = set()
    on_path = 0
    while len(token_ids) < nodes + 1:
        parent = on_path if rng.random() < 0.4 else rng.randrange(len(token_ids))
        right = parent == on_path and depths[on_path] < len(truth) and rng.random() < 0.7
        token = truth[depths[on_path]] if right else rng.randrange(256)
        if (parent, token) in used:
            continue
        used.add((parent, token))
        token_ids.append(token)
        parents.append(parent)
        depths.append(depths[parent] + 1)
        if right:
            on_path = len(token_ids) - 1
    return Tree(tuple(token_ids), tuple(parents))


@pytest.mark.parametrize("page_size", [1, 16, 32])
def test_tree_verification_equals_plain_decoding(isa: str, dtype: str, page_size: int) -> None:
    """Every round the accepted tokens and the bonus are BASE's, and the cache is a fresh one's."""
    engine = tiny_engine(isa=isa, dtype=dtype, page_size=page_size)
    rng = random.Random(page_size)
    prompt = PROMPTS[1]
    truth = base(engine, prompt, 64)
    sequence, first = prefill(engine, prompt)
    out = [first]
    accepted_in_all = 0
    while len(out) < 48:
        tree = random_tree(out[-1], truth[len(out) :], rng, nodes=rng.choice([1, 4, 9, 24, 40]))
        assert engine.reserve(sequence, sequence.length + len(tree.token_ids))
        (rows_out,) = engine.forward(
            [Rows(sequence, ids(tree.token_ids), ids(tree.parents), "all")]
        )
        accepted, bonus = verify_greedy(tree, rows_out.predictions.tolist())
        engine.commit([(sequence, [0, *accepted])])
        out += [tree.token_ids[node] for node in accepted] + [bonus]
        accepted_in_all += len(accepted)
        assert out == truth[: len(out)]
    assert accepted_in_all > 5, "the trees must have had something to accept"
    assert cached(engine, sequence) == one_by_one(engine, prompt + out[:-1])
    engine.release(sequence)
    assert engine.pages_free == engine.info.pages_total


def test_every_node_is_predicted_as_if_its_path_were_a_chain(plain: Engine) -> None:
    """Position is depth: siblings in another order, or alone, give the same predictions."""
    prompt = PROMPTS[2]
    sequence, root = prefill(plain, prompt)
    before = sequence.length
    tree = random_tree(root, base(plain, prompt, 20)[1:], random.Random(3), nodes=30)
    assert plain.reserve(sequence, before + 31)
    (out,) = plain.forward([Rows(sequence, ids(tree.token_ids), ids(tree.parents), "all")])
    plain.commit([(sequence, 0)])
    for node in range(len(tree.token_ids)):
        chain = [root, *(tree.token_ids[i] for i in tree.path(node))]
        assert plain.reserve(sequence, before + len(chain))
        (alone,) = plain.forward([Rows(sequence, ids(chain), None, "last")])
        plain.commit([(sequence, 0)])
        assert alone.predictions[0] == out.predictions[node], f"node {node} of {tree}"
    plain.release(sequence)


def test_stale_slots_never_matter(isa: str, dtype: str) -> None:
    """Prompts that end at and beside page edges, on pages that hold nothing but NaN."""
    engine = tiny_engine(isa=isa, dtype=dtype, page_size=16, kv_tokens=512)
    for length in (9, 15, 16, 17):
        prompt = PROMPTS[0][:length]
        expected = base(engine, prompt, 8)
        engine.poison_free_pages()
        assert base(engine, prompt, 8) == expected
        sequence, root = prefill(engine, prompt)
        parents = [-1, 0, 0, 1, 2, 3]
        assert engine.reserve(sequence, length + 6)
        (out,) = engine.forward([Rows(sequence, ids([root, *expected[1:6]]), ids(parents), "all")])
        assert out.predictions[0] == expected[1]
        engine.commit([(sequence, [0])])
        assert not any(np.isnan(values(kv, dtype)).any() for kv in cached(engine, sequence))
        engine.release(sequence)


def values(kv: bytes, dtype: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    if dtype == "float32":
        return np.frombuffer(kv, np.float32)
    return (np.frombuffer(kv, np.uint16).astype(np.uint32) << 16).view(np.float32)


def test_long_contexts_cross_the_ranges_of_the_softmax(isa: str, dtype: str) -> None:
    engine = tiny_engine(isa=isa, dtype=dtype)
    prompt = random_prompts(1, min_length=530, max_length=530, seed=11)[0]
    sequence, token = prefill(engine, prompt, 300)
    expected = one_by_one(engine, prompt)
    assert cached(engine, sequence) == expected
    # A tree whose nodes lie on both sides of position 768.
    while sequence.length < 764:
        token = step(engine, sequence, token)
    truth = base(engine, prompt, 764 - 530 + 12)[764 - 530 :]
    assert truth[0] == token
    tree = Tree.chain(tuple(truth[:9]))
    branchy = Tree((*tree.token_ids, 255, 254), (*tree.parents, 0, 3))
    assert engine.reserve(sequence, sequence.length + len(branchy.token_ids))
    (out,) = engine.forward([Rows(sequence, ids(branchy.token_ids), ids(branchy.parents), "all")])
    assert out.predictions[:9].tolist() == truth[1:10]
    engine.release(sequence)
