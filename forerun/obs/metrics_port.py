"""Owns the port of a server's Prometheus metrics. Knows no metric."""

from __future__ import annotations

import logging
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from forerun.address import UNIX

logger = logging.getLogger(__name__)


def serve_metrics(registry: CollectorRegistry, port: int, listen: str) -> tuple[WSGIServer, str]:
    """Serves over HTTP where the server itself listens, on loopback beside a Unix socket; returns
    what serves and its host:port (port 0: any). Raises RuntimeError where the port cannot be had.
    """
    host = "127.0.0.1" if listen.startswith(UNIX) else listen.rpartition(":")[0].strip("[]")
    shown = f"[{host}]" if ":" in host else host
    try:
        server, _ = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise RuntimeError(
            f"cannot serve metrics on {shown}:{port}: {error.strerror}; see --metrics-port"
        ) from error
    address = f"{shown}:{server.server_port}"
    logger.info("metrics on http://%s/metrics", address)
    return server, address
