"""Rounds over the real stream: output equals plain decoding, whatever the draft sends."""

from __future__ import annotations

import random

import pytest

from forerun.tree import Tree
from forerun.v1 import verify_pb2 as pb
from tests.fixtures.scripted_draft import DraftSession, ScriptedDraft
from tests.fixtures.scripted_target import (
    ScriptedTarget,
    decode_plainly,
    hash_next,
    hidden_state,
    script_next,
)
from tests.fixtures.scripted_trees import chain, random_tree
from tests.fixtures.verify_server import VOCABULARY, scripted_server

VOCAB = 1000
NEXT = hash_next(VOCAB)
EOS = 7


async def test_target_info() -> None:
    target = ScriptedTarget(NEXT, pages_total=10, page_size=4, max_context=200)
    async with scripted_server(target, eos_ids=[EOS]) as server, ScriptedDraft(
        server.address
    ) as draft:  # fmt: skip
        info = await draft.stub.GetTargetInfo(pb.GetTargetInfoRequest())
        assert (info.model_name, info.vocab_size, info.isa) == ("scripted", VOCAB, "scalar")
        assert info.model_fingerprint == "scripted"
        assert list(info.eos_token_ids) == [EOS]
        assert not info.vocabulary
        assert info.limits.max_context_tokens == 40, "one session cannot have more than the pool"
        assert info.limits.max_prompt_tokens == 39
        assert info.limits.max_nodes == 16
        whole = await draft.stub.GetTargetInfo(pb.GetTargetInfoRequest(include_vocabulary=True))
        assert list(whole.vocabulary) == VOCABULARY


@pytest.mark.parametrize("kind", ["plain", "chain", "tree"])
async def test_output_equals_plain_decoding(kind: str) -> None:
    rng = random.Random(kind)

    def answer(session: DraftSession) -> Tree | None:
        if kind == "chain":
            right = rng.randint(0, session.nodes)
            return chain(NEXT, session.committed, right, session.nodes - right, VOCAB)
        return random_tree(rng, NEXT, session.committed, nodes=rng.randint(0, session.nodes),
                           branching=3, right=0.7, vocab_size=VOCAB)  # fmt: skip

    target = ScriptedTarget(NEXT, pages_total=128)
    async with scripted_server(target) as server, ScriptedDraft(
        server.address, answer=answer
    ) as draft:  # fmt: skip
        sessions = [
            await draft.open(number, [number, 5, 9], 40, drafting=kind != "plain")
            for number in range(6)
        ]
        await draft.until_ended(*sessions)
        for session in sessions:
            assert session.tokens == decode_plainly(NEXT, session.prompt, 40)
            [finished] = session.finished
            assert finished.reason == pb.FINISH_REASON_LENGTH
            assert finished.stats.emitted == 40
            assert finished.stats.accepted > 0 or kind == "plain"
            assert session.verdicts[-1].kv.pages_held == 0
        assert server.metrics.value("emitted_total") == 6 * 40


async def test_one_message_each_way_carries_a_step_of_all_sessions() -> None:
    target = ScriptedTarget(NEXT)
    async with scripted_server(target) as server, ScriptedDraft(server.address) as draft:
        sessions = [draft.expect(number, [number]) for number in range(5)]
        opens = [draft.open_message(n, [n], 30, drafting=True, patience_us=10**7) for n in range(5)]
        await draft.send(opens=opens)
        await draft.until(lambda: all(session.opened for session in sessions))
        trees = [chain(NEXT, session.committed, 2, 1, VOCAB) for session in sessions]
        await draft.send(trees=map(draft.tree_message, sessions, trees))
        await draft.until(lambda: all(session.verdicts for session in sessions))
        assert len(draft.responses) == 2
        assert all(list(s.verdicts[0].accepted_nodes) == [1, 2] for s in sessions)


async def test_one_token_is_the_targets_own_and_takes_no_tree() -> None:
    asked: list[DraftSession] = []
    target = ScriptedTarget(NEXT)
    async with scripted_server(target) as server, ScriptedDraft(
        server.address, answer=lambda session: asked.append(session)
    ) as draft:  # fmt: skip
        session = await draft.open(1, [3, 4], 1, drafting=True)
        await draft.until_ended(session)
        assert session.tokens == decode_plainly(NEXT, [3, 4], 1)
        assert not asked
        assert session.finished[0].stats.emitted == 1


