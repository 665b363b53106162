"""Bad drafts, bad requests, lost peers and a broken engine: each harms itself alone."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from forerun.errors import InvalidArgument, InvalidTree
from forerun.tree import Tree
from forerun.v1 import tree_pb2
from forerun.v1 import verify_pb2 as pb
from tests.fixtures.scripted_draft import HANG_S, DraftSession, ScriptedDraft
from tests.fixtures.scripted_target import ScriptedTarget, decode_plainly, hash_next
from tests.fixtures.scripted_trees import chain
from tests.fixtures.verify_server import scripted_server
from verify_server.app import SERVICE, VerifyServer
from verify_server.streams import READ_AHEAD

VOCAB = 1000
NEXT = hash_next(VOCAB)
LONG_US = 10**8

MALFORMED: dict[str, tuple[list[int], list[int], str]] = {
    # the tokens behind the root, all parents, the field at fault
    "empty": ([], [], "tree.token_ids"),
    "no root parent": ([1], [0, 0], "tree.parents[0]"),
    "self parent": ([1, 2], [-1, 0, 2], "tree.parents[2]"),
    "cycle": ([1, 2], [-1, 2, 1], "tree.parents[1]"),
    "parent beyond": ([1], [-1, 7], "tree.parents[1]"),
    "negative parent": ([1], [-1, -5], "tree.parents[1]"),
    "two roots": ([1, 2], [-1, 0, -1], "tree.parents[2]"),
    "same sibling": ([1, 1], [-1, 0, 0], "tree.token_ids[2]"),
    "vocabulary": ([VOCAB], [-1, 0], "tree.token_ids[1]"),
    "2**31": ([2**31], [-1, 0], "tree.token_ids[1]"),
    "2**32 - 1": ([2**32 - 1], [-1, 0], "tree.token_ids[1]"),
    "fewer parents": ([1, 2], [-1, 0], "tree.parents"),
    "too deep": (list(range(1, 9)), list(range(-1, 8)), "tree.parents[8]"),
    "too many": (list(range(1, 18)), [-1] + [0] * 17, "tree.token_ids"),
    "a million": ([1] * 10**6, [-1] + [0] * 10**6, "tree.token_ids"),
}


@pytest.mark.parametrize("kind", MALFORMED)
async def test_a_malformed_tree_costs_its_author_one_plain_round(kind: str) -> None:
    tokens, parents, field = MALFORMED[kind]

    def answer(session: DraftSession) -> Tree | None:
        return chain(NEXT, session.committed, 2, 0, VOCAB)

    target = ScriptedTarget(NEXT)
    async with (
        scripted_server(target, max_depth=7) as server,
        ScriptedDraft(server.address, answer=answer) as good_draft,
        ScriptedDraft(server.address) as bad_draft,
    ):
        bad = await bad_draft.open(1, [3], 4, drafting=True, patience_us=LONG_US)
        await bad_draft.until(lambda: bool(bad.opened))
        root = [bad.tokens[-1]] if parents else []
        tree = tree_pb2.Tree(token_ids=[*root, *tokens], parents=parents)
        message = pb.SessionTree(session=1, round=1, committed_len=2, tree=tree)
        good = await good_draft.open(1, [5], 30, drafting=True)
        await bad_draft.send(trees=[message])
        await bad_draft.until(lambda: bool(bad.verdicts))
        [error] = bad.errors
        assert isinstance(error, InvalidTree)
        assert [violation.field for violation in error.fields] == [field]
        assert not bad.ended
        assert bad.verdicts[0].plain
        for length in (3, 4):
            await bad_draft.until(lambda: len(bad.committed) == length)  # noqa: B023
            await bad_draft.send_tree(bad, Tree.root_only(bad.tokens[-1]))
        await bad_draft.until_ended(bad)
        await good_draft.until_ended(good)
        assert bad.tokens == decode_plainly(NEXT, [3], 4)
        assert good.tokens == decode_plainly(NEXT, [5], 30)
        assert server.metrics.value("stale_trees_total", reason="malformed") == 1


async def test_a_root_that_is_not_the_last_token_and_odd_confidences() -> None:
    async with scripted_server(ScriptedTarget(NEXT)) as server, ScriptedDraft(
        server.address
    ) as draft:  # fmt: skip
        session = await draft.open(1, [3], 20, drafting=True, patience_us=LONG_US)
        await draft.until(lambda: bool(session.opened))
        await draft.send_tree(session, Tree.chain([session.tokens[-1] ^ 1, 4]))
        await draft.until(lambda: bool(session.verdicts))
        tree = tree_pb2.Tree(token_ids=[session.tokens[-1]], parents=[-1], confidences=b"\0\0")
        await draft.send(trees=[pb.SessionTree(session=1, round=2, committed_len=3, tree=tree)])
        await draft.until(lambda: len(session.verdicts) == 2)
        fields = [e.fields[0].field for e in session.errors]
        assert fields == ["tree.token_ids[0]", "tree.confidences"]


async def test_random_bytes_as_trees_never_end_a_session() -> None:
    rng = random.Random(47)
    async with scripted_server(ScriptedTarget(NEXT), patience_ms=1) as server, ScriptedDraft(
        server.address
    ) as draft:  # fmt: skip
        session = await draft.open(1, [3], 60, drafting=True)
        await draft.until(lambda: bool(session.opened))
        while not session.ended:
            count = rng.randint(0, 6)
            tree = tree_pb2.Tree(
                token_ids=[rng.choice([session.tokens[-1], rng.randrange(2**32)])
                           for _ in range(count)],
                parents=[rng.randint(-2, 6) for _ in range(rng.choice([count, count + 1]))],
                confidences=rng.randbytes(rng.choice([0, count, 3])),
            )  # fmt: skip
            seen = session.round
            stamp: dict[str, Any] = {"round": seen, "committed_len": len(session.committed)}
            await draft.send(trees=[pb.SessionTree(session=1, tree=tree, **stamp)])
            await draft.until(lambda: session.ended or session.round > seen)  # noqa: B023
        assert session.tokens == decode_plainly(NEXT, [3], 60)
        assert all(isinstance(error, InvalidTree) for error in session.errors)


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"prompt_token_ids": []}, "open.prompt_token_ids", "EMPTY_PROMPT"),
        ({"prompt_token_ids": [1, 2, VOCAB]}, "open.prompt_token_ids[2]", "TOKEN_OUT_OF_RANGE"),
        ({"prompt_token_ids": [2**32 - 1]}, "open.prompt_token_ids[0]", "TOKEN_OUT_OF_RANGE"),
        ({"prompt_token_ids": [1] * 200}, "open.prompt_token_ids", "PROMPT_TOO_LONG"),
        ({"max_tokens": 0}, "open.max_tokens", "INVALID_FIELD"),
        ({"stop_token_ids": [1, VOCAB]}, "open.stop_token_ids[1]", "TOKEN_OUT_OF_RANGE"),
        ({"stop_token_ids": [1] * 2000}, "open.stop_token_ids", "INVALID_FIELD"),
        ({"hidden_taps": [0, 4]}, "open.hidden_taps[1]", "INVALID_FIELD"),
        ({"hidden_taps": [2, 1]}, "open.hidden_taps[1]", "INVALID_FIELD"),
        ({"hidden_taps": [0, 1, 2, 3, 3]}, "open.hidden_taps", "INVALID_FIELD"),
    ],
)
async def test_a_bad_open_names_its_field(fields: dict[str, Any], field: str, reason: str) -> None:
    values: dict[str, Any] = {"prompt_token_ids": [1], "max_tokens": 5} | fields
    async with scripted_server(ScriptedTarget(NEXT)) as server, ScriptedDraft(
        server.address
    ) as draft:  # fmt: skip
        bad, good = draft.expect(1, []), draft.expect(2, [4])
        await draft.send(opens=[pb.Open(session=1, **values), draft.open_message(2, [4], 5)])
        await draft.until_ended(bad, good)
        [error] = bad.errors
        assert isinstance(error, InvalidArgument)
        assert (error.reason, error.fields[0].field) == (reason, field)
        if field == "open.max_tokens":
            assert error.fields[0].description == "is 0; it must be in 1..4294967295"
        assert good.tokens == decode_plainly(NEXT, [4], 5)


async def test_a_message_too_large_ends_its_stream_alone() -> None:
    async with (
        scripted_server(ScriptedTarget(NEXT), max_message_bytes=64 << 10) as server,
        ScriptedDraft(server.address) as large,
        ScriptedDraft(server.address) as other,
    ):
        await large.open(1, [1] * 100_000, 5)
        assert await large.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        session = await other.open(1, [1], 5)
        await other.until_ended(session)


async def test_cancelling_while_a_forward_runs_frees_every_page() -> None:
    """Between "tree sent" and "verified", again and again; pages come back, and what follows on
    them has no foreign KV."""
    target = ScriptedTarget(NEXT, pages_total=16)
    async with scripted_server(target) as server, ScriptedDraft(server.address) as draft:
        for number in range(0, 400, 2):
            victim = await draft.open(number, [number], 50, drafting=True, patience_us=LONG_US)
            await draft.until(lambda: bool(victim.opened))  # noqa: B023
            target.hold()
            await draft.send_tree(victim, chain(NEXT, victim.committed, 3, 2, VOCAB))
            await asyncio.to_thread(target.wait_entered)
            await draft.cancel(number)
            next_one = await draft.open(number + 1, [7, number], 4)
            target.open_gate()
            await draft.until_ended(victim, next_one)
            assert victim.finished[0].reason == pb.FINISH_REASON_CANCELLED
            assert next_one.tokens == decode_plainly(NEXT, [7, number], 4)
        assert target.pages_free == target.info.pages_total


async def test_a_draft_that_dies_in_the_middle_of_a_forward_leaves_nothing() -> None:
    target = ScriptedTarget(NEXT, pages_total=16)
    async with scripted_server(target) as server, ScriptedDraft(server.address) as survivor:
        for number in range(20):
            async with ScriptedDraft(server.address) as dying:
                session = await dying.open(1, [number], 100, drafting=True, patience_us=LONG_US)
                await dying.until(lambda: bool(session.opened))  # noqa: B023
                target.hold()
                await dying.send_tree(session, chain(NEXT, session.committed, 3, 2, VOCAB))
                await asyncio.to_thread(target.wait_entered)
            target.open_gate()
            after = await survivor.open(number, [number, 1], 10)
            await survivor.until_ended(after)
            assert after.tokens == decode_plainly(NEXT, [number, 1], 10)
            await _until_idle(server)
            assert target.pages_free == target.info.pages_total


async def test_a_half_closed_stream_ends_its_sessions() -> None:
    target = ScriptedTarget(NEXT)
    async with scripted_server(target) as server, ScriptedDraft(server.address) as draft:
        session = await draft.open(1, [1], 100, drafting=True, patience_us=LONG_US)
        await draft.until(lambda: bool(session.opened))
        await draft.call.done_writing()
        assert await draft.code() is grpc.StatusCode.OK
        await _until_idle(server)
        assert target.pages_free == target.info.pages_total


async def test_a_stream_that_nobody_reads_is_ended_and_others_go_on() -> None:
    target = ScriptedTarget(NEXT, hidden_size=1 << 15, pages_total=1000, max_context=1000)
    async with (
        scripted_server(target, outbox_bytes=1 << 20) as server,
        ScriptedDraft(server.address, reads=False) as deaf,
        ScriptedDraft(server.address) as other,
    ):
        # 256 KiB a token: more than gRPC's own buffers and the bound hold together.
        await deaf.open(1, [1], 400, hidden_taps=[0, 1, 2, 3])
        session = await other.open(1, [2], 300)
        await other.until_ended(session)
        assert session.tokens == decode_plainly(NEXT, [2], 300)
        await _until_idle(server)
        assert server.metrics.value("emitted_total") < 300 + 400
        assert server.servicer.num_streams == 1
        with suppress(asyncio.InvalidStateError):  # the end may have come to it already
            await deaf.open(2, [1], 400)
        again = await other.open(2, [3], 20)
        await other.until_ended(again)
        assert server.scheduler.num_sessions == 0, "nothing runs for a stream that was ended"
        assert target.pages_free == target.info.pages_total


async def test_messages_that_are_read_ahead_are_bounded() -> None:
    target = ScriptedTarget(NEXT)
    async with scripted_server(target) as server, ScriptedDraft(server.address) as draft:
        target.hold()
        session = await draft.open(1, [1], 3)
        await asyncio.to_thread(target.wait_entered)
        flood = pb.SessionTree(session=1, round=99, tree=tree_pb2.Tree(token_ids=[1] * 16))
        for _ in range(10 * READ_AHEAD):
            await draft.send(trees=[flood])
            assert server.servicer.engine_thread.num_waiting <= READ_AHEAD
        target.open_gate()
        await draft.until_ended(session)
        assert session.tokens == decode_plainly(NEXT, [1], 3)


@pytest.mark.parametrize("field", ["opens", "trees", "cancels"])
async def test_a_message_of_too_many_entries_ends_its_stream_alone(field: str) -> None:
    """400,000 empty ones are 2 MB, and would keep event loop and engine busy for half a minute."""
    entries: dict[str, list[Any]] = {
        "opens": [pb.Open(session=number) for number in range(9)],
        "trees": [pb.SessionTree(session=number, round=1) for number in range(9)],
        "cancels": [pb.Cancel(session=number) for number in range(9)],
    }
    async with (
        scripted_server(ScriptedTarget(NEXT), max_sessions=4) as server,
        ScriptedDraft(server.address) as large,
        ScriptedDraft(server.address) as other,
    ):
        limits = (await large.stub.GetTargetInfo(pb.GetTargetInfoRequest())).limits
        assert limits.max_entries == 8
        for number in range(9):
            large.expect(number, [])
        await large.send(**{name: some[:8] for name, some in entries.items()})
        session = await large.open(100, [2], 3)
        await large.until_ended(session)
        assert session.tokens == decode_plainly(NEXT, [2], 3), "the limit itself is fine"
        before = server.metrics.value("errors_total", reason="EMPTY_PROMPT")
        dropped = server.metrics.value("stale_trees_total", reason="unknown_session")
        await large.send(**{field: entries[field]})
        assert await large.code() is grpc.StatusCode.INVALID_ARGUMENT
        told = f"{field}: has 9 entries; at most 8 may be in one message"
        assert told in await large.call.details()
        assert server.metrics.value("errors_total", reason="EMPTY_PROMPT") == before
        assert server.metrics.value("stale_trees_total", reason="unknown_session") == dropped
        session = await other.open(1, [1], 5)
        await other.until_ended(session)
        assert session.tokens == decode_plainly(NEXT, [1], 5)


async def test_opens_for_another_instance_are_refused_before_any_is_opened() -> None:
    async with (
        scripted_server(ScriptedTarget(NEXT)) as server,
        ScriptedDraft(server.address) as stale,
        ScriptedDraft(server.address) as draft,
    ):
        instance = (await draft.stub.GetTargetInfo(pb.GetTargetInfoRequest())).instance
        opens = [pb.Open(session=1, prompt_token_ids=[2], max_tokens=3)]
        await stale.send(opens=opens, instance="of another process")
        assert await stale.code() is grpc.StatusCode.UNAVAILABLE
        assert "the server has restarted" in await stale.call.details()
        assert server.metrics.value("emitted_total") == 0
        session = draft.expect(1, [2])
        await draft.send(opens=opens, instance=instance)
        await draft.until_ended(session)
        assert session.tokens == decode_plainly(NEXT, [2], 3)


async def test_entries_that_are_read_ahead_are_bounded() -> None:
    """Whatever was read is taken before the next step of everybody."""
    target = ScriptedTarget(NEXT)
    async with scripted_server(target) as server, ScriptedDraft(server.address) as draft:
        target.hold()
        session = await draft.open(1, [1], 3)
        await asyncio.to_thread(target.wait_entered)
        flood = [pb.Cancel(session=number) for number in range(100, 356)]
        sending = asyncio.gather(*(draft.send(cancels=flood) for _ in range(40)))
        await asyncio.wait([sending], timeout=1.0)
        assert server.servicer.engine_thread.num_waiting <= READ_AHEAD // len(flood)
        target.open_gate()
        await sending
        await draft.until_ended(session)
        assert session.tokens == decode_plainly(NEXT, [1], 3)


async def test_bytes_that_are_read_ahead_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 messages of 64 MiB would be more than most machines have."""
    monkeypatch.setattr("verify_server.streams.READ_AHEAD_BYTES", 1 << 20)
    target = ScriptedTarget(NEXT)
    async with scripted_server(target) as server, ScriptedDraft(server.address) as draft:
        target.hold()
        session = await draft.open(1, [1], 3)
        await asyncio.to_thread(target.wait_entered)
        flood = pb.SessionTree(session=1, round=99, tree=tree_pb2.Tree(token_ids=[1] * (1 << 18)))
        sending = asyncio.gather(*(draft.send(trees=[flood]) for _ in range(40)))
        await asyncio.wait([sending], timeout=1.0)
        assert server.servicer.engine_thread.num_waiting <= 4
        target.open_gate()
        await sending
        await draft.until_ended(session)
        assert session.tokens == decode_plainly(NEXT, [1], 3)


