"""The service around generations: what is refused, health, start, stop, tokens, metrics."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from draft_server.servicer import TEXT_THREADS
from forerun.client import AsyncClient
from forerun.errors import (
    DeadlineExceeded,
    InvalidArgument,
    ModelMismatch,
    Unauthenticated,
    Unavailable,
)
from forerun.models import Tokenizer, load_tokenizer
from forerun.v1 import generate_pb2
from forerun.v1.generate_pb2_grpc import GenerateServiceStub
from tests.fixtures.drafting import alphabet, drafting_pair, eventually, tiny_tokenizer
from tests.fixtures.scripted_target import decode_plainly
from tests.fixtures.scripted_verifier import Live, ScriptedVerifier
from tests.fixtures.tiny import ASSISTANT_ID, BOS_ID, USER_ID, tiny_checkpoint

PROMPT = "hello a"
USER = [{"role": "user", "content": "hi"}]

REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    # arguments, the field at fault, the reason
    "no text": ({"prompt": ""}, "text", "EMPTY_PROMPT"),
    "no messages": ({"messages": []}, "conversation.messages", "EMPTY_PROMPT"),
    "no ids": ({"token_ids": []}, "token_ids.ids", "EMPTY_PROMPT"),
    "id": ({"token_ids": [1, 2, 3, 260]}, "token_ids.ids[3]", "TOKEN_OUT_OF_RANGE"),
    "long": ({"token_ids": [1] * 2000}, "token_ids.ids", "PROMPT_TOO_LONG"),
    "long text": ({"prompt": "x" * 2000}, "text", "PROMPT_TOO_LONG"),
    "role": (
        {"messages": [*USER, {"role": "tool", "content": ""}]},
        "conversation.messages[1].role",
        "INVALID_FIELD",
    ),
    "max_tokens": ({"prompt": "x", "max_tokens": 0}, "max_tokens", "INVALID_FIELD"),
    "stop": ({"prompt": "x", "stop": ["a", ""]}, "stop[1]", "INVALID_FIELD"),
    "stops": ({"prompt": "x", "stop": ["a"] * 65}, "stop", "INVALID_FIELD"),
    "stop id": (
        {"prompt": "x", "stop_token_ids": [0, 999]},
        "stop_token_ids[1]",
        "TOKEN_OUT_OF_RANGE",
    ),
} | {
    name: ({"prompt": "x", name: value}, f"sampling.{name}", "UNSUPPORTED_SAMPLING")
    for name, value in {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 2,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "logit_bias": {5: 1.0},
        "n": 2,
        "best_of": 3,
        "logprobs": 0,
        "grammar": "root ::= x",
        "json_schema": "{}",
    }.items()
}
GREEDY: dict[str, Any] = {
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": {},
    "n": 1,
    "best_of": 1,
    "seed": 7,
    "grammar": "",
    "json_schema": "",
}


async def test_what_is_refused_names_the_field() -> None:
    async with drafting_pair() as pair:
        for name, (arguments, field, reason) in REFUSED.items():
            with pytest.raises(InvalidArgument) as caught:
                await pair.client.complete(**arguments)
            assert [violation.field for violation in caught.value.fields] == [field], name
            assert caught.value.reason == reason, name
            if name == "max_tokens":
                assert str(caught.value) == "max_tokens: is 0; it must be in 1..4294967295"
        async with grpc.aio.insecure_channel(pair.server.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                async for _ in GenerateServiceStub(channel).Generate(
                    generate_pb2.GenerateRequest()
                ):
                    pass
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert not pair.verifier.opens, "nothing of this reached the target"
        reasons = Counter(reason for _, _, reason in REFUSED.values())
        reasons["EMPTY_PROMPT"] += 1  # the request without a prompt
        for reason, count in reasons.items():
            assert pair.sample("errors_total", reason=reason) == count, reason
        assert pair.sample("errors_total", reason="INTERNAL") == 0


class Waiting(Tokenizer):
    """Waits at a gate before it encodes; counts the texts that it was given."""

    def __init__(self) -> None:
        super().__init__(tiny_tokenizer().backend, chat_template="{{ messages[0].content }}")
        self.encoded = 0
        self.gate = threading.Event()

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        self.encoded += 1
        assert self.gate.wait(20)
        return super().encode(text, add_special)


@pytest.mark.parametrize("kind", ["text", "conversation"])
async def test_more_than_a_mebibyte_is_not_tokenized_at_once(kind: str) -> None:
    tokenizer = Waiting()
    long = (1 << 20) * "x"
    messages = [{"role": "user", "content": long}]
    async with drafting_pair(tokenizer=tokenizer) as pair:
        with pytest.raises(InvalidArgument, match=f"{kind}: has .* at most 1048576") as caught:
            await (
                pair.client.tokenize(long)
                if kind == "text"
                else pair.client.tokenize(messages=messages)
            )
        assert [violation.field for violation in caught.value.fields] == [kind]
        assert tokenizer.encoded == 0


async def test_a_text_that_cannot_fit_is_refused_without_tokenizing_it() -> None:
    """Ten of 4 MB kept everybody waiting for ten seconds."""
    tokenizer = Waiting()
    text = 2000 * max(map(len, tokenizer.vocabulary())) * "x"
    prompts = ({"prompt": text}, {"messages": [{"role": "user", "content": text}]})
    async with drafting_pair(tokenizer=tokenizer) as pair:
        for arguments in prompts:
            with pytest.raises(InvalidArgument, match="at least 2000 tokens") as caught:
                await pair.client.complete(**arguments)
            assert caught.value.reason == "PROMPT_TOO_LONG"
        assert tokenizer.encoded == 0


async def test_texts_of_clients_that_have_gone_are_not_tokenized() -> None:
    tokenizer = Waiting()
    async with drafting_pair(tokenizer=tokenizer) as pair:
        calls = [asyncio.create_task(pair.client.complete(PROMPT)) for _ in range(TEXT_THREADS)]
        await eventually(lambda: tokenizer.encoded == TEXT_THREADS, "all threads are busy")
        for _ in range(3):
            with pytest.raises(DeadlineExceeded):
                await pair.client.complete(PROMPT, timeout=0.1)
        call = asyncio.create_task(pair.client.tokenize("others"))
        await asyncio.sleep(0.1)
        tokenizer.gate.set()
        assert await call == list(b"others")
        assert tokenizer.encoded == TEXT_THREADS + 1
        await asyncio.gather(*calls)


TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    "malformed",
    ["", TRACEPARENT.upper(), TRACEPARENT + "\n", TRACEPARENT[:-1], "01" + TRACEPARENT[2:],
     TRACEPARENT.replace("-", " "), "00-" + "0" * 32 + TRACEPARENT[35:], TRACEPARENT * 10_000],
)  # fmt: skip
async def test_a_trace_context_goes_on_unless_it_is_malformed(
    malformed: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with drafting_pair() as pair:
        for given, sent in ((TRACEPARENT, TRACEPARENT), (malformed, "")):
            answer = await pair.client.complete(PROMPT, max_tokens=3, traceparent=given)
            assert len(answer.token_ids) == 3
            assert pair.verifier.opens[-1].traceparent == sent
    assert TRACEPARENT * 2 not in caplog.text


async def test_values_that_mean_greedy_are_accepted() -> None:
    async with drafting_pair() as pair:
        expected = decode_plainly(alphabet, list(PROMPT.encode()), 5)
        answer = await pair.client.complete(PROMPT, max_tokens=5, **GREEDY)
        assert list(answer.token_ids) == expected
        answer = await pair.client.complete(PROMPT, max_tokens=5, top_k=0)
        assert list(answer.token_ids) == expected


async def test_prompts_of_every_kind_and_the_context_limit() -> None:
    async with drafting_pair(max_context=40) as pair:
        await pair.client.complete(messages=USER, max_tokens=2)
        chat = [BOS_ID, USER_ID, *b"hi", ASSISTANT_ID]
        assert list(pair.verifier.opens[-1].prompt_token_ids) == chat
        await pair.client.complete(token_ids=[1, 2, 3], max_tokens=2)
        assert list(pair.verifier.opens[-1].prompt_token_ids) == [1, 2, 3]
        answer = await pair.client.complete(PROMPT)
        assert (len(answer.token_ids), answer.finish_reason) == (40 - len(PROMPT), "length")
        answer = await pair.client.complete(PROMPT, max_tokens=10_000)
        assert len(answer.token_ids) == 40 - len(PROMPT)


async def test_tokens_info_and_text() -> None:
    async with drafting_pair(eos_token_ids=[257]) as pair:
        info = await pair.client.model_info()
        assert (info.model_name, info.draft, info.vocab_size) == ("scripted", "ngram", 260)
        assert (info.max_prompt_tokens, info.max_context_tokens) == (1999, 2000)
        assert info.eos_token_ids == (257,) and info.has_chat_template
        assert await pair.client.tokenize("hé") == list("hé".encode())
        assert (await pair.client.tokenize(messages=USER))[0] == BOS_ID
        assert await pair.client.detokenize([104, 257, 0xC3]) == "h\ufffd"
        shown = await pair.client.detokenize([104, 257], skip_special_tokens=False)
        assert shown == "h<|eos|>"
        with pytest.raises(InvalidArgument) as caught:
            await pair.client.detokenize([1, 260])
        assert caught.value.fields[0].field == "token_ids[1]"


async def test_text_never_splits_a_character() -> None:
    text = "añ€𝄞z" * 4
    script = list(text.encode())

    def next_token(sequence: tuple[int, ...]) -> int:
        return script[(len(sequence) - 1) % len(script)]

    async with drafting_pair(next_token) as pair:
        pieces = [
            chunk.text
            async for chunk in pair.client.generate(token_ids=[97], max_tokens=len(script))
        ]
        assert "".join(pieces) == text and len(pieces) > 1


async def test_health_follows_the_verify_server() -> None:
    verifier = ScriptedVerifier(alphabet, tiny_tokenizer())
    async with drafting_pair(verifier=verifier) as pair:
        assert await pair.client.health() == "SERVING"
        await verifier.stop()
        await eventually(lambda: pair.sample("verifier_up") == 0, "the loss is noticed")
        assert await pair.client.health() == "NOT_SERVING"
        await verifier.start(pair.verifier_address)
        await pair.server.wait_ready()
        await asyncio.sleep(0)
        assert await pair.client.health() == "SERVING"
        stopping = asyncio.create_task(pair.server.stop(0))
        await stopping


def permuted_tokenizer(folder: Path) -> Tokenizer:
    """T's tokenizer with the tokens of ids 65 and 66 exchanged."""
    tiny_checkpoint(folder)
    file = folder / "tokenizer.json"
    settings = json.loads(file.read_text())
    vocabulary = settings["model"]["vocab"]
    vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]
    file.write_text(json.dumps(settings))
    return load_tokenizer(folder)


