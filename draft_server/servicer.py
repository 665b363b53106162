"""GenerateService: decodes requests, has them served, encodes what comes of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import grpc
from grpc_status import rpc_status
from prometheus_client import Counter

from draft_server.drafting import DraftingThread
from draft_server.metrics import DraftMetrics
from draft_server.output import Chunk
from draft_server.requests import read_generation, tokenize
from draft_server.session import Session
from draft_server.spans import ending
from draft_server.stops import OutputText
from draft_server.verifier_stream import VerifierStream
from forerun import __version__
from forerun.errors import ForerunError, InvalidArgument, Unavailable, to_status
from forerun.models import TextStream, Tokenizer
from forerun.obs import span_names as names
from forerun.obs.tracing import Span, Tracer
from forerun.v1 import generate_pb2
from forerun.v1.generate_pb2_grpc import GenerateServiceServicer
from forerun.wire import stats_to_pb

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Two, so that short texts need not wait for a long one, and no more: the cores are the drafter's.
TEXT_THREADS = 2


class GenerateServicer(GenerateServiceServicer):
    """The service of one draft server. `draining` refuses new generations."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stream: VerifierStream,
        drafting: DraftingThread,
        metrics: DraftMetrics,
        max_message_bytes: int,
        tracer: Tracer,
    ) -> None:
        self.draining = False
        self._tokenizer = tokenizer
        self._stream = stream
        self._drafting = drafting
        self._metrics = metrics
        self._max_message_bytes = max_message_bytes
        self._tracer = tracer
        self._text_threads = ThreadPoolExecutor(TEXT_THREADS, "forerun-text")

    async def Generate(  # type: ignore[override]  # the stub knows generators only
        self,
        request: generate_pb2.GenerateRequest,
        context: grpc.aio.ServicerContext[
            generate_pb2.GenerateRequest, generate_pb2.GenerateResponse
        ],
    ) -> None:
        # Writes rather than yields: a generator would be left suspended when the call is cancelled,
        # and the session open until it is collected.
        received = time.monotonic()
        span = self._tracer.start(names.REQUEST, request.traceparent, int(1e9 * received))
        async with _reporting(context, self._metrics.errors):
            with ending(span):
                session, prompt_tokens = await self._open(request, context, received, span)
                try:
                    session.start()
                    async for chunk in session.output.chunks():
                        self._metrics.emitted.inc(len(chunk.token_ids))
                        await context.write(_response(chunk, prompt_tokens))
                        prompt_tokens = 0
                finally:
                    session.close()

    async def GetModelInfo(
        self, request: generate_pb2.GetModelInfoRequest, context: Any
    ) -> generate_pb2.GetModelInfoResponse:
        async with _reporting(context):
            target = await self._stream.known_target(_deadline(context, time.monotonic()))
            return generate_pb2.GetModelInfoResponse(
                model_name=target.model_name,
                architecture=target.architecture,
                vocab_size=target.vocab_size,
                eos_token_ids=target.eos_token_ids,
                dtype=target.dtype,
                draft=self._drafting.drafter.info.name,
                max_prompt_tokens=target.limits.max_prompt_tokens,
                max_context_tokens=target.limits.max_context_tokens,
                max_message_bytes=self._max_message_bytes,
                has_chat_template=self._tokenizer.has_chat_template,
                version=__version__,
                isa=target.isa,
            )

    async def Tokenize(
        self, request: generate_pb2.TokenizeRequest, context: Any
    ) -> generate_pb2.TokenizeResponse:
        async with _reporting(context):
            token_ids = await self._in_thread(lambda: tokenize(request, self._tokenizer))
            return generate_pb2.TokenizeResponse(token_ids=token_ids)

    async def Detokenize(
        self, request: generate_pb2.DetokenizeRequest, context: Any
    ) -> generate_pb2.DetokenizeResponse:
        async with _reporting(context):
            for index, token_id in enumerate(request.token_ids):
                if token_id >= self._tokenizer.vocab_size:
                    raise InvalidArgument.for_field(
                        f"token_ids[{index}]",
                        f"is {token_id}; a token id must be in 0..{self._tokenizer.vocab_size - 1}",
                        reason="TOKEN_OUT_OF_RANGE",
                    )
            text = await self._in_thread(
                lambda: self._tokenizer.decode(
                    list(request.token_ids), skip_special=request.skip_special_tokens
                )
            )
            return generate_pb2.DetokenizeResponse(text=text)

    async def _open(
        self, request: generate_pb2.GenerateRequest, context: Any, received: float, span: Span
    ) -> tuple[Session, int]:
        """The session of a request, not started yet, and the length of its prompt."""
        if self.draining:
            raise Unavailable("the draft server is stopping", reason="DRAINING")
        deadline = _deadline(context, received)
        target = await self._stream.known_target(deadline)
        generation = await self._in_thread(
            lambda: read_generation(request, self._tokenizer, target, deadline)
        )
        span.set(
            {
                names.PROMPT_TOKENS: len(generation.prompt_ids),
                names.MAX_TOKENS: generation.max_tokens,
                names.METHOD: "none" if generation.plain else self._drafting.drafter.info.name,
            }
        )
        session = Session(
            generation,
            OutputText(TextStream(self._tokenizer), request.stop),
            self._stream,
            self._drafting,
            self._metrics,
            target.eos_token_ids,
            received,
            span,
        )
        return session, len(generation.prompt_ids)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """What `work` returns. Where the call ends before it has begun, it is not begun."""
        return await asyncio.get_running_loop().run_in_executor(self._text_threads, work)


def _deadline(context: Any, now: float) -> float | None:
    """When the caller gives up, on the clock of time.monotonic(); None: never."""
    remaining = context.time_remaining()
    return None if remaining is None else now + remaining


def _response(chunk: Chunk, prompt_tokens: int) -> generate_pb2.GenerateResponse:
    final = None
    if chunk.final is not None:
        final = generate_pb2.Final(
            finish_reason=chunk.final.reason,
            stats=stats_to_pb(chunk.final.stats),
            time_to_first_token_us=chunk.final.time_to_first_token_us,
            total_us=chunk.final.total_us,
        )
    return generate_pb2.GenerateResponse(
        token_ids=chunk.token_ids,
        accepted=chunk.accepted,
        text=chunk.text,
        prompt_tokens=prompt_tokens,
        final=final,
    )


@asynccontextmanager
async def _reporting(context: Any, errors: Counter | None = None) -> AsyncIterator[None]:
    """Turns errors into statuses. What is not a ForerunError is logged, and told as INTERNAL.
    errors: where they are counted by their reasons."""
    try:
        yield
    except ForerunError as error:
        if errors is not None:
            errors.labels(error.reason).inc()
        if error.reason == "VERIFIER_UNREACHABLE":
            # It was waited for already. A call whose headers came is not tried again by gRPC, which
            # would wait as long each time.
            with suppress(grpc.aio.UsageError):  # they went with the first tokens
                await context.send_initial_metadata(())
        await context.abort_with_status(rpc_status.to_status(to_status(error)))
    except grpc.aio.AbortError:
        raise
    except Exception as error:
        logger.exception("a request failed")
        if errors is not None:
            errors.labels("INTERNAL").inc()
        await context.abort_with_status(rpc_status.to_status(to_status(error)))
