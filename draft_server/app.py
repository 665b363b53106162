"""The draft server as a whole: ports, health, reflection, signals and the order of start and stop.

Nothing else wires these.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIServer

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from draft_server.config import DraftConfig
from draft_server.drafters.base import Calibrates, Drafter
from draft_server.drafters.registry import create_drafter
from draft_server.drafting import DraftingThread
from draft_server.metrics import DraftMetrics
from draft_server.servicer import GenerateServicer
from draft_server.target import Metadata
from draft_server.verifier_stream import VerifierStream
from forerun.address import is_local
from forerun.engine import isa_report
from forerun.models import Tokenizer, default_model_path, load_tokenizer
from forerun.obs.isa_info import register_isa_info
from forerun.obs.metrics_port import serve_metrics
from forerun.obs.progress import progress
from forerun.obs.span_names import DRAFT_SERVICE
from forerun.obs.tracing import Tracer, open_tracer
from forerun.transport import (
    Security,
    bearer_metadata,
    open_channel,
    read_token,
    server_options,
)
from forerun.v1 import generate_pb2, generate_pb2_grpc

logger = logging.getLogger(__name__)

SERVICE = generate_pb2.DESCRIPTOR.services_by_name["GenerateService"].full_name
HEALTH_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class DraftServer:
    """A draft server on the running event loop.

    tokenizer and drafter: in place of those that the config names. tracer: what records its
    requests, nothing by default. `address` is where it listens
    (a port of 0 becomes the one that was chosen) and `metrics_address` where metrics are served,
    both known after `start`.
    """

    def __init__(
        self,
        config: DraftConfig,
        *,
        tokenizer: Tokenizer | None = None,
        drafter: Drafter[Any] | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.config = config
        self._tracer = tracer or Tracer()
        self.metrics = DraftMetrics()
        self.address = ""
        self.metrics_address = ""
        self._metrics_server: WSGIServer | None = None
        self._tokenizer = tokenizer
        self._drafter = drafter
        self._health = health_aio.HealthServicer()
        self._security = Security.load(
            tls_cert=config.tls_cert,
            tls_key=config.tls_key,
            tls_ca=config.tls_ca,
            token_file=config.token_file,
        )
        self._ready = asyncio.Event()
        self._stopping = False

    async def start(self) -> None:
        """Loads what is needed and listens. Serving begins once a verify server is connected and
        checked; until then health says NOT_SERVING.

        Raises ModelError, ModelMismatch or ValueError for a model that cannot be used, ValueError
        where FORERUN_ISA names a level that cannot run, OSError for a file that cannot be read,
        RuntimeError where the address cannot be had.
        """
        config = self.config
        await self._set_health(False)
        isa = isa_report()
        levels = [(level["name"], level["reason"]) for level in isa["levels"]]
        register_isa_info(self.metrics.registry, isa["selected"], levels)
        tokenizer, drafter = self._tokenizer, self._drafter
        if tokenizer is None:
            tokenizer = await asyncio.to_thread(_load_tokenizer, config.model)
        if drafter is None:
            drafter = await asyncio.to_thread(_load_drafter, config, tokenizer)
        if isinstance(drafter, Calibrates):
            self.metrics.watch(drafter.calibrations)
        self.drafting = DraftingThread(drafter, config.draft_timeout_ms / 1000)
        self._channel, metadata = open_verifier_channel(config)
        self.stream = VerifierStream(
            self._channel,
            config.verifier,
            tokenizer,
            self.metrics,
            metadata=metadata,
            reopen_timeout_s=config.reopen_timeout_s,
            on_ready=self._on_ready,
        )
        self._servicer = GenerateServicer(
            tokenizer,
            self.stream,
            self.drafting,
            self.metrics,
            config.max_message_bytes,
            self._tracer,
        )
        self._server = grpc.aio.server(
            options=server_options(config.max_message_bytes),
            interceptors=self._security.interceptors(),
        )
        generate_pb2_grpc.add_GenerateServiceServicer_to_server(self._servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if config.reflection:
            names = (SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)
        self.address = self._security.bind(self._server, config.listen)
        self._start_metrics()
        self.drafting.start()
        await self._server.start()
        self.stream.start()
        logger.info("listening on %s, drafting by %s", self.address, drafter.info.name)

    async def wait_ready(self) -> None:
        """Returns once a verify server is connected and checked."""
        await self._ready.wait()

    async def stop(self, grace: float | None = None) -> None:
        """Refuses new generations, lets open ones finish for `grace` seconds (default: the
        config's), and frees everything."""
        self._stopping = True
        await self._health.enter_graceful_shutdown()
        self._servicer.draining = True
        await self._server.stop(self.config.grace_s if grace is None else grace)
        await self.stream.stop()
        await self._channel.close()
        await self.drafting.stop()
        if self._metrics_server is not None:
            self._metrics_server.shutdown()
            self._metrics_server.server_close()
        await self._tracer.close()

    def _start_metrics(self) -> None:
        if self.config.metrics_port is not None:
            self._metrics_server, self.metrics_address = serve_metrics(
                self.metrics.registry, self.config.metrics_port, self.config.listen
            )

    def _on_ready(self, ready: bool) -> None:
        if ready:
            self._ready.set()
        else:
            self._ready.clear()
        if not self._stopping:
            task = asyncio.ensure_future(self._set_health(ready))
            self._health_task = task  # the loop itself holds tasks weakly

    async def _set_health(self, ready: bool) -> None:
        states = health_pb2.HealthCheckResponse
        for service in ("", SERVICE):
            await self._health.set(service, states.SERVING if ready else states.NOT_SERVING)


async def serve(config: DraftConfig) -> None:
    """Runs a draft server until SIGTERM or SIGINT, then drains it; a second signal cuts that
    short."""
    signals = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()
    server = DraftServer(config, tracer=open_tracer(config.tracing, DRAFT_SERVICE))
    await server.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.release)
    await signals.acquire()
    logger.info("draining for at most %g s", config.grace_s)
    stopping = asyncio.create_task(server.stop())
    hurry = asyncio.create_task(signals.acquire())
    await asyncio.wait((stopping, hurry), return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        stopping.cancel()
        await server.stop(0)
    hurry.cancel()
    await asyncio.gather(stopping, hurry, return_exceptions=True)


def run(config: DraftConfig) -> None:
    """`serve` on a loop of its own, uvloop's where it is installed."""
    logger.info("draft server: %s", config.describe())
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(config))
    else:
        uvloop.run(serve(config))


def open_verifier_channel(config: DraftConfig) -> tuple[grpc.aio.Channel, Metadata]:
    """The channel to the verify server, and the metadata that its calls carry.

    Raises OSError for a file that cannot be read, ValueError where a token would travel in the
    clear between machines.
    """
    token = read_token(config.verifier_token_file) if config.verifier_token_file else None
    if token and not config.verifier_tls_ca and not is_local(config.verifier):
        raise ValueError(
            f"the token for {config.verifier} would be sent unencrypted; add --verifier-tls-ca"
        )
    ca, certificate, key = (
        Path(path).read_bytes() if path else None
        for path in (config.verifier_tls_ca, config.verifier_tls_cert, config.verifier_tls_key)
    )
    channel = open_channel(
        config.verifier,
        max_message_bytes=config.max_message_bytes,
        ca=ca,
        certificate=certificate,
        key=key,
    )
    return channel, bearer_metadata(token)


def _load_tokenizer(model: str | None) -> Tokenizer:
    return load_tokenizer(model or default_model_path())


def _load_drafter(config: DraftConfig, tokenizer: Tokenizer) -> Drafter[Any]:
    with progress(f"draft {config.draft}") as report:
        return create_drafter(config.draft, config.draft_settings, tokenizer, report)