async def test_deadlines_end_sessions_with_an_error() -> None:
    target = ScriptedTarget(NEXT)
    async with scripted_server(target) as server, ScriptedDraft(server.address) as draft:
        session = await draft.open(1, [1], 50, drafting=True, patience_us=LONG_US, deadline_ms=30)
        await draft.until_ended(session)
        assert session.errors[0].code == "DEADLINE_EXCEEDED"
        assert not session.finished
        assert target.pages_free == target.info.pages_total


async def test_an_engine_failure_ends_sessions_and_is_seen_by_health() -> None:
    target = ScriptedTarget(NEXT)
    async with scripted_server(target) as server, ScriptedDraft(server.address) as draft:
        session = await draft.open(1, [1], 50, drafting=True, patience_us=LONG_US)
        await draft.until(lambda: bool(session.opened))
        target.fail_with = RuntimeError("out of luck")
        await draft.send_tree(session, Tree.root_only(session.tokens[-1]))
        await draft.until_ended(session)
        assert session.errors[0].code == "INTERNAL"
        assert "luck" not in session.errors[0].message
        late = await draft.open(2, [1], 50)
        await draft.until_ended(late)
        assert late.errors[0].code == "INTERNAL"
        health = health_pb2_grpc.HealthStub(draft.channel)
        reply = await health.Check(health_pb2.HealthCheckRequest())
        assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING


