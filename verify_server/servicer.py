"""VerifyService: streams of draft servers, in and out. Decodes, hands over, encodes; no policy."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_status import rpc_status

from forerun.errors import InvalidArgument, Unavailable, to_status
from forerun.obs.tracing import Tracer
from forerun.v1 import verify_pb2 as pb
from forerun.v1.verify_pb2_grpc import VerifyServiceServicer
from verify_server.engine_thread import EngineThread
from verify_server.events import CloseStream, StepOutput
from verify_server.messages import decode, encode, num_entries
from verify_server.spans import SessionSpans
from verify_server.streams import Stream

logger = logging.getLogger(__name__)


class VerifyServicer(VerifyServiceServicer):
    """Serves on the event loop.

    target: the answer to GetTargetInfo, without the vocabulary; `vocabulary` is sent on request.
    `engine_thread` is set before the first call.
    """

    engine_thread: EngineThread

    def __init__(
        self,
        target: pb.GetTargetInfoResponse,
        vocabulary: list[bytes],
        outbox_bytes: int,
        tracer: Tracer,
    ) -> None:
        self._target = target
        self._vocabulary = vocabulary
        self._outbox_bytes = outbox_bytes
        self._spans = SessionSpans(tracer)
        self._numbers = itertools.count(1)
        self._streams: dict[int, Stream] = {}
        self._drain: pb.Drain | None = None
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def num_streams(self) -> int:
        """Open streams."""
        return len(self._streams)

    async def GetTargetInfo(
        self, request: pb.GetTargetInfoRequest, context: Any
    ) -> pb.GetTargetInfoResponse:
        response = pb.GetTargetInfoResponse()
        response.CopyFrom(self._target)
        if request.include_vocabulary:
            response.vocabulary.extend(self._vocabulary)
        return response

    async def Verify(  # type: ignore[override]  # the coroutine style of grpc.aio
        self,
        request_iterator: AsyncIterator[pb.VerifyRequest],
        context: grpc.aio.ServicerContext[pb.VerifyRequest, pb.VerifyResponse],
    ) -> None:
        stream = Stream(next(self._numbers), self._outbox_bytes)
        self._streams[stream.number] = stream
        logger.info("stream %d: opened by %s", stream.number, context.peer())
        if self._drain is not None:
            stream.put(pb.VerifyResponse(drain=self._drain))
        reader = asyncio.create_task(self._read(request_iterator, stream))
        try:
            while (response := await stream.next()) is not None:
                await context.write(response)
        finally:
            reader.cancel()
            self._close(stream)
        if stream.error is not None:
            await context.abort_with_status(rpc_status.to_status(to_status(stream.error)))

    def deliver(self, output: StepOutput, num_sessions: int) -> None:
        """Takes what one step produced; one message a stream."""
        for number, stream_output in output.items():
            stream = self._streams.get(number)
            self._spans.record(number, stream_output)
            if stream is not None and not stream.put(encode(stream_output)):
                logger.warning("stream %d: its reader is too slow", number)
                self._close(stream)
        if num_sessions:
            self.idle.clear()
        else:
            self.idle.set()

    def drain(self, deadline_ms: int) -> None:
        """Tells every draft server, those that come later too, to open no sessions here."""
        self._drain = pb.Drain(deadline_ms=deadline_ms)
        for stream in self._streams.values():
            stream.put(pb.VerifyResponse(drain=self._drain))

    def end_streams(self) -> None:
        """Ends all streams once what waits is written."""
        for stream in self._streams.values():
            stream.end()

    async def _read(self, requests: AsyncIterator[pb.VerifyRequest], stream: Stream) -> None:
        try:
            async for request in requests:
                if stream.ended:
                    return  # its sessions are gone; new ones would run for nobody
                self._check_instance(request)
                entries = num_entries(request, self._target.limits.max_entries)
                stream.read(entries, request.ByteSize())
                received_ns = time.monotonic_ns()
                self._spans.open(stream.number, request.opens, received_ns)
                events = decode(request, stream.number, received_ns)
                self.engine_thread.submit(events, stream.handled)
                await stream.may_read()
        except (InvalidArgument, Unavailable) as error:
            logger.warning("stream %d: ended: %s", stream.number, error)
            stream.end(error)
        except Exception:
            # The peer is gone, or sent what is no message; gRPC has told it, and the end is the
            # same.
            logger.debug("stream %d: reading failed", stream.number, exc_info=True)
        finally:
            stream.end()

    def _check_instance(self, request: pb.VerifyRequest) -> None:
        if request.instance not in ("", self._target.instance):
            raise Unavailable(
                f"instance: is {request.instance!r}, this is {self._target.instance!r}: the server"
                " has restarted; ask GetTargetInfo again",
                reason="TARGET_CHANGED",
            )

    def _close(self, stream: Stream) -> None:
        if self._streams.pop(stream.number, None) is not None:
            self._spans.close(stream.number)
            self.engine_thread.submit([CloseStream(stream.number)])
            logger.info("stream %d: closed", stream.number)
