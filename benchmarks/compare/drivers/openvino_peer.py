"""OpenVINO GenAI's pipeline with continuous batching, driven step by step.

The model is converted once, by Optimum, into a folder beside the exported one.
"""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai
from protocol import Peer, Prompts, Timed, serve


class OpenVino(Peer):
    """Requests of one case go in together; prompts that were seen before come from its cache."""

    def __init__(self, folder: str, threads: int) -> None:
        converted = Path(folder) / "openvino"
        if not (converted / "openvino_model.xml").is_file():
            convert(Path(folder) / "hugging-face", converted)
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 1
        scheduler.max_num_batched_tokens = 512
        scheduler.max_num_seqs = 16
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = True
        self._pipe = genai.ContinuousBatchingPipeline(
            str(converted), scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
        )
        self._count = 0
        names = ("openvino", "openvino-genai", "optimum-intel", "torch")
        self.versions = {name: version(name) for name in names}
        core = ov.Core()
        model = core.read_model(converted / "openvino_model.xml")
        weights = max(_constants(model), key=lambda constant: constant.get_byte_size())
        precision = core.compile_model(model, "CPU").get_property("INFERENCE_PRECISION_HINT")
        self.dtype = f"{precision.to_string()}, weights in {weights.get_element_type().to_string()}"

    def decode(self, prompts: Prompts, steps: int) -> Timed:
        handles = self._add(prompts, steps + 1)
        answers: Prompts = [[] for _ in prompts]
        while not all(answers):
            self._step(handles, answers)
        most = min(len(answer) for answer in answers)
        start = time.perf_counter()
        while self._pipe.has_non_finished_requests():
            self._step(handles, answers)
        seconds = time.perf_counter() - start
        return seconds * steps / (steps + 1 - most), answers

    def prefill(self, prompt: list[int]) -> Timed:
        handles = self._add([prompt], 1)
        answers: Prompts = [[]]
        start = time.perf_counter()
        while self._pipe.has_non_finished_requests():
            self._step(handles, answers)
        return time.perf_counter() - start, answers

    def _add(self, prompts: Prompts, max_tokens: int) -> list[genai.GenerationHandle]:
        config = genai.GenerationConfig(max_new_tokens=max_tokens, do_sample=False, ignore_eos=True)
        handles = []
        for prompt in prompts:
            self._count += 1
            ids = ov.Tensor(np.asarray([prompt], np.int64))
            handles.append(self._pipe.add_request(self._count, ids, config))
        return handles

    def _step(self, handles: list[genai.GenerationHandle], answers: Prompts) -> None:
        self._pipe.step()
        for handle, answer in zip(handles, answers, strict=True):
            while handle.can_read():
                for output in handle.read().values():
                    answer.extend(output.generated_ids)


def _constants(model: ov.Model) -> list[ov.Node]:
    return [op for op in model.get_ops() if op.get_type_name() == "Constant"]


def convert(source: Path, target: Path) -> None:
    """Raises RuntimeError with what the converter said last."""
    command = [
        str(Path(sys.executable).with_name("optimum-cli")), "export", "openvino",
        "--task", "text-generation-with-past", "--model", str(source), str(target),
    ]  # fmt: skip
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        lines = finished.stderr.strip().splitlines() or ["it gave no reason"]
        raise RuntimeError(f"optimum-cli cannot convert the model: {lines[-1]}")


if __name__ == "__main__":
    serve(OpenVino)