async def test_another_vocabulary_is_refused_with_the_first_id_that_differs(
    tmp_path: Path,
) -> None:
    other = ScriptedVerifier(alphabet, permuted_tokenizer(tmp_path))
    async with drafting_pair(verifier=other, ready=False) as pair:
        with pytest.raises(ModelMismatch) as caught:
            await pair.client.complete(PROMPT, max_tokens=5)
        message = str(caught.value)
        assert "token id 65" in message and "b'A'" in message and "b'B'" in message
        assert caught.value.metadata == {"token_id": "65"}
        assert await pair.client.health() == "NOT_SERVING"
        assert not other.opens
        await other.stop()
        right = ScriptedVerifier(alphabet, tiny_tokenizer())
        await right.start(pair.verifier_address)
        try:
            await asyncio.wait_for(pair.server.wait_ready(), 10)
            answer = await pair.client.complete(PROMPT, max_tokens=5)
            assert len(answer.token_ids) == 5
        finally:
            await right.stop()


async def test_stopping_lets_generations_finish_and_takes_no_more() -> None:
    async with drafting_pair() as pair:
        gate = asyncio.Event()

        async def wait(live: Live) -> None:
            await gate.wait()

        pair.verifier.before_round = wait
        task = asyncio.create_task(pair.client.complete(PROMPT, max_tokens=20))
        await eventually(lambda: bool(pair.verifier.live), "the session is open")
        stopping = asyncio.create_task(pair.server.stop(10))
        await asyncio.sleep(0.05)
        with pytest.raises(Unavailable):
            await pair.client.complete(PROMPT, max_tokens=20)
        gate.set()
        assert list((await task).token_ids) == decode_plainly(alphabet, list(PROMPT.encode()), 20)
        await stopping


