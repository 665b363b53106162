"""The client of a draft server: text in, the target's own greedy text out.

`Client` blocks, `AsyncClient` does not; both need grpcio and protobuf alone. Errors are the classes
of `forerun.errors`.
"""

from __future__ import annotations

from forerun.client.aio import AsyncClient, AsyncGenerationStream
from forerun.client.connection import TLS, ConnectionOptions, KeepAlive
from forerun.client.request import GenerateParams, SamplingParams
from forerun.client.result import Chunk, Generation, GenerationStats, ModelInfo
from forerun.client.sync import Client, GenerationStream

__all__ = [
    "TLS",
    "AsyncClient",
    "AsyncGenerationStream",
    "Chunk",
    "Client",
    "ConnectionOptions",
    "GenerateParams",
    "Generation",
    "GenerationStats",
    "GenerationStream",
    "KeepAlive",
    "ModelInfo",
    "SamplingParams",
]
