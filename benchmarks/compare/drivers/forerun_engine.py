"""forerun's engine, called in-process as llama.cpp's is."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from protocol import Peer, Prompts, Timed, serve

from forerun import __version__
from forerun.bench.engine import prefill
from forerun.engine import Engine, EngineConfig, Rows, Sequence
from forerun.models import open_checkpoint

CHUNK = 512


class ForerunEngine(Peer):
    """Keeps the sequences of each set of prompts, and forgets what was decoded behind them."""

    dtype = "bfloat16"

    def __init__(self, folder: str, threads: int) -> None:
        config = EngineConfig(threads=threads, max_rows=CHUNK, kv_tokens=16384)
        with open_checkpoint(Path(folder) / "hugging-face") as checkpoint:
            self._engine = Engine.load(checkpoint, config)
        self.versions = {"forerun": __version__, "kernels": self._engine.info.isa}
        self._cached: dict[str, list[tuple[Sequence, int, np.ndarray]]] = {}

    def decode(self, prompts: Prompts, steps: int) -> Timed:
        key = repr(prompts)
        if key not in self._cached:
            self._cached[key] = [self._prefill(prompt) for prompt in prompts]
        cached = self._cached[key]
        rows = [Rows(sequence, first, None, "all") for sequence, _, first in cached]
        tokens = [[int(first[0])] for _, _, first in cached]
        start = time.perf_counter()
        for _ in range(steps):
            for row in rows:
                self._engine.reserve(row.sequence, row.sequence.length + 1)
            outs = self._engine.forward(rows)
            self._engine.commit([(row.sequence, 1) for row in rows])
            for row, out, answer in zip(rows, outs, tokens, strict=True):
                row.token_ids = out.predictions
                answer.append(int(out.predictions[0]))
        seconds = time.perf_counter() - start
        for sequence, length, _ in cached:
            self._engine.truncate(sequence, length)
        return seconds, tokens

    def prefill(self, prompt: list[int]) -> Timed:
        start = time.perf_counter()
        sequence, _, first = self._prefill(prompt)
        seconds = time.perf_counter() - start
        self._engine.release(sequence)
        return seconds, [[int(first[0])]]

    def _prefill(self, prompt: list[int]) -> tuple[Sequence, int, np.ndarray]:
        sequence = self._engine.open()
        first = prefill(self._engine, sequence, np.asarray(prompt, np.int32), CHUNK)
        return sequence, len(prompt), first


if __name__ == "__main__":
    serve(ForerunEngine)
