"""Transformers on PyTorch: its own forward with its own cache, one call a step."""

from __future__ import annotations

import time
from pathlib import Path

import torch
import transformers
from protocol import Peer, Prompts, Timed, serve
from transformers import AutoModelForCausalLM, DynamicCache


class Transformers(Peer):
    """One batch a set of prompts, all of one length; the cache is cropped back after each use."""

    dtype = "bfloat16"

    def __init__(self, folder: str, threads: int) -> None:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self._model = AutoModelForCausalLM.from_pretrained(
            Path(folder) / "hugging-face", dtype=torch.bfloat16
        ).eval()
        self._cached: dict[str, tuple[DynamicCache, torch.Tensor]] = {}
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__}

    def decode(self, prompts: Prompts, steps: int) -> Timed:
        key = repr(prompts)
        if key not in self._cached:
            self._cached[key] = self._forward(torch.tensor(prompts), DynamicCache())
        cache, token = self._cached[key]
        answers = [token]
        start = time.perf_counter()
        for _ in range(steps):
            _, token = self._forward(token, cache)
            answers.append(token)
        seconds = time.perf_counter() - start
        cache.crop(-steps)
        return seconds, torch.cat(answers, dim=1).tolist()

    def prefill(self, prompt: list[int]) -> Timed:
        start = time.perf_counter()
        _, token = self._forward(torch.tensor([prompt]), DynamicCache())
        return time.perf_counter() - start, token.tolist()

    def _forward(
        self, token_ids: torch.Tensor, cache: DynamicCache
    ) -> tuple[DynamicCache, torch.Tensor]:
        """The filled cache, and the token that follows each row, int64 [rows, 1]."""
        out = self._model(token_ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return out.past_key_values, out.logits[:, -1].argmax(dim=-1, keepdim=True)


if __name__ == "__main__":
    serve(Transformers)