class HealthWatch:
    """What a server tells of its health, one change after the other."""

    def __init__(self, draft: ScriptedDraft) -> None:
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        self.call: Any = health_pb2_grpc.HealthStub(draft.channel).Watch(request)

    async def told(self) -> str:
        response = await asyncio.wait_for(self.call.read(), HANG_S)
        return health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)


async def test_an_engine_that_hangs_is_seen_by_health_until_it_moves_again() -> None:
    target = ScriptedTarget(NEXT)
    async with scripted_server(target, hang_s=0.1) as server, ScriptedDraft(
        server.address
    ) as draft:  # fmt: skip
        health = HealthWatch(draft)
        assert await health.told() == "SERVING"
        target.hold()
        session = await draft.open(1, [1], 20)
        assert await health.told() == "NOT_SERVING"
        target.open_gate()
        await draft.until_ended(session)
        assert session.tokens == decode_plainly(NEXT, [1], 20)
        assert await health.told() == "SERVING"
        health.call.cancel()


async def test_an_engine_that_fails_after_it_hung_stays_not_serving() -> None:
    target = ScriptedTarget(NEXT)
    async with scripted_server(target, hang_s=0.1) as server, ScriptedDraft(
        server.address
    ) as draft:  # fmt: skip
        health = HealthWatch(draft)
        assert await health.told() == "SERVING"
        target.hold()
        target.fail_with = RuntimeError("out of luck")
        session = await draft.open(1, [1], 20)
        assert await health.told() == "NOT_SERVING"
        target.open_gate()
        await draft.until_ended(session)
        change = asyncio.ensure_future(health.told())
        changed, _ = await asyncio.wait({change}, timeout=0.5)  # the heartbeat looks meanwhile
        assert not changed
        change.cancel()
        health.call.cancel()


async def test_a_server_stops_although_its_engine_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verify_server.app.CLOSE_S", 0.1)
    target = ScriptedTarget(NEXT)
    async with scripted_server(target, stop=False) as server, ScriptedDraft(
        server.address
    ) as draft:  # fmt: skip
        target.hold()
        await draft.open(1, [1], 20)
        await asyncio.to_thread(target.wait_entered)
        await asyncio.wait_for(server.stop(0), HANG_S)
        target.open_gate()


async def _until_idle(server: VerifyServer) -> None:
    """The end of a stream reaches the server in its own time."""
    await asyncio.wait_for(server.servicer.idle.wait(), 20)