async def test_eos_as_first_token() -> None:
    target = ScriptedTarget(script_next(2, [EOS]))
    async with scripted_server(target, eos_ids=[EOS]) as server, ScriptedDraft(
        server.address
    ) as draft:  # fmt: skip
        session = await draft.open(1, [3, 4], 100, drafting=True)
        await draft.until_ended(session)
        assert session.tokens == [EOS]
        assert session.finished[0].reason == pb.FINISH_REASON_STOP


async def test_eos_inside_a_block_ends_there() -> None:
    target = ScriptedTarget(script_next(1, [9, 10, EOS, 20, 21]))
    async with scripted_server(target, eos_ids=[EOS]) as server, ScriptedDraft(
        server.address, answer=lambda session: Tree.chain([9, 10, EOS, 20, 21])
    ) as draft:  # fmt: skip
        session = await draft.open(1, [3], 100, drafting=True, patience_us=10**7)
        await draft.until_ended(session)
        assert session.tokens == [9, 10, EOS]
        [verdict] = session.verdicts
        assert list(verdict.accepted_nodes) == [1, 2]
        assert not verdict.HasField("bonus_token_id")
        stats = session.finished[0].stats
        assert (stats.drafted_nodes, stats.accepted, stats.emitted) == (4, 2, 3)


async def test_late_duplicated_and_stale_trees_change_nothing() -> None:
    """Each answer comes twice, each old one comes again, and every third is for another length."""
    target = ScriptedTarget(NEXT)
    async with scripted_server(target) as server, ScriptedDraft(server.address) as draft:
        session = await draft.open(1, [3], 30, drafting=True, patience_us=10**7)
        old: list[pb.SessionTree] = []
        await draft.until(lambda: bool(session.opened))
        while not session.ended:
            answered = session.round
            message = draft.tree_message(session, chain(NEXT, session.committed, 1, 1, VOCAB))
            elsewhere = draft.tree_message(
                session, Tree.root_only(session.tokens[-1]), committed_len=1
            )
            await draft.send(trees=[*old[-1:], elsewhere, message, message])
            old.append(message)
            await draft.until(lambda: session.ended or session.round > answered)  # noqa: B023
        assert session.tokens == decode_plainly(NEXT, [3], 30)
        assert session.finished[0].stats.stale_trees > 20


async def test_hidden_states_arrive_as_little_endian_bfloat16() -> None:
    target = ScriptedTarget(NEXT, num_layers=2)
    async with scripted_server(target, prefill_chunk=3) as server, ScriptedDraft(
        server.address
    ) as draft:  # fmt: skip
        prompt, taps = [11, 12, 13, 14], [0, 2]
        session = await draft.open(
            1, prompt, 20, drafting=True, patience_us=10**7, hidden_taps=taps
        )
        await draft.until(lambda: bool(session.opened))
        assert [(h.first_position, h.rows) for h in session.hidden] == [(0, 3), (3, 1)]
        await draft.send_tree(session, chain(NEXT, session.committed, 2, 1, VOCAB))
        await draft.until(lambda: bool(session.verdicts))
        states = session.verdicts[0].hidden_states
        assert (states.session, states.first_position, states.rows) == (1, 4, 3)
        tokens = [*prompt, *session.tokens[:3]]
        expected = [hidden_state(token, p, taps, 2) for p, token in enumerate(tokens)]
        data = b"".join(h.data for h in [*session.hidden, states])
        assert data == b"".join(state.astype("<u2").tobytes() for state in expected)


async def test_rates_over_the_wire() -> None:
    accepts = iter((0, 2, 4))

    def answer(session: DraftSession) -> Tree | None:
        right = next(accepts, None)
        if right is None:
            return None
        return chain(NEXT, session.committed, right, 4 - right, VOCAB)

    async with scripted_server(ScriptedTarget(NEXT), draft_nodes=4) as server, ScriptedDraft(
        server.address, answer=answer
    ) as draft:  # fmt: skip
        session = await draft.open(1, [3], 100, drafting=True, patience_us=10**8)
        await draft.until(lambda: len(session.verdicts) == 3)
        await draft.cancel(1)
        await draft.until_ended(session)
        [finished] = session.finished
        assert finished.reason == pb.FINISH_REASON_CANCELLED
        stats = finished.stats
        assert (stats.rounds, stats.drafted_nodes, stats.accepted, stats.emitted) == (3, 12, 6, 10)
        assert list(stats.accepted_by_depth) == [2, 2, 1, 1]
        assert len(session.tokens) == 10
