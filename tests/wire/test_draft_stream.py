"""The stream to the verify server breaks, drains, repeats itself: users get the same ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from draft_server.drafters.standalone import StandaloneDrafter
from draft_server.session import Session
from draft_server.verifier_stream import VerifierStream
from forerun.client import AsyncClient, Generation
from forerun.errors import (
    DeadlineExceeded,
    Internal,
    InvalidTree,
    SessionLost,
    SessionNotFound,
    Unavailable,
    to_status,
)
from forerun.tree import Budget
from forerun.v1 import verify_pb2
from tests.fixtures.drafting import (
    Pair,
    alphabet,
    drafting_pair,
    eventually,
    tiny_tokenizer,
)
from tests.fixtures.scripted_target import ScriptedTarget, decode_plainly, hash_next, script_next
from tests.fixtures.scripted_verifier import Live, ScriptedVerifier

PROMPT = "hello a"
PROMPT_IDS = list(PROMPT.encode())


def base(count: int) -> list[int]:
    return decode_plainly(alphabet, PROMPT_IDS, count)


Change = Callable[[verify_pb2.Verdict], None]


class Gate:
    """Holds the first session that comes to a length; the test goes on once one stands there."""

    def __init__(self, pair: Pair, length: int) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()
        self._length = length
        pair.verifier.before_round = self._wait

    async def _wait(self, live: Live) -> None:
        if len(live.committed) >= self._length and not self.open.is_set():
            self.reached.set()
            await self.open.wait()


@pytest.mark.parametrize("sessions", [1, 6])
async def test_a_restart_in_the_middle_changes_no_id(sessions: int) -> None:
    async with drafting_pair() as pair:
        gate = Gate(pair, len(PROMPT_IDS) + 30)
        streams = [pair.client.generate(PROMPT, max_tokens=120) for _ in range(sessions)]
        tasks = [asyncio.create_task(stream.result()) for stream in streams]
        await gate.reached.wait()
        gate.open.set()
        await pair.restart_verifier()
        for task in tasks:
            answer = await task
            assert list(answer.token_ids) == base(120)
            assert answer.text == bytes(base(120)).decode()
            assert answer.stats.emitted == 120
        again = pair.verifier.opens[sessions:]
        assert len(again) == sessions
        for opened in again:
            done = len(opened.prompt_token_ids) - len(PROMPT_IDS)
            assert list(opened.prompt_token_ids) == PROMPT_IDS + base(done)
            assert opened.max_tokens == 120 - done
        numbers = [opened.session for opened in pair.verifier.opens]
        assert len(set(numbers)) == len(numbers), "no number is used twice"
        assert pair.sample("reopened_total") == sessions
        assert pair.sample("verifier_up") == 1


async def test_the_draft_model_goes_on_where_it_was() -> None:
    next_token = hash_next(256)

    engine = ScriptedTarget(next_token, pages_total=100, max_context=400)
    drafter = StandaloneDrafter(engine, 256)
    budgets = {"budgets": lambda round_: Budget(4, 4)}
    async with drafting_pair(next_token, drafter, **budgets) as pair:
        gate = Gate(pair, len(PROMPT_IDS) + 50)
        task = asyncio.create_task(pair.client.complete(PROMPT, max_tokens=120))
        await gate.reached.wait()
        gate.open.set()
        await pair.restart_verifier()
        answer = await task
        assert list(answer.token_ids) == decode_plainly(next_token, PROMPT_IDS, 120)
        assert answer.stats.acceptance_rate == 1.0
        await eventually(lambda: engine.pages_free == 100, "the draft model's KV is freed")


async def test_without_a_verify_server_the_user_is_told_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with drafting_pair(config={"reopen_timeout_s": 0.3}) as pair:
        gate = Gate(pair, len(PROMPT_IDS) + 30)
        task = asyncio.create_task(pair.client.complete(PROMPT, max_tokens=120))
        await gate.reached.wait()
        gate.open.set()
        await pair.verifier.stop()
        with pytest.raises(
            Unavailable, match=r"no verify server at unix:\S+ within 0\.3 s"
        ) as caught:
            await task
        assert caught.value.reason == "VERIFIER_UNREACHABLE"
        await eventually(lambda: pair.sample("verifier_up") == 0, "the gauge drops")
        waits: list[float | None] = []
        known_target = VerifierStream.known_target

        async def counted(
            stream: VerifierStream, deadline: float | None
        ) -> verify_pb2.GetTargetInfoResponse:
            waits.append(deadline)
            return await known_target(stream, deadline)

        monkeypatch.setattr(VerifierStream, "known_target", counted)
        async with AsyncClient(pair.server.address, max_retries=2) as client:
            with pytest.raises(Unavailable):
                await client.complete(PROMPT, max_tokens=3)
        assert len(waits) == 1, "the wait is not repeated"
        await pair.verifier.start(pair.verifier_address)
        await pair.server.wait_ready()
        assert list((await pair.client.complete(PROMPT, max_tokens=3)).token_ids) == base(3)


@pytest.mark.parametrize("known", [False, True])
async def test_a_deadline_without_a_verify_server_says_so(known: bool) -> None:
    verifier = ScriptedVerifier(alphabet, tiny_tokenizer())
    async with drafting_pair(verifier=verifier, ready=known, start=known) as pair:
        await verifier.stop()
        await eventually(lambda: pair.sample("verifier_up") == 0, "the loss is noticed")
        expected = rf"no verify server was reachable at {pair.verifier_address} before.*--verifier"
        with pytest.raises(DeadlineExceeded, match=expected):
            await pair.client.complete(PROMPT, max_tokens=3, timeout=0.8)
        if not known:
            with pytest.raises(DeadlineExceeded, match=expected):
                await pair.client.model_info(timeout=0.8)


async def test_a_deadline_while_the_verify_server_is_away_says_so() -> None:
    async with drafting_pair() as pair:
        gate = Gate(pair, len(PROMPT_IDS) + 30)
        stream = pair.client.generate(PROMPT, max_tokens=120, timeout=2.0)
        task = asyncio.create_task(stream.result())
        await gate.reached.wait()
        gate.open.set()
        await pair.verifier.stop()
        with pytest.raises(DeadlineExceeded, match="no verify server was reachable at unix:"):
            await task
        assert stream.token_ids == tuple(base(len(stream.token_ids)))
        assert pair.sample("sessions") == 0


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("model_name", "another", "model_name is another, it was scripted"),
        ("model_fingerprint", "f" * 32, f"model_fingerprint is {'f' * 32}, it was {'0' * 32}"),
        ("isa", "avx2", "isa is avx2, it was scalar"),
        ("eos_token_ids", [7], r"eos_token_ids is \[7\], it was \[\]"),
        ("max_context", 1000, "max_prompt_tokens is 999, .*, max_context_tokens is 1000, .* 2000;"),
    ],
)
async def test_a_generation_does_not_go_on_on_another_target(
    field: str, value: object, told: str
) -> None:
    """Not even where it has the same name: half of the ids would be another model's."""
    async with drafting_pair() as pair:
        gate = Gate(pair, len(PROMPT_IDS) + 30)
        task = asyncio.create_task(pair.client.complete(PROMPT, max_tokens=120))
        await gate.reached.wait()
        gate.open.set()
        setattr(pair.verifier, field, value)
        await pair.restart_verifier()
        with pytest.raises(SessionLost, match=f"another target: {told}"):
            await task
        assert list((await pair.client.complete(PROMPT, max_tokens=3)).token_ids) == base(3)


