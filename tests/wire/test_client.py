"""The blocking client against a scripted server."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from forerun import errors
from forerun.client import Chunk, Client, GenerationStats
from forerun.v1 import generate_pb2
from tests.fixtures import scripted_generate as scripted
from tests.fixtures.scripted_generate import ScriptedGenerate

# Far beyond what any event here takes; a test that needs it has failed.
PATIENCE_S = 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ScriptedGenerate]:
    service = ScriptedGenerate()
    grpc_server = service.serve(f"unix:{tmp_path}/socket")
    yield service
    grpc_server.stop(None).wait()


@pytest.fixture
def client(server: ScriptedGenerate) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


def test_chunks_arrive_in_order_and_statistics_follow(client: Client) -> None:
    stream = client.generate("hi")
    assert next(stream) == Chunk((10,), 0, "a")
    assert (stream.stats, stream.finish_reason) == (None, None)
    assert list(stream) == [Chunk((11, 12), 1, ""), Chunk((13, 2), 2, "é.")]
    assert stream.token_ids == (10, 11, 12, 13, 2)
    assert stream.text == "aé."
    assert stream.finish_reason == "stop"
    assert stream.stats == GenerationStats(
        rounds=2,
        plain_steps=1,
        drafted=8,
        accepted=3,
        drafted_by_depth=[2, 2],
        accepted_by_depth=[2, 1],
        emitted=5,
        prompt_tokens=3,
        ttft_s=0.5,
        total_s=2.5,
    )
    assert stream.stats.acceptance_rate == 3 / 8
    assert stream.stats.mean_accepted_length == 1.5
    assert stream.stats.tokens_per_second == 2.0


def test_result_holds_everything_whether_or_not_it_was_iterated(client: Client) -> None:
    stream = client.generate("hi")
    next(stream)
    result = stream.result()
    assert result == client.complete("hi") == stream.result()
    assert (result.text, result.finish_reason) == ("aé.", "stop")
    assert result.token_ids == (10, 11, 12, 13, 2)


def test_rates_of_nothing_are_none() -> None:
    stats = GenerationStats(emitted=1, ttft_s=0.1, total_s=0.1)
    assert stats.tokens_per_second is None
    assert stats.acceptance_rate is None


def test_requests_carry_what_was_given_and_nothing_else(
    client: Client, server: ScriptedGenerate
) -> None:
    client.complete("hi")
    client.complete(
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=5,
        stop="\n",
        stop_token_ids=[3, 4],
        ignore_eos=True,
        plain=True,
        temperature=0.0,
        logit_bias={5: 1.5},
        seed=None,
    )
    client.complete(token_ids=[1, 2], stop=["a", "b"], temperature=0.7, json_schema="{}")
    client.complete(token_ids=[])
    plain, chat, sampled, empty = server.requests
    assert plain == generate_pb2.GenerateRequest(text="hi")
    assert not plain.HasField("max_tokens") and not plain.HasField("sampling")
    conversation = generate_pb2.Conversation(
        messages=[generate_pb2.ChatMessage(role="user", content="hi")]
    )
    assert chat == generate_pb2.GenerateRequest(
        conversation=conversation,
        max_tokens=5,
        stop=["\n"],
        stop_token_ids=[3, 4],
        ignore_eos=True,
        plain=True,
        sampling=generate_pb2.Sampling(temperature=0.0, logit_bias={5: 1.5}),
    )
    assert chat.sampling.HasField("temperature") and not chat.sampling.HasField("seed")
    assert sampled.sampling.temperature == pytest.approx(0.7)
    assert list(sampled.token_ids.ids) == [1, 2]
    assert empty.WhichOneof("prompt") == "token_ids"


def test_arguments_that_make_no_request_are_refused(client: Client) -> None:
    unknown: dict[str, Any] = {"max_token": 5}
    with pytest.raises(TypeError, match="max_token"):
        client.generate("hi", **unknown)
    with pytest.raises(TypeError, match="prompt and token_ids"):
        client.generate("hi", token_ids=[1])
    with pytest.raises(TypeError, match="found none"):
        client.generate()
    for arguments, field in [
        ({"token_ids": [1, -1]}, "token_ids"),
        ({"token_ids": [2**32]}, "token_ids"),
        ({"prompt": "hi", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "\ud800"}, "text"),
        ({"prompt": "hi", "stop": ["a", "\ud800"]}, "stop"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "", "name": ""}]}, "messages[0]"),
    ]:
        with pytest.raises(errors.InvalidArgument) as caught:
            client.generate(**arguments)  # type: ignore[arg-type]
        assert caught.value.fields[0].field == field


@pytest.mark.parametrize("value", [-1, 2**32, -(2**70)])
def test_a_number_that_no_message_holds_is_named_with_its_range(client: Client, value: int) -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        client.generate("hi", max_tokens=value)
    assert str(caught.value) == f"max_tokens: is {value}; it must be in 1..4294967295"
    with pytest.raises(errors.InvalidArgument) as caught:
        client.generate("hi", top_k=value)
    assert str(caught.value) == f"top_k: is {value}; it must be in 0..4294967295"


def test_other_calls(client: Client) -> None:
    info = client.model_info()
    assert (info.model_name, info.vocab_size, info.eos_token_ids) == ("tiny", 99, (2,))
    assert client.tokenize("ab") == [97, 98]
    assert client.tokenize(messages=[{"role": "user", "content": "ab"}]) == [97, 98]
    assert client.detokenize([97, 98]) == "ab"


def test_health(tmp_path: Path) -> None:
    servicer = health.HealthServicer()
    server = grpc.server(ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(f"unix:{tmp_path}/socket")
    server.start()
    with Client(f"unix:{tmp_path}/socket") as client:
        assert client.health() == "SERVING"
        servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        assert client.health() == "NOT_SERVING"
    server.stop(None).wait()


def test_health_without_its_package_says_what_to_install(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "grpc_health.v1", None)
    with pytest.raises(ImportError, match="pip install grpcio-health-checking"):
        client.health()


def test_cancel_reaches_the_server(client: Client, server: ScriptedGenerate) -> None:
    server.answer = scripted.endless
    stream = client.generate("hi")
    next(stream)
    stream.cancel()
    with pytest.raises(errors.Cancelled):
        for _ in stream:
            pass
    assert server.ended.wait(PATIENCE_S)


def test_break_reaches_the_server(client: Client, server: ScriptedGenerate) -> None:
    server.answer = scripted.endless
    stream = client.generate("hi")
    for _ in stream:
        break
    assert server.ended.wait(PATIENCE_S)
    assert stream.token_ids == (7,)


def test_leaving_a_with_block_reaches_the_server(client: Client, server: ScriptedGenerate) -> None:
    server.answer = scripted.endless
    with client.generate("hi") as stream:
        next(stream)
    assert server.ended.wait(PATIENCE_S)


def test_dropping_a_stream_reaches_the_server(client: Client, server: ScriptedGenerate) -> None:
    server.answer = scripted.endless
    stream = client.generate("hi")
    next(stream)
    del stream
    gc.collect()
    assert server.ended.wait(PATIENCE_S)


def test_closing_the_client_reaches_the_server(server: ScriptedGenerate) -> None:
    server.answer = scripted.endless
    with Client(server.address) as client:
        stream = client.generate("hi")
        next(stream)
    with pytest.raises(errors.Cancelled):
        list(stream)
    assert server.ended.wait(PATIENCE_S)


@pytest.mark.parametrize("default", [True, False])
def test_timeout(server: ScriptedGenerate, default: bool) -> None:
    server.answer = scripted.silent
    with Client(server.address, timeout=0.1 if default else None) as client:
        with pytest.raises(errors.DeadlineExceeded) as caught:
            client.complete("hi", timeout=None if default else 0.1)
    assert isinstance(caught.value.__cause__, grpc.RpcError)
    assert server.ended.wait(PATIENCE_S)


def test_errors_keep_class_reason_and_fields(client: Client, server: ScriptedGenerate) -> None:
    server.answer = scripted.failing(
        errors.InvalidArgument.for_field(
            "sampling.temperature", "is 0.7; only 0 is served", reason="UNSUPPORTED_SAMPLING"
        )
    )
    with pytest.raises(errors.InvalidArgument, match=r"sampling.temperature: is 0.7") as caught:
        client.complete("hi", temperature=0.7)
    assert caught.value.reason == "UNSUPPORTED_SAMPLING"
    assert caught.value.fields[0].field == "sampling.temperature"
    assert isinstance(caught.value.__cause__, grpc.RpcError)


def test_overload_tells_when_to_retry_and_is_not_retried(
    client: Client, server: ScriptedGenerate
) -> None:
    server.answer = scripted.failing(
        errors.Overloaded("full", reason="KV_FULL", retry_after_ms=250)
    )
    with pytest.raises(errors.Overloaded) as caught:
        client.complete("hi")
    assert (caught.value.reason, caught.value.retry_after_ms) == ("KV_FULL", 250)
    assert len(server.requests) == 1


DRAINING = errors.Unavailable("stopping", reason="DRAINING")


@pytest.mark.parametrize("prompt", ["hi", "x" * 1_000_000])
def test_unavailable_is_retried_before_the_first_chunk(
    client: Client, server: ScriptedGenerate, prompt: str
) -> None:
    server.answer = scripted.failing(DRAINING, times=2)
    assert client.complete(prompt).text == "aé."
    assert len(server.requests) == 3


def test_retries_end(client: Client, server: ScriptedGenerate) -> None:
    server.answer = scripted.failing(DRAINING)
    with pytest.raises(errors.Unavailable) as caught:
        client.complete("hi")
    assert caught.value.reason == "DRAINING"
    assert len(server.requests) == 3


def test_no_retries_when_none_are_wanted(server: ScriptedGenerate) -> None:
    server.answer = scripted.failing(DRAINING)
    with Client(server.address, max_retries=0) as client, pytest.raises(errors.Unavailable):
        client.complete("hi")
    assert len(server.requests) == 1


def test_unavailable_is_not_retried_after_the_first_chunk(
    client: Client, server: ScriptedGenerate
) -> None:
    server.answer = scripted.failing(DRAINING, after=1)
    stream = client.generate("hi")
    with pytest.raises(errors.Unavailable):
        list(stream)
    assert len(server.requests) == 1
    assert stream.token_ids == (7,)


def test_nobody_listens(tmp_path: Path) -> None:
    with Client(f"unix:{tmp_path}/nobody") as client:
        with pytest.raises(errors.Unavailable) as caught:
            client.model_info()
    assert caught.value.reason == "UNREACHABLE"


def test_a_message_beyond_the_limit_names_the_limit(server: ScriptedGenerate) -> None:
    with Client(server.address, max_message_bytes=100_000) as client:
        with pytest.raises(errors.MessageTooLarge, match="100000 bytes") as caught:
            client.complete("x" * 200_000)
        assert caught.value.metadata["limit_bytes"] == "100000"
        assert caught.value.reason == "MESSAGE_TOO_LARGE"
        assert client.complete("hi").text == "aé."


def test_a_prompt_beyond_grpcs_own_limit_passes(client: Client, server: ScriptedGenerate) -> None:
    client.complete(token_ids=[2**31] * 1_000_000)
    assert server.requests[0].ByteSize() > 4 << 20
    with pytest.raises(errors.MessageTooLarge, match=f"{64 << 20} bytes"):
        client.complete("x" * (64 << 20))


def test_a_stream_that_ends_without_its_final_message_is_an_error(
    client: Client, server: ScriptedGenerate
) -> None:
    server.answer = lambda *_: iter([generate_pb2.GenerateResponse(token_ids=[1])])
    with pytest.raises(errors.Internal, match="final message"):
        client.complete("hi")


def test_many_streams_run_at_once(client: Client) -> None:
    streams = [client.generate("hi") for _ in range(8)]
    assert [next(stream) for stream in streams] == [Chunk((10,), 0, "a")] * 8
    assert {stream.result().text for stream in streams} == {"aé."}


def test_a_channel_of_ones_own_stays_open(server: ScriptedGenerate) -> None:
    with grpc.insecure_channel(server.address) as channel:
        for _ in range(2):
            with Client(channel=channel) as client:
                assert client.complete("hi").text == "aé."
        with pytest.raises(ValueError, match="own address"):
            Client(server.address, channel=channel)


def test_importing_the_client_imports_nothing_heavy() -> None:
    code = "import sys, forerun.client; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded = set(result.stdout.split())
    assert "forerun.client" in loaded, result.stderr
    heavy = {"numpy", "torch", "tokenizers", "forerun._native", "forerun.models", "forerun.engine"}
    assert not heavy & loaded
