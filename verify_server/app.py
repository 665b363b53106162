"""The verify server as a whole: ports, health, reflection, metrics, signals, start and stop.

Nothing else wires these.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from wsgiref.simple_server import WSGIServer

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from forerun.engine import isa_report
from forerun.errors import Unavailable
from forerun.obs.isa_info import register_isa_info
from forerun.obs.metrics_port import serve_metrics
from forerun.obs.span_names import VERIFY_SERVICE
from forerun.obs.tracing import Tracer, open_tracer
from forerun.transport import Security, server_options
from forerun.v1 import verify_pb2
from forerun.v1.verify_pb2_grpc import add_VerifyServiceServicer_to_server
from verify_server.config import VerifyConfig
from verify_server.engine_thread import EngineThread
from verify_server.events import EndAll, Refuse
from verify_server.heartbeat import watch
from verify_server.metrics import Metrics
from verify_server.scheduler import Scheduler
from verify_server.servicer import VerifyServicer
from verify_server.target import Target, load_target

logger = logging.getLogger(__name__)

SERVICE = verify_pb2.DESCRIPTOR.services_by_name["VerifyService"].full_name
HEALTH_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
# What is left to write after the last session ended gets this long.
CLOSE_S = 2.0


class VerifyServer:
    """A verify server on the running event loop, for one target. tracer: what records its sessions,
    nothing by default.

    `address` is where it listens (a port of 0 becomes the one that was chosen), and
    `metrics_address` where metrics are served, both known after `start`. Raises ValueError where
    the settings do not fit the engine or each other, or FORERUN_ISA names a level that cannot run.
    """

    def __init__(self, target: Target, config: VerifyConfig, tracer: Tracer | None = None) -> None:
        self.config = config
        self._tracer = tracer or Tracer()
        self.metrics = Metrics()
        levels = [(level["name"], level["reason"]) for level in isa_report()["levels"]]
        register_isa_info(self.metrics.registry, target.engine.info.isa, levels)
        self.address = ""
        self.metrics_address = ""
        self._metrics_server: WSGIServer | None = None
        self.scheduler = Scheduler(
            target.engine,
            config,
            vocab_size=target.vocab_size,
            eos_ids=target.eos_token_ids,
            metrics=self.metrics,
        )
        description = target.describe(config, self.scheduler.admission.max_context)
        self.servicer = VerifyServicer(
            description, target.vocabulary, config.outbox_bytes, self._tracer
        )
        self.metrics.streams.set_function(lambda: self.servicer.num_streams)
        self._thread = EngineThread(
            self.scheduler, target.engine, self.servicer.deliver, self._on_engine_failure
        )
        self.servicer.engine_thread = self._thread
        self._health = health_aio.HealthServicer()
        self._security = Security.load(
            tls_cert=config.tls_cert,
            tls_key=config.tls_key,
            tls_ca=config.tls_ca,
            token_file=config.token_file,
        )
        self._hurry = asyncio.Event()
        self._server: grpc.aio.Server | None = None
        self._started = False
        self._engine_works = self._engine_moves = True
        self._watching: asyncio.Task[None] | None = None
        self._failure: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listens, warms the engine up, and only then says SERVING.

        Raises RuntimeError where the address cannot be had, and what the engine raises.
        """
        await self._tell_health()
        server = grpc.aio.server(
            options=server_options(self.config.max_message_bytes),
            interceptors=self._security.interceptors(),
        )
        add_VerifyServiceServicer_to_server(self.servicer, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if self.config.reflection:
            names = (SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, server)
        self.address = self._security.bind(server, self.config.listen)
        self._start_metrics()
        await server.start()
        self._server = server
        try:
            await self._thread.start()
        except BaseException:
            await server.stop(None)
            raise
        self._started = True
        await self._tell_health()
        watching = watch(lambda: self._thread.busy_s, self.config.hang_s, self._on_heartbeat)
        self._watching = asyncio.create_task(watching, name="heartbeat")
        logger.info("serving on %s", self.address)

    async def stop(self, grace_s: float | None = None) -> None:
        """Takes no more sessions, lets open ones finish for `grace_s` seconds (the config's if
        None), ends the rest with UNAVAILABLE, and frees everything."""
        assert self._server is not None, "start comes first"
        grace_s = self.config.grace_s if grace_s is None else grace_s
        logger.info("stopping; open sessions get %g s", grace_s)
        error = Unavailable("the verify server is stopping", reason="DRAINING")
        await self._health.enter_graceful_shutdown()
        self.servicer.drain(int(grace_s * 1000))
        self._thread.submit([Refuse(error)])
        await self._wait_idle(grace_s)
        await self._thread.handled(EndAll(error), within_s=CLOSE_S)
        self.servicer.end_streams()
        await self._server.stop(CLOSE_S)
        await self._thread.stop(CLOSE_S)
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._metrics_server is not None:
            self._metrics_server.shutdown()
            self._metrics_server.server_close()
        await self._tracer.close()
        logger.info("stopped")

    def hurry(self) -> None:
        """Cuts the grace period of `stop` short."""
        self._hurry.set()

    async def _wait_idle(self, grace_s: float) -> None:
        async def idle() -> None:
            await self._thread.handled()  # what was handed in before may open sessions
            await self.servicer.idle.wait()

        waits = [asyncio.create_task(wait) for wait in (idle(), self._hurry.wait())]
        await asyncio.wait(waits, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if not self.servicer.idle.is_set():
            logger.warning("the grace period is over; %d sessions end", self.scheduler.num_sessions)

    def _start_metrics(self) -> None:
        if self.config.metrics_port is not None:
            self._metrics_server, self.metrics_address = serve_metrics(
                self.metrics.registry, self.config.metrics_port, self.config.listen
            )

    def _on_engine_failure(self) -> None:
        self._engine_works = False
        self._failure = asyncio.ensure_future(self._tell_health())

    async def _on_heartbeat(self, alive: bool) -> None:
        self._engine_moves = alive
        await self._tell_health()

    async def _tell_health(self) -> None:
        states = health_pb2.HealthCheckResponse
        for service in ("", SERVICE):
            # Looked at for each, since `set` waits: whoever changes it tells last.
            serving = self._started and self._engine_works and self._engine_moves
            await self._health.set(service, states.SERVING if serving else states.NOT_SERVING)


async def serve(config: VerifyConfig) -> None:
    """Runs a verify server until SIGTERM or SIGINT, then drains it; a second signal cuts that
    short."""
    tracer = open_tracer(config.tracing, VERIFY_SERVICE)
    target = await asyncio.to_thread(load_target, config)
    server = VerifyServer(target, config, tracer)
    await server.start()
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            server.hurry()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    await stop.wait()
    await server.stop()


def run(config: VerifyConfig) -> None:
    """`serve` on a loop of its own, uvloop's where it is installed."""
    logger.info("verify server: %s", config.describe())
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(config))
    else:
        uvloop.run(serve(config))
