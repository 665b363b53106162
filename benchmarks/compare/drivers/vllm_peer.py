"""vLLM's engine on the CPU, in this process, driven step by step."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

# Read when vLLM is imported.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
os.environ["VLLM_USE_AOT_COMPILE"] = "0"  # what it saves it cannot load again
os.environ["OMP_NUM_THREADS"] = sys.argv[2]

import vllm
from protocol import Answered, Peer, Prompts, Timed, answers_prompts, drafts, serve
from vllm import LLM, SamplingParams

# vLLM drafts chains alone; a tree of 8 goes about as deep.
CHAIN = 4


class Vllm(Peer):
    """Requests of one case go in together; prompts that were seen before come from its cache."""

    dtype = "bfloat16"

    def __init__(self, folder: str, threads: int) -> None:
        given = drafts()
        config = given and {
            "method": given[0],
            "model": given[1],
            "num_speculative_tokens": CHAIN,
        }
        llm = LLM(
            model=str(Path(folder) / "hugging-face"),
            dtype="bfloat16",
            skip_tokenizer_init=True,
            max_model_len=4096,
            max_num_seqs=16,
            enable_prefix_caching=not answers_prompts(),
            speculative_config=config,
            disable_log_stats=not given,
        )
        self._llm = llm
        self._engine = llm.llm_engine
        self._count = 0
        self.versions = {"vllm": vllm.__version__}

    def decode(self, prompts: Prompts, steps: int) -> Timed:
        answers = self._add(prompts, steps + 1)
        while not all(answers.values()):
            self._step(answers)
        lengths = [len(answer) for answer in answers.values()]
        start = time.perf_counter()
        while self._engine.has_unfinished_requests():
            self._step(answers)
        seconds = time.perf_counter() - start
        taken = steps + 1 - min(lengths)
        return seconds * steps / taken, list(answers.values())

    def prefill(self, prompt: list[int]) -> Timed:
        answers = self._add([prompt], 1)
        start = time.perf_counter()
        while self._engine.has_unfinished_requests():
            self._step(answers)
        return time.perf_counter() - start, list(answers.values())

    def answer(self, prompts: Prompts, streams: int, max_tokens: int) -> Answered:
        rounds, accepted = self._counts()
        tokens = []
        start = time.perf_counter()
        for first in range(0, len(prompts), streams):
            answers = self._add(prompts[first : first + streams], max_tokens)
            while self._engine.has_unfinished_requests():
                self._step(answers)
            tokens += answers.values()
        seconds = time.perf_counter() - start
        rounds_now, accepted_now = self._counts()
        return Answered(seconds, tokens, rounds_now - rounds, accepted_now - accepted)

    def _counts(self) -> tuple[int, int]:
        """Drafts that were verified, and their accepted tokens, since the start."""
        if drafts() is None:
            return 0, 0
        values = {metric.name: getattr(metric, "value", 0) for metric in self._llm.get_metrics()}
        return (
            int(values.get("vllm:spec_decode_num_drafts", 0)),
            int(values.get("vllm:spec_decode_num_accepted_tokens", 0)),
        )

    def _add(self, prompts: Prompts, max_tokens: int) -> dict[str, list[int]]:
        params = SamplingParams(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False
        )
        answers: dict[str, list[int]] = {}
        for prompt in prompts:
            self._count += 1
            name = str(self._count)
            self._engine.add_request(name, {"prompt_token_ids": prompt}, params)
            answers[name] = []
        return answers

    def _step(self, answers: dict[str, list[int]]) -> None:
        for output in self._engine.step():
            answers[output.request_id] = list(output.outputs[0].token_ids)


if __name__ == "__main__":
    serve(Vllm)
