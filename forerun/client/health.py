"""Asks the standard health service. Its messages are in a package that only this call needs."""

from __future__ import annotations

from typing import Any


def check(channel: Any) -> tuple[Any, Any]:
    """The Check method on a channel (sync or aio), and the request for the server as a whole."""
    try:
        from grpc_health.v1 import health_pb2, health_pb2_grpc
    except ImportError as error:
        raise ImportError(
            "health() needs grpcio-health-checking: pip install grpcio-health-checking"
        ) from error
    return health_pb2_grpc.HealthStub(channel).Check, health_pb2.HealthCheckRequest()


def status_name(response: Any) -> str:
    """The name of a status, such as "SERVING"."""
    name: str = response.ServingStatus.Name(response.status)
    return name
