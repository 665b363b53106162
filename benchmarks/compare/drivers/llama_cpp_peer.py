"""llama.cpp through llama-cpp-python's binding of its C interface: tokens in, logits out.

The next token is NumPy's argmax of the logits, which is faster than llama.cpp's own sampler.
"""

from __future__ import annotations

import time
from pathlib import Path

import llama_cpp as api
import numpy as np
from protocol import Peer, Prompts, Timed, serve

BATCH = 512


class LlamaCpp(Peer):
    """A context of its own for each set of prompts, so that none looks at the cache of another."""

    dtype = "bfloat16 weights"

    def __init__(self, folder: str, threads: int) -> None:
        api.llama_backend_init()
        self._model = api.llama_model_load_from_file(
            str(Path(folder) / "model.bf16.gguf").encode(), api.llama_model_default_params()
        )
        self._threads = threads
        self._vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._cached: dict[str, tuple[object, list[int]]] = {}
        self.versions = {
            "llama-cpp-python": api.__version__,
            "system": api.llama_print_system_info().decode().strip(" |"),
        }

    def decode(self, prompts: Prompts, steps: int) -> Timed:
        key = repr((prompts, steps))
        if key not in self._cached:
            context = self._context(len(prompts), max(map(len, prompts)) + steps + 1)
            firsts = [self._prefill(context, prompt, i) for i, prompt in enumerate(prompts)]
            self._cached[key] = context, firsts
        context, last = self._cached[key]
        tokens = [[first] for first in last]
        start = time.perf_counter()
        for step in range(steps):
            rows = [
                (answer[-1], len(prompt) + step, stream, True)
                for stream, (prompt, answer) in enumerate(zip(prompts, tokens, strict=True))
            ]
            self._decode(context, rows)
            for stream, answer in enumerate(tokens):
                answer.append(self._choice(context, stream))
        seconds = time.perf_counter() - start
        memory = api.llama_get_memory(context)
        for stream, prompt in enumerate(prompts):
            api.llama_memory_seq_rm(memory, stream, len(prompt), -1)
        return seconds, tokens

    def prefill(self, prompt: list[int]) -> Timed:
        context = self._context(1, len(prompt) + 1)
        start = time.perf_counter()
        first = self._prefill(context, prompt, 0)
        seconds = time.perf_counter() - start
        api.llama_free(context)
        return seconds, [[first]]

    def _context(self, streams: int, tokens: int) -> object:
        params = api.llama_context_default_params()
        params.n_seq_max = streams
        params.n_ctx = streams * (-(-tokens // 256) * 256)
        params.n_batch = params.n_ubatch = BATCH
        # A cache of its own for each stream, which is the faster way where no prefix is shared.
        params.kv_unified = False
        params.n_threads = params.n_threads_batch = self._threads
        context = api.llama_init_from_model(self._model, params)
        if not context:
            raise RuntimeError(f"no context for {streams} streams of {tokens} tokens")
        # What is allocated at the first step is no part of a measurement.
        self._decode(context, [(0, 0, 0, True)])
        api.llama_memory_clear(api.llama_get_memory(context), True)
        return context

    def _prefill(self, context: object, prompt: list[int], stream: int) -> int:
        for start in range(0, len(prompt), BATCH):
            part = prompt[start : start + BATCH]
            rows = [
                (token, start + i, stream, start + i + 1 == len(prompt))
                for i, token in enumerate(part)
            ]
            self._decode(context, rows)
        return self._choice(context, -1)

    def _choice(self, context: object, row: int) -> int:
        logits = api.llama_get_logits_ith(context, row)
        return int(np.ctypeslib.as_array(logits, shape=(self._vocab_size,)).argmax())

    def _decode(self, context: object, rows: list[tuple[int, int, int, bool]]) -> None:
        """rows: (token, position, stream, whether its logits are wanted)."""
        batch = api.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (token, position, stream, wanted) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = stream
            batch.logits[i] = wanted
        code = api.llama_decode(context, batch)
        api.llama_batch_free(batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code} for {len(rows)} tokens")


if __name__ == "__main__":
    serve(LlamaCpp)
