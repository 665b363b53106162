"""Owns the measurement of an engine's steps; prints nothing.

Every kind of step is timed in turn, round after round, so that a slow minute of a shared machine
falls on all of them alike; each figure is the median over the rounds. The memory bandwidth is read
between the rounds, with the same number of threads.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.engine import Engine, Rows, Sequence, read_bandwidth

SESSIONS = (1, 2, 4, 8, 16, 32)
NODES = (1, 2, 4, 8, 12, 16, 24, 32, 64)
CONTEXTS = (128, 2048)
PREFILLS = (128, 512, 2048)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured. rounds: timed steps of each kind; warm_up: rounds before them."""

    sessions: tuple[int, ...] = SESSIONS
    nodes: tuple[int, ...] = NODES
    contexts: tuple[int, ...] = CONTEXTS
    prefills: tuple[int, ...] = PREFILLS
    prefill_chunk: int = 512
    rounds: int = 15
    warm_up: int = 2

    @property
    def kv_tokens(self) -> int:
        """Tokens that the pool must hold, with room for a page more a sequence."""
        decoding = max(self.sessions) * (self.contexts[0] + 64)
        return decoding + sum(c + 128 for c in self.contexts) + max(self.prefills) + 128


@dataclass(slots=True)
class Samples:
    """Seconds of one kind of step, one a round."""

    run: Callable[[], None]
    seconds: list[float] = field(default_factory=list)

    def take(self) -> None:
        start = time.perf_counter()
        self.run()
        self.seconds.append(time.perf_counter() - start)

    @property
    def median_ms(self) -> float:
        return round(1e3 * statistics.median(self.seconds), 3)


def measure(engine: Engine, plan: Plan, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """The figures of one run, as JSON values.

    progress: (rounds done, rounds in all). The engine must be free, with a pool of
    plan.kv_tokens, and take max(prefill_chunk, the most nodes + 1) rows a forward.
    """
    info = engine.info
    random = np.random.default_rng(0)

    def tokens(count: int) -> NDArray[np.int32]:
        return random.integers(0, info.vocab_size, count, dtype=np.int32)

    def context(length: int) -> Sequence:
        sequence = engine.open()
        prefill(engine, sequence, tokens(length), plan.prefill_chunk)
        return sequence

    sessions = [context(plan.contexts[0]) for _ in range(max(plan.sessions))]
    trees = {length: context(length) for length in plan.contexts}

    def decode(count: int) -> Samples:
        rows = [Rows(sequence, tokens(1), None, "all") for sequence in sessions[:count]]
        return Samples(lambda: _forget(engine, rows))

    def verify(length: int, nodes: int) -> Samples:
        # A row of its own for each node: the root and nodes - 1 proposals, branching in two.
        parents = np.asarray([-1, *((i - 1) // 2 for i in range(1, nodes))], dtype=np.int32)
        rows = [Rows(trees[length], tokens(nodes), parents, "all")]
        return Samples(lambda: _forget(engine, rows))

    def prefills_of(length: int) -> Samples:
        prompt = tokens(length)

        def run() -> None:
            sequence = engine.open()
            prefill(engine, sequence, prompt, plan.prefill_chunk)
            engine.release(sequence)

        return Samples(run)

    decodes = {count: decode(count) for count in plan.sessions}
    verifies = {c: {n: verify(c, n) for n in plan.nodes} for c in plan.contexts}
    prefills = {length: prefills_of(length) for length in plan.prefills}
    steps = [*decodes.values(), *(s for by in verifies.values() for s in by.values())]

    bandwidths: list[float] = []
    rounds = plan.warm_up + plan.rounds
    for done in range(rounds):
        if done == plan.warm_up:
            for samples in (*steps, *prefills.values()):
                samples.seconds.clear()
            bandwidths.clear()
        for samples in steps:
            samples.take()
        if (done - plan.warm_up) % 3 == 0:  # prefills are long, and vary less
            for samples in prefills.values():
                samples.take()
        bandwidths.append(read_bandwidth(info.threads, repeats=3))
        progress(done + 1, rounds)
    for sequence in (*sessions, *trees.values()):
        engine.release(sequence)

    bandwidth = statistics.median(bandwidths)
    step_s = decodes[min(decodes)].median_ms / 1e3
    return {
        "isa": info.isa,
        "threads": info.threads,
        "dtype": info.dtype,
        "page_size": info.page_size,
        "read_bandwidth_gb_per_s": round(bandwidth, 2),
        "weight_bytes": info.weight_bytes,
        "fraction_of_bandwidth": round(info.weight_bytes / step_s / 1e9 / bandwidth, 3),
        "decode_ms": {str(n): samples.median_ms for n, samples in decodes.items()},
        "verify_ms": {
            str(c): {str(n): samples.median_ms for n, samples in by.items()}
            for c, by in verifies.items()
        },
        "prefill_tokens_per_s": {
            str(n): round(n / (samples.median_ms / 1e3), 1) for n, samples in prefills.items()
        },
        "rounds": plan.rounds,
    }


def _forget(engine: Engine, rows: list[Rows]) -> None:
    """Runs rows and keeps none of them, so that the next round finds the same cache."""
    for row in rows:
        if not engine.reserve(row.sequence, row.sequence.length + len(row.token_ids)):
            raise ValueError("the KV pool is too small for the plan; raise kv_tokens")
    engine.forward(rows)
    engine.commit([(row.sequence, 0) for row in rows])


def prefill(
    engine: Engine, sequence: Sequence, prompt: NDArray[np.int32], chunk: int
) -> NDArray[np.int32]:
    """Caches a prompt, `chunk` rows a forward; returns the token that follows it, int32 [1].

    Raises ValueError where the pool has no room for it.
    """
    predictions = np.empty(0, np.int32)
    for start in range(0, len(prompt), chunk):
        part = prompt[start : start + chunk]
        if not engine.reserve(sequence, sequence.length + len(part)):
            raise ValueError("the KV pool is too small for the plan; raise kv_tokens")
        last = start + chunk >= len(prompt)
        [out] = engine.forward([Rows(sequence, part, None, "last" if last else "none")])
        engine.commit([(sequence, len(part))])
        predictions = out.predictions
    return predictions