async def test_reflection_names_the_service_unless_it_is_off() -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    async with drafting_pair() as pair:
        async with grpc.aio.insecure_channel(pair.server.address) as channel:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            call = stub.ServerReflectionInfo(iter([request]))
            response = await call.read()
            names = {service.name for service in response.list_services_response.service}
            assert "forerun.v1.GenerateService" in names
    async with drafting_pair(config={"reflection": False}) as pair:
        async with grpc.aio.insecure_channel(pair.server.address) as channel:
            # As a unary call: the refusal of a stream may come before its first message is out.
            name = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(name)(request.SerializeToString())
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_token_is_asked_for_on_every_call_but_health(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    config = {"token_file": str(tmp_path / "token")}
    async with drafting_pair(config=config) as pair:
        assert await pair.client.health() == "SERVING"
        for call in (pair.client.complete(PROMPT, max_tokens=2), pair.client.model_info()):
            with pytest.raises(Unauthenticated):
                await call
        async with AsyncClient(pair.server.address, token="s3cret") as client:
            assert len((await client.complete(PROMPT, max_tokens=2)).token_ids) == 2


async def test_metrics_are_served_over_http() -> None:
    async with drafting_pair(config={"metrics_port": 0}) as pair:
        await pair.client.complete(PROMPT, max_tokens=30)
        url = f"http://{pair.server.metrics_address}/metrics"
        text = (await asyncio.to_thread(urllib.request.urlopen, url)).read().decode()
        assert "forerun_draft_emitted_total 30.0" in text
        assert 'forerun_draft_finished_total{reason="length"} 1.0' in text
