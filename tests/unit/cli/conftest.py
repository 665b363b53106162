"""A draft server without models: what it answers follows from the prompt alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from forerun.errors import ForerunError, to_status
from forerun.v1 import generate_pb2, generate_pb2_grpc, verify_pb2

EOS = 0
REFUSED = "refuse me"


class ScriptedGenerate(generate_pb2_grpc.GenerateServiceServicer):
    """Answers the prompt reversed, one token a character (its code point), then the EOS id.

    The first piece holds two tokens, the first of which counts as an accepted proposal; the others
    hold one. A prompt of `REFUSED` is an error. While `hold_first` is set, the first request to
    arrive waits until another one has been answered.
    """

    def __init__(self) -> None:
        self.address = ""
        self.requests: list[generate_pb2.GenerateRequest] = []
        self.has_chat_template = True
        self.hold_first = False
        self.wrong_when_drafting = False
        self.info_error: ForerunError | None = None
        self._another_done = threading.Event()

    def GetModelInfo(self, request: Any, context: Any) -> generate_pb2.GetModelInfoResponse:
        if self.info_error is not None:
            context.abort_with_status(rpc_status.to_status(to_status(self.info_error)))
        return generate_pb2.GetModelInfoResponse(
            model_name="scripted",
            vocab_size=0x110000,
            eos_token_ids=[EOS],
            dtype="float32",
            draft="ngram",
            isa="scalar",
            has_chat_template=self.has_chat_template,
        )

    def Generate(
        self, request: generate_pb2.GenerateRequest, context: Any
    ) -> Iterator[generate_pb2.GenerateResponse]:
        self.requests.append(request)
        if self.hold_first and len(self.requests) == 1:
            assert self._another_done.wait(30)
        text = prompt_text(request)
        if text == REFUSED:
            status = status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message="prompt refused")
            context.abort_with_status(rpc_status.to_status(status))
        answer = text[::-1]
        if self.wrong_when_drafting and not request.plain:
            answer = answer.upper()
        reason = verify_pb2.FINISH_REASON_STOP
        if request.HasField("max_tokens") and request.max_tokens <= len(answer):
            answer, reason = answer[: request.max_tokens], verify_pb2.FINISH_REASON_LENGTH
        pieces = [answer[:2], *answer[2:]]
        for index, piece in enumerate(pieces):
            yield generate_pb2.GenerateResponse(
                token_ids=[ord(character) for character in piece],
                accepted=int(index == 0 and len(piece) == 2),
                text=piece,
                prompt_tokens=len(text) if index == 0 else 0,
            )
        ended = reason == verify_pb2.FINISH_REASON_STOP
        stats = verify_pb2.SessionStats(
            rounds=1,
            drafted_nodes=2,
            accepted=1,
            accepted_by_depth=[1],
            drafted_by_depth=[1, 1],
            emitted=len(answer) + ended,
        )
        yield generate_pb2.GenerateResponse(
            token_ids=[EOS] if ended else [],
            final=generate_pb2.Final(
                finish_reason=reason, stats=stats, time_to_first_token_us=1500, total_us=11500
            ),
        )
        self._another_done.set()


def prompt_text(request: generate_pb2.GenerateRequest) -> str:
    """The prompt as text, whichever form it came in."""
    if request.HasField("conversation"):
        return "|".join(message.content for message in request.conversation.messages)
    if request.HasField("token_ids"):
        return "".join(map(chr, request.token_ids.ids))
    return request.text


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[ScriptedGenerate]:
    """A running server on a Unix socket; `address` says where."""
    servicer = ScriptedGenerate()
    servicer.address = f"unix:{tmp_path}/draft.sock"
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    generate_pb2_grpc.add_GenerateServiceServicer_to_server(servicer, server)
    statuses = health.HealthServicer()
    statuses.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(statuses, server)
    server.add_insecure_port(servicer.address)
    server.start()
    yield servicer
    server.stop(0).wait()
