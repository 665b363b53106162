"""Traces through both servers: who is whose parent, what spans say, and what they never say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forerun.errors import ForerunError
from forerun.obs import span_names as names
from forerun.obs.tracing import Tracer
from forerun.trace import valid_traceparent
from tests.fixtures.drafting import (
    ScriptedDrafter,
    alphabet,
    drafting_pair,
    eventually,
    following,
)
from tests.fixtures.scripted_draft import ScriptedDraft
from tests.fixtures.scripted_target import ScriptedTarget, decode_plainly, hash_next
from tests.fixtures.servers import scripted, servers, target_of
from tests.fixtures.tracing import (
    CALLER,
    SAMPLED,
    TRACE_ID,
    UNSAMPLED,
    Recorder,
    failed,
    parent_id,
    span_id,
    trace_id,
    values,
)
from tests.fixtures.verify_server import scripted_server

PROMPT = "hello a"
COUNTS = (names.ROUNDS, names.PLAIN_STEPS, names.DRAFTED, names.ACCEPTED, names.EMITTED)
OUTCOME = (names.ROUND, names.PLAIN, names.DRAFTED, names.ACCEPTED, names.EMITTED)


def pair() -> tuple[Recorder, Recorder, tuple[Tracer, Tracer]]:
    draft, verify = Recorder(names.DRAFT_SERVICE), Recorder(names.VERIFY_SERVICE)
    return draft, verify, (draft.tracer, verify.tracer)


def drafter() -> ScriptedDrafter:
    """Every tree holds what comes next, beside one node that is wrong."""
    return ScriptedDrafter(following(alphabet, width=2))


async def test_a_request_is_one_trace_through_both_servers() -> None:
    draft, verify, tracers = pair()
    async with servers(target_of(scripted(alphabet)), drafter(), tracers=tracers) as running:
        answer = await running.client.complete(PROMPT, max_tokens=60, traceparent=SAMPLED)
    spans = draft.spans + verify.spans
    assert {trace_id(span) for span in spans} == {TRACE_ID}
    request, session = draft.one(names.REQUEST), verify.one(names.SESSION)
    rounds, verified = draft.named(names.DRAFT_ROUND), verify.named(names.VERIFY_ROUND)
    prefill = verify.one(names.PREFILL)
    assert len(spans) == 3 + len(rounds) + len(verified)
    assert parent_id(request) == CALLER
    assert parent_id(session) == span_id(request)
    assert {parent_id(span) for span in rounds} == {span_id(request)}
    assert {parent_id(span) for span in (prefill, *verified)} == {span_id(session)}

    stats = answer.stats
    assert stats.accepted > 10 and stats.drafted > stats.accepted
    counted = stats.rounds, stats.plain_steps, stats.drafted, stats.accepted, stats.emitted
    assert values(request, *COUNTS) == values(session, *COUNTS) == counted
    assert len(rounds) == len(verified) == stats.rounds + stats.plain_steps
    assert [values(span, *OUTCOME) for span in rounds] == [
        values(span, *OUTCOME) for span in verified
    ]
    assert [values(span, names.ROUND)[0] for span in rounds] == list(range(1, len(rounds) + 1))
    for name, total in ((names.DRAFTED, stats.drafted), (names.ACCEPTED, stats.accepted)):
        assert sum(values(span, name)[0] for span in rounds) == total
    assert 1 + sum(values(span, names.EMITTED)[0] for span in rounds) == stats.emitted
    size = names.PROMPT_TOKENS, names.MAX_TOKENS, names.FINISH_REASON
    assert values(request, *size) == values(session, *size) == (len(PROMPT), 60, "length")
    assert values(request, names.METHOD) == ("scripted",)
    assert values(request, names.FIRST_TOKEN_NS) == (pytest.approx(1e9 * stats.ttft_s, abs=2000),)
    assert not any(failed(span) for span in spans)
    assert request.resource.attributes["service.name"] == "forerun-draft"
    assert session.resource.attributes["service.name"] == "forerun-verify"


async def test_the_times_of_a_round_are_those_that_were_measured() -> None:
    draft, verify, tracers = pair()
    async with servers(target_of(scripted(alphabet)), drafter(), tracers=tracers) as running:
        await running.client.complete(PROMPT, max_tokens=30, traceparent=SAMPLED)
    session, request = verify.one(names.SESSION), draft.one(names.REQUEST)
    for span in (verify.one(names.PREFILL), *verify.named(names.VERIFY_ROUND)):
        assert session.start_time <= span.start_time < span.end_time <= session.end_time
    for span in verify.named(names.VERIFY_ROUND):
        queue_ns, verify_ns = values(span, names.QUEUE_NS, names.VERIFY_NS)
        assert span.end_time - span.start_time == queue_ns + verify_ns
    before = request.start_time + values(request, names.FIRST_TOKEN_NS)[0]
    for span in draft.named(names.DRAFT_ROUND):
        assert span.start_time == pytest.approx(before, abs=1000)  # where the last one ended
        parts = sum(values(span, names.DRAFT_NS, names.WAIT_NS))
        assert span.end_time - span.start_time == pytest.approx(parts, abs=1000)
        before = span.end_time
    assert before <= request.end_time


async def test_plain_rounds_say_why() -> None:
    """Of the last token nothing is asked: it can only be a bonus token."""
    draft, verify, tracers = pair()
    engine = scripted(hash_next(256))
    async with servers(target_of(engine), tracers=tracers) as running:
        drafted = await running.client.complete(PROMPT, max_tokens=5, traceparent=SAMPLED)
        plain = await running.client.complete(PROMPT, max_tokens=4, plain=True, traceparent=SAMPLED)
    assert (drafted.stats.plain_steps, plain.stats.plain_steps) == (4, 3)
    one, other = draft.named(names.REQUEST)
    reasons = {span_id(one): ["no_proposal"] * 3 + [None], span_id(other): [None] * 3}
    for request, expected in reasons.items():
        rounds = [s for s in draft.named(names.DRAFT_ROUND) if parent_id(s) == request]
        assert [values(span, names.FALLBACK)[0] for span in rounds] == expected
        assert all(values(span, names.PLAIN)[0] for span in rounds)
    assert values(other, names.METHOD) == ("none",)
    assert len(verify.named(names.VERIFY_ROUND)) == 7


@pytest.mark.parametrize(
    "sampler", ["always_off", "parentbased_always_on", "parentbased_always_off"]
)
async def test_what_is_not_sampled_is_in_no_trace(
    sampler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verify server would sample a session of its own: it is told not to."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    draft = Recorder()
    monkeypatch.delenv("OTEL_TRACES_SAMPLER")
    verify = Recorder()
    tracers = draft.tracer, verify.tracer
    given = [UNSAMPLED] if sampler == "parentbased_always_on" else [UNSAMPLED, ""]
    async with servers(target_of(scripted(alphabet)), tracers=tracers) as running:
        for traceparent in given:
            answer = await running.client.complete(PROMPT, max_tokens=9, traceparent=traceparent)
            assert list(answer.token_ids) == decode_plainly(alphabet, list(PROMPT.encode()), 9)
    assert draft.spans == verify.spans == ()


@pytest.mark.parametrize("traceparent", ["", SAMPLED[:-1], SAMPLED.upper(), SAMPLED * 10_000])
async def test_without_a_context_that_can_be_read_a_request_begins_a_trace(
    traceparent: str,
) -> None:
    draft, verify, tracers = pair()
    async with servers(target_of(scripted(alphabet)), tracers=tracers) as running:
        await running.client.complete(PROMPT, max_tokens=9, traceparent=traceparent)
    request, session = draft.one(names.REQUEST), verify.one(names.SESSION)
    assert parent_id(request) == "" and trace_id(request) != TRACE_ID
    assert (trace_id(session), parent_id(session)) == (trace_id(request), span_id(request))


@pytest.mark.parametrize("flags", ["00", "01"])
async def test_the_draft_server_hands_on_the_context_of_its_own_span(flags: str) -> None:
    draft = Recorder()
    async with drafting_pair(tracer=draft.tracer) as pair:
        caller = f"00-{TRACE_ID}-{CALLER}-{flags}"
        await pair.client.complete(PROMPT, max_tokens=3, traceparent=caller)
        [sent] = [opened.traceparent for opened in pair.verifier.opens]
    assert valid_traceparent(sent)
    assert sent.startswith(f"00-{TRACE_ID}-") and sent.endswith(f"-{flags}")
    assert CALLER not in sent
    assert [span_id(span) for span in draft.named(names.REQUEST)] == (
        [sent.split("-")[2]] if flags == "01" else []
    )


async def test_a_verify_server_alone_goes_on_with_the_callers_trace() -> None:
    verify = Recorder()
    async with servers(target_of(scripted(alphabet)), tracers=(None, verify.tracer)) as running:
        await running.client.complete(PROMPT, max_tokens=9, traceparent=SAMPLED)
    session = verify.one(names.SESSION)
    assert (trace_id(session), parent_id(session)) == (TRACE_ID, CALLER)


async def test_the_client_leaves() -> None:
    draft, verify, tracers = pair()
    engine = scripted(alphabet)
    async with servers(target_of(engine), drafter(), tracers=tracers) as running:
        async for _ in running.client.generate(PROMPT, max_tokens=300, traceparent=SAMPLED):
            break
        await eventually(running.verifier.servicer.idle.is_set, "the ends of all sessions are told")
    request, session = draft.one(names.REQUEST), verify.one(names.SESSION)
    assert failed(request)
    assert values(request, names.ERROR_TYPE, names.FINISH_REASON) == ("CANCELLED", "cancelled")
    assert not failed(session)
    assert values(session, names.FINISH_REASON) == ("cancelled",)


async def test_a_stop_string_is_no_error() -> None:
    draft, verify, tracers = pair()
    async with servers(target_of(scripted(alphabet)), drafter(), tracers=tracers) as running:
        answer = await running.client.complete(
            PROMPT, max_tokens=300, stop="xyz", traceparent=SAMPLED
        )
        await eventually(running.verifier.servicer.idle.is_set, "the ends of all sessions are told")
    request, session = draft.one(names.REQUEST), verify.one(names.SESSION)
    assert not failed(request) and not failed(session)
    assert values(request, names.FINISH_REASON, names.EMITTED) == ("stop", answer.stats.emitted)
    rounds = draft.named(names.DRAFT_ROUND)
    assert len(rounds) == answer.stats.rounds + answer.stats.plain_steps
    assert 1 + sum(values(span, names.EMITTED)[0] for span in rounds) == answer.stats.emitted


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"prompt": "tell nobody", "stop": ["tell", ""]}, "INVALID_FIELD"),
        ({"messages": [{"role": "tell nobody", "content": "x"}]}, "INVALID_FIELD"),
        ({"prompt": "tell nobody" * 100}, "PROMPT_TOO_LONG"),
    ],
)
async def test_a_refused_request_ends_with_the_reason_and_quotes_nothing(
    request_: dict[str, Any], reason: str
) -> None:
    draft, verify, tracers = pair()
    async with servers(target_of(scripted(alphabet)), tracers=tracers) as running:
        with pytest.raises(ForerunError):
            await running.client.complete(**request_, traceparent=SAMPLED)
    request = draft.one(names.REQUEST)
    assert failed(request) and values(request, names.ERROR_TYPE) == (reason,)
    assert "tell" not in request.to_json()
    assert verify.spans == ()


async def test_nothing_that_was_said_is_in_a_span() -> None:
    """Every attribute is one of span_names', and every word among them one of the project's."""
    draft, verify, tracers = pair()
    async with servers(target_of(scripted(alphabet)), drafter(), tracers=tracers) as running:
        await running.client.complete(PROMPT, max_tokens=20, traceparent=SAMPLED)
    known = {value for name, value in vars(names).items() if name.isupper()}
    for span in draft.spans + verify.spans:
        assert span.attributes is not None and set(span.attributes) <= known
        assert span.name in known and not span.events
        words = {value for value in span.attributes.values() if isinstance(value, str)}
        assert words <= {"scripted", "length"}


async def test_an_engine_that_fails_ends_both_spans_with_the_reason() -> None:
    draft, verify, tracers = pair()
    engine = scripted(alphabet)
    async with servers(target_of(engine), tracers=tracers) as running:
        engine.fail_with = RuntimeError("broken")
        with pytest.raises(ForerunError):
            await running.client.complete(PROMPT, max_tokens=9, traceparent=SAMPLED)
    for span in (draft.one(names.REQUEST), verify.one(names.SESSION)):
        assert failed(span) and values(span, names.ERROR_TYPE) == ("INTERNAL",)


async def test_a_stream_that_breaks_ends_its_sessions_spans_alone() -> None:
    verify = Recorder()
    target = ScriptedTarget(hash_next(1000))
    async with (
        scripted_server(target, tracer=verify.tracer) as server,
        ScriptedDraft(server.address) as stays,
    ):
        fields = {"drafting": True, "patience_us": 10**8}
        async with ScriptedDraft(server.address) as leaves:
            gone = await leaves.open(7, [1, 2], 20, traceparent=SAMPLED, **fields)
            await leaves.until(lambda: bool(gone.opened))
            session = await stays.open(7, [1, 2, 3], 20, traceparent=SAMPLED, **fields)
            await stays.until(lambda: bool(session.opened))
        await eventually(lambda: server.scheduler.num_sessions == 1, "one session is left")
        await stays.cancel(7)
        await stays.until_ended(session)
    broken, cancelled = verify.named(names.SESSION)
    assert failed(broken) and values(broken, names.ERROR_TYPE) == ("STREAM_ENDED",)
    assert not failed(cancelled) and values(cancelled, names.PROMPT_TOKENS) == (3,)


async def test_a_number_that_is_in_use_leaves_the_span_of_its_session_alone() -> None:
    verify = Recorder()
    target = ScriptedTarget(hash_next(1000))
    async with (
        scripted_server(target, tracer=verify.tracer) as server,
        ScriptedDraft(server.address) as draft,
    ):
        session = await draft.open(1, [1, 2], 4, drafting=True, patience_us=10**8)
        await draft.until(lambda: bool(session.opened))
        await draft.open(1, [5, 6, 7], 9)
        await draft.until(lambda: bool(session.errors))
        await draft.cancel(1)
        await draft.until_ended(session)
    span = verify.one(names.SESSION)
    assert values(span, names.PROMPT_TOKENS, names.FINISH_REASON) == (2, "cancelled")


async def test_a_session_that_is_reopened_has_another_span_in_the_same_trace() -> None:
    draft, verify, tracers = pair()
    again = Recorder(names.VERIFY_SERVICE)
    engine = scripted(alphabet)
    async with servers(target_of(engine), tracers=tracers) as running:
        engine.hold()
        engine.let_pass(6)
        stream = running.client.generate(PROMPT, max_tokens=200, traceparent=SAMPLED)
        task = asyncio.create_task(stream.result())
        await asyncio.to_thread(lambda: [engine.wait_entered() for _ in range(7)])
        stopping = asyncio.create_task(running.verifier.stop(0))
        engine.open_gate()
        await stopping
        await running.replace_verifier(target_of(scripted(alphabet)), again.tracer)
        answer = await task
    request = draft.one(names.REQUEST)
    broken, whole = verify.one(names.SESSION), again.one(names.SESSION)
    assert failed(broken) and values(broken, names.ERROR_TYPE) == ("DRAINING",)
    assert not failed(whole) and not failed(request)
    assert parent_id(broken) == parent_id(whole) == span_id(request)
    rounds = draft.named(names.DRAFT_ROUND)
    assert len(rounds) == answer.stats.rounds + answer.stats.plain_steps
