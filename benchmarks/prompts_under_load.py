"""Measures what the prefix cache saves, and what a long prompt costs those who decode.

    .venv/bin/python -m benchmarks.prompts_under_load [MODEL] > figures.json

The scheduler runs on the real engine in this process, without the wire. Variants take turns, round
after round; figures are medians over the rounds.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from forerun.engine import Engine, EngineConfig
from forerun.models import default_model_path, open_checkpoint
from verify_server.config import VerifyConfig
from verify_server.events import CancelSession, OpenSession
from verify_server.scheduler import Scheduler

ROUNDS = 3
PROMPTS = (512, 1500)
ARRIVING = 2000
DECODING = 4
# Where a step may take more than it ever does, prompts have whole chunks.
STEP_MS = {"limited": 0.0, "unlimited": 1e6}


class Server:
    """A scheduler that is stepped by whoever measures. Its sessions are numbered on."""

    def __init__(self, engine: Engine, step_ms: float = 0.0) -> None:
        config = VerifyConfig(step_ms=step_ms)
        self._scheduler = Scheduler(engine, config, vocab_size=engine.info.vocab_size)
        self._sessions = 0

    def open(self, prompt: list[int], max_tokens: int) -> int:
        self._sessions += 1
        now_ns = time.monotonic_ns()
        self._scheduler.submit(
            OpenSession(1, self._sessions, prompt, max_tokens, received_ns=now_ns)
        )
        return self._sessions

    def step(self) -> tuple[float, set[int]]:
        """Milliseconds of a step, and the sessions that got their first token."""
        began = time.perf_counter()
        outputs = self._scheduler.step().values()
        opened = {opened.session for output in outputs for opened in output.opened}
        return 1e3 * (time.perf_counter() - began), opened

    def until_opened(self, sessions: set[int]) -> list[float]:
        """Milliseconds of the steps until these sessions have their first token."""
        steps = []
        while sessions:
            milliseconds, opened = self.step()
            steps.append(milliseconds)
            sessions = sessions - opened
        return steps

    def end(self) -> None:
        for session in range(1, self._sessions + 1):
            self._scheduler.submit(CancelSession(1, session))
        self._scheduler.step()


def forget(engine: Engine) -> None:
    """Empties the prefix cache; nobody may hold a page."""
    sequence = engine.open()
    engine.reserve(sequence, engine.info.pages_total * engine.info.page_size)
    engine.release(sequence)


def measure_first_tokens(engine: Engine, rng: random.Random) -> dict[str, Any]:
    """Milliseconds to the first token of a prompt that is new, and of the same one again."""
    server = Server(engine)
    new: dict[int, list[float]] = {length: [] for length in PROMPTS}
    again: dict[int, list[float]] = {length: [] for length in PROMPTS}
    for _ in range(ROUNDS):
        for length in PROMPTS:
            prompt = random_prompt(engine, rng, length)
            for times in (new, again):
                times[length].append(sum(server.until_opened({server.open(prompt, 1)})))
            forget(engine)
    return {
        str(length): {
            "new_ms": round(statistics.median(new[length]), 1),
            "again_ms": round(statistics.median(again[length]), 1),
            "ratio": round(
                statistics.median(a / n for a, n in zip(again[length], new[length], strict=True)), 3
            ),
        }
        for length in PROMPTS
    }


def measure_steps(engine: Engine, rng: random.Random) -> dict[str, Any]:
    """Milliseconds of the steps of sessions that decode while a long prompt comes in."""
    servers = {name: Server(engine, step_ms) for name, step_ms in STEP_MS.items()}
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
    for _ in range(ROUNDS):
        for name, server in servers.items():
            prompts = [random_prompt(engine, rng, 40) for _ in range(DECODING)]
            server.until_opened({server.open(prompt, 4000) for prompt in prompts})
            plain = statistics.median(server.step()[0] for _ in range(20))
            arriving = server.open(random_prompt(engine, rng, ARRIVING), 1)
            during = server.until_opened({arriving})
            server.end()
            forget(engine)
            figures[name].append(
                {
                    "plain_ms": plain,
                    "median_ms": statistics.median(during),
                    "longest_ms": max(during),
                    "prompt_ms": sum(during),
                }
            )
    return {
        name: {key: round(statistics.median(r[key] for r in rounds), 1) for key in rounds[0]}
        for name, rounds in figures.items()
    }


def random_prompt(engine: Engine, rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(engine.info.vocab_size) for _ in range(length)]


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else default_model_path()
    config = VerifyConfig()
    settings = EngineConfig(kv_tokens=config.kv_tokens, max_rows=config.max_rows)
    with open_checkpoint(path) as checkpoint:
        engine = Engine.load(checkpoint, settings)
    rng = random.Random(0)
    figures = {
        "isa": engine.info.isa,
        "threads": engine.info.threads,
        "rounds": ROUNDS,
        "first_token": measure_first_tokens(engine, rng),
        "decoding_while_a_prompt_comes_in": measure_steps(engine, rng),
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