async def test_another_target_is_noticed_that_comes_between_its_description_and_the_stream() -> (
    None
):
    async with drafting_pair() as pair:
        gate = Gate(pair, len(PROMPT_IDS) + 30)
        task = asyncio.create_task(pair.client.complete(PROMPT, max_tokens=120))
        await gate.reached.wait()
        gate.open.set()

        def restart() -> None:
            pair.verifier.instance, pair.verifier.model_fingerprint = "second", "1" * 32

        pair.verifier.after_info = restart
        await pair.restart_verifier()
        with pytest.raises(SessionLost, match="another target: model_fingerprint"):
            await task
        assert len(pair.verifier.opens) == 1
        assert list((await pair.client.complete(PROMPT, max_tokens=3)).token_ids) == base(3)


async def test_new_generations_wait_while_the_verify_server_restarts() -> None:
    async with drafting_pair() as pair:
        await pair.verifier.stop()
        await eventually(lambda: pair.sample("verifier_up") == 0, "the loss is noticed")
        task = asyncio.create_task(pair.client.complete(PROMPT, max_tokens=20))
        await asyncio.sleep(0.05)
        await pair.verifier.start(pair.verifier_address)
        assert list((await task).token_ids) == base(20)


async def test_a_stream_that_breaks_before_finished_loses_and_adds_nothing() -> None:
    eos = tiny_tokenizer().eos_token_ids[0]
    target = script_next(len(PROMPT_IDS), [*b"abc", eos, *b"xyz"])
    for settings, ids, reason in (
        ({"max_tokens": 9}, [*b"abc", eos], "stop"),
        ({"max_tokens": 2}, [*b"ab"], "length"),
        ({"max_tokens": 9, "stop_token_ids": [ord("b")]}, [*b"ab"], "stop"),
    ):
        async with drafting_pair(target, eos_token_ids=[eos]) as pair:
            lost = asyncio.Event()

            def withhold(
                response: verify_pb2.VerifyResponse, lost: asyncio.Event = lost
            ) -> Sequence[verify_pb2.VerifyResponse]:
                if response.finished:
                    del response.finished[:]
                    lost.set()
                return [response]

            pair.verifier.mangle = withhold
            stream = pair.client.generate(PROMPT, **settings)  # type: ignore[arg-type]
            tokens: list[int] = []
            while len(tokens) < len(ids):
                tokens += (await anext(stream)).token_ids
            await lost.wait()
            await pair.restart_verifier()
            answer = await stream.result()
            assert (list(answer.token_ids), answer.finish_reason) == (ids, reason)
            assert len(pair.verifier.opens) == 1


