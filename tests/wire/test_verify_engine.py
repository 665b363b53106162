"""The server on the real engine with a tiny model: speculation, a pool that is too small and
prefill in chunks change no token."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from forerun.tree import Tree
from forerun.v1 import verify_pb2 as pb
from tests.fixtures.engines import base, empty, tiny_engine
from tests.fixtures.scripted_draft import ScriptedDraft
from tests.fixtures.stepping import Seen, Stepping
from tests.fixtures.tiny import shared_checkpoint

MAX_TOKENS = 40
# At most, on a busy machine.
START_S = 60.0


def mixed_tree(rng: random.Random, seen: Seen, truth: list[int], vocab_size: int) -> Tree:
    """The target's own next tokens up to somewhere, with wrong siblings and wrong ends."""
    ahead = truth[len(seen.tokens) :][: rng.randint(0, 5)]
    tokens, parents, tip = [seen.committed[-1]], [-1], 0
    for token_id in ahead:
        sibling = (token_id + rng.randint(1, vocab_size - 1)) % vocab_size
        children = [token_id, sibling]
        rng.shuffle(children)
        for child in children:
            tokens.append(child)
            parents.append(tip)
        tip = len(tokens) - 2 + children.index(token_id)
    return Tree(tuple(tokens), tuple(parents))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_trees_preemption_and_chunks_change_no_token(dtype: str, page_size: int) -> None:
    rng = random.Random(page_size)
    engine = tiny_engine(dtype=dtype, page_size=page_size, kv_tokens=128, max_rows=64)
    vocab_size = engine.info.vocab_size
    prompts = [[rng.randrange(vocab_size) for _ in range(rng.randint(1, 30))] for _ in range(6)]
    truths = [base(engine, prompt, MAX_TOKENS) for prompt in prompts]
    stepping = Stepping(engine, prefill_chunk=7, draft_nodes=16, draft_depth=8, row_budget=100)
    for number, prompt in enumerate(prompts):
        stepping.open(number, prompt, MAX_TOKENS, drafting=number % 3 != 0)
    numbers = {id(seen): number for number, seen in stepping.seen.items()}
    stepping.run(lambda seen: mixed_tree(rng, seen, truths[numbers[id(seen)]], vocab_size))
    for number, truth in enumerate(truths):
        assert stepping.seen[number].tokens == truth
    assert stepping.metrics.value("preemptions_total") > 0
    assert stepping.metrics.value("accepted_total") > 0
    assert stepping.metrics.value("prefix_hits_total") > 0, "those who come back find their pages"
    empty(engine)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_prompt_that_is_known_gives_the_same_ids_and_verdicts(dtype: str) -> None:
    engine = tiny_engine(dtype=dtype, page_size=16, kv_tokens=4096, max_rows=128)
    prompt = [(7 * n + n // 9) % 256 for n in range(512)]
    truth = base(engine, prompt, MAX_TOKENS)
    runs = []
    for _ in range(2):
        rng = random.Random(3)
        stepping = Stepping(engine, prefill_chunk=64)
        seen = stepping.open(1, prompt, MAX_TOKENS, drafting=True)
        stepping.run(lambda seen, rng=rng: mixed_tree(rng, seen, truth, 256))  # type: ignore[misc]
        assert seen.tokens == truth
        rows = stepping.metrics.value("rows_total", kind="prefill")
        runs.append((rows, [v.accepted_nodes for v in seen.verdicts]))
    assert [rows for rows, _ in runs] == [512, 16]
    assert runs[0][1] == runs[1][1]
    empty(engine)


def test_hidden_states_of_accepted_rows_are_those_of_a_prefill() -> None:
    engine = tiny_engine(dtype="bfloat16")
    taps = [0, 1, engine.info.num_layers]
    prompt = [5, 6, 7, 8, 9]
    truth = base(engine, prompt, 12)

    def states(tokens: list[int], count: int, drafting: bool) -> bytes:
        rng = random.Random(1)
        stepping = Stepping(engine, prefill_chunk=4)
        seen = stepping.open(1, tokens, count, drafting=drafting, hidden_taps=taps)
        stepping.run(lambda seen: mixed_tree(rng, seen, truth, engine.info.vocab_size))
        rounds = [verdict.hidden.data for verdict in seen.verdicts if verdict.hidden]
        return b"".join([*(hidden.data for hidden in seen.hidden), *rounds])

    drafted = states(prompt, 12, drafting=True)
    row_bytes = len(taps) * engine.info.hidden_size * np.dtype(np.uint16).itemsize
    fresh = states([*prompt, *truth], 1, drafting=False)
    assert len(drafted) >= (len(prompt) + 10) * row_bytes
    assert drafted == fresh[: len(drafted)]


async def test_the_server_as_a_process(tmp_path: Path) -> None:
    """Loads a checkpoint, serves, and ends by SIGTERM with exit code 0."""
    checkpoint = shared_checkpoint()
    address = f"unix:{tmp_path}/verify"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "verify_server", "--listen", address, "--model", str(checkpoint),
        "--dtype", "float32", "--kv-tokens", "2048", "--max-context", "256", "--threads", "1",
        env=os.environ | {"FORERUN_VERIFY_GRACE_S": "5"},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    log: list[str] = []

    async def until_serving() -> None:
        assert process.stderr is not None
        while "serving on" not in (log[-1] if log else ""):
            line = await process.stderr.readline()
            assert line, "".join(log)
            log.append(line.decode())

    try:
        await asyncio.wait_for(until_serving(), START_S)
        async with ScriptedDraft(address) as draft:
            info = await draft.stub.GetTargetInfo(pb.GetTargetInfoRequest())
            assert info.architecture == "llama"
            assert info.limits.max_context_tokens == 256
            session = await draft.open(1, [5, 6, 7], 20)
            await draft.until_ended(session)
        assert session.tokens == base(tiny_engine(dtype="float32"), [5, 6, 7], 20)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), START_S) == 0
        assert b"stopped" in await process.stderr.read()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