async def test_draining_servers_get_no_new_sessions_and_are_left() -> None:
    async with drafting_pair() as pair:
        gate = Gate(pair, len(PROMPT_IDS) + 30)
        old = asyncio.create_task(pair.client.complete(PROMPT, max_tokens=60))
        await gate.reached.wait()
        pair.verifier.drain()
        await asyncio.sleep(0.05)
        new = asyncio.create_task(pair.client.complete(PROMPT, max_tokens=40))
        await asyncio.sleep(0.05)
        assert len(pair.verifier.opens) == 1, "the new one waits"
        gate.open.set()
        assert list((await old).token_ids) == base(60)
        assert list((await new).token_ids) == base(40)
        assert pair.verifier.streams == 2


async def test_repeated_and_older_replies_are_dropped_and_counted() -> None:
    seen: list[verify_pb2.VerifyResponse] = []

    def changed(response: verify_pb2.VerifyResponse, change: Change) -> verify_pb2.VerifyResponse:
        """A copy whose verdicts have another bonus token, and whatever `change` does to them."""
        copy = verify_pb2.VerifyResponse()
        copy.CopyFrom(response)
        del copy.opened[:]
        for verdict in copy.verdicts:
            verdict.bonus_token_id = ord("!")
            change(verdict)
        return copy

    def ahead(verdict: verify_pb2.Verdict) -> None:
        verdict.round += 5

    def unknown(verdict: verify_pb2.Verdict) -> None:
        verdict.session += 1000

    def longer(verdict: verify_pb2.Verdict) -> None:
        verdict.kv.committed_len += 1

    def repeat(response: verify_pb2.VerifyResponse) -> Sequence[verify_pb2.VerifyResponse]:
        """Three wrong ones, the right one twice, and one of long ago."""
        if response.finished:
            return [response]
        seen.append(response)
        wrong = [changed(response, change) for change in (ahead, unknown, longer)]
        return [*wrong, response, response, seen[max(0, len(seen) - 4)]]

    async with drafting_pair() as pair:
        pair.verifier.mangle = repeat
        answer = await pair.client.complete(PROMPT, max_tokens=80)
        assert list(answer.token_ids) == base(80)
        assert answer.stats.emitted == 80
        assert pair.sample("stale_total", kind="verdict") >= 4 * (len(seen) - 3)
        assert pair.sample("stale_total", kind="opened") >= 1


async def test_a_session_that_the_verify_server_forgot_is_opened_again() -> None:
    forgotten: list[int] = []

    def forget(response: verify_pb2.VerifyResponse) -> Sequence[verify_pb2.VerifyResponse]:
        if response.verdicts and response.verdicts[0].round == 4 and len(forgotten) < 2:
            number = response.verdicts[0].session
            forgotten.append(number)
            status = to_status(SessionNotFound(f"session {number}"))
            error = verify_pb2.SessionError(session=number, status=status, session_ended=True)
            return [verify_pb2.VerifyResponse(errors=[error])]
        return [response]

    async with drafting_pair() as pair:
        pair.verifier.mangle = forget
        answer = await pair.client.complete(PROMPT, max_tokens=80)
        assert list(answer.token_ids) == base(80)
        assert len(forgotten) == 2 and len(pair.verifier.opens) == 3


async def test_a_session_that_kills_every_stream_is_given_up() -> None:
    def die(response: verify_pb2.VerifyResponse) -> Sequence[verify_pb2.VerifyResponse]:
        if response.opened:
            raise RuntimeError("the verify server dies")
        return [response]

    async with drafting_pair() as pair:
        pair.verifier.mangle = die
        with pytest.raises(SessionLost, match="9 times in a row"):
            await pair.client.complete(PROMPT, max_tokens=80)
        assert len(pair.verifier.opens) == 9
        pair.verifier.mangle = lambda response: [response]
        assert list((await pair.client.complete(PROMPT, max_tokens=9)).token_ids) == base(9)


async def test_a_defect_in_one_session_keeps_no_other_from_being_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Session.open_message

    def open_message(session: Session) -> verify_pb2.Open | None:
        message = original(session)
        assert message is None or message.prompt_token_ids[0] != ord("X"), "a defect"
        return message

    monkeypatch.setattr(Session, "open_message", open_message)
    async with drafting_pair() as pair:
        await pair.verifier.stop()
        await eventually(lambda: pair.sample("verifier_up") == 0, "the loss is noticed")
        tasks = [
            asyncio.create_task(pair.client.complete(prompt, max_tokens=20))
            for prompt in (PROMPT, "X", PROMPT)
        ]
        await eventually(lambda: pair.sample("sessions") == 3, "all wait")
        await pair.verifier.start(pair.verifier_address)
        first, broken, last = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(broken, Internal)
        for answer in (first, last):
            assert isinstance(answer, Generation) and list(answer.token_ids) == base(20)


async def test_a_notice_about_a_tree_does_not_end_the_session() -> None:
    def complain(response: verify_pb2.VerifyResponse) -> Sequence[verify_pb2.VerifyResponse]:
        status = to_status(InvalidTree.for_field("trees[0].tree.parents[1]", "is wrong"))
        for opened in response.opened:
            response.errors.add(session=opened.session, status=status)
        return [response]

    async with drafting_pair() as pair:
        pair.verifier.mangle = complain
        assert list((await pair.client.complete(PROMPT, max_tokens=40)).token_ids) == base(40)
        assert pair.sample("fallback_total", reason="tree_refused") == 1
