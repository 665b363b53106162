"""Owns the measurement of whole generations through both servers; prints and starts nothing.

Every setting (a way of drafting, a number of streams) takes its turn in every round, and so do the
engine's own steps at the same contexts, so that a slow minute of a shared machine falls on all of
them alike. Rates are medians over the rounds, latencies percentiles over all streams of all rounds.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.bench.engine import prefill
from forerun.bench.streams import Stream, Wave, run_wave
from forerun.client import AsyncClient
from forerun.engine import Engine, Rows

PLAIN = "none"
PERCENTILES = (50, 90, 99)
PREFILL_CHUNK = 256


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured. concurrency: streams at once, one setting each; max_tokens: of each answer;
    answers: of each stream, one after the other; rounds: timed waves of each setting; warm_up:
    rounds before them."""

    concurrency: tuple[int, ...] = (1, 4, 16)
    max_tokens: int = 64
    answers: int = 2
    rounds: int = 5
    warm_up: int = 1


@dataclass(slots=True)
class Setting:
    """The waves of one way of drafting with one number of streams, one a round."""

    draft: str
    concurrency: int
    waves: list[Wave] = field(default_factory=list)

    def figures(self, plain: Setting | None) -> dict[str, Any]:
        """JSON values; `plain` is the setting without drafts to compare with."""
        streams = [stream for wave in self.waves for stream in wave.streams]
        rates = [wave.tokens_per_s for wave in self.waves]
        decoding = [rate for wave in self.waves if (rate := wave.decode_tokens_per_s) is not None]
        rounds = sum(stream.stats.rounds for stream in streams)
        accepted = sum(stream.stats.accepted for stream in streams)
        figures = {
            "draft": self.draft,
            "concurrency": self.concurrency,
            "tokens_per_s": round(statistics.median(rates), 2),
            "decode_tokens_per_s": round(statistics.median(decoding), 2) if decoding else None,
            "ttft_ms": _percentiles([stream.first_token_s for stream in streams]),
            "inter_token_ms": _percentiles([s for each in streams for s in each.inter_token_s]),
            "accepted_per_round": round(accepted / rounds, 3) if rounds else None,
        }
        if plain is not None:
            pairs = list(zip(self.waves, plain.waves, strict=True))
            ratios = [mine.tokens_per_s / theirs.tokens_per_s for mine, theirs in pairs]
            figures["times_plain"] = round(statistics.median(ratios), 3)
            paces = [(mine.mean_inter_token_s, theirs.mean_inter_token_s) for mine, theirs in pairs]
            ratios = [theirs / mine for mine, theirs in paces if mine and theirs]
            figures["decoding_times_plain"] = (
                round(statistics.median(ratios), 3) if ratios else None
            )
        return figures


def measure(
    addresses: Mapping[str, str],
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    plan: Plan,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """The figures of one run, as JSON values.

    addresses: of a draft server for each way of drafting; all of them, and `engine`, have the same
    target. engine: free, with a pool of `kv_tokens(prompts, plan)`. prompts: token ids; streams
    take them in turn. progress: (rounds done, rounds in all).

    Raises RuntimeError where a way of drafting changes the tokens of an answer, and ValueError
    where the pool is too small.
    """
    settings = [Setting(draft, count) for count in plan.concurrency for draft in addresses]
    engine_rates: dict[int, list[float]] = {count: [] for count in plan.concurrency}
    answers: dict[tuple[int, ...], tuple[int, ...]] = {}
    with _clients(addresses) as run:
        for number in range(plan.warm_up + plan.rounds):
            progress(number, plan.warm_up + plan.rounds)
            timed = number >= plan.warm_up
            for count in plan.concurrency:
                asked = count * plan.answers
                chosen = [prompts[(number * asked + i) % len(prompts)] for i in range(asked)]
                for setting in (s for s in settings if s.concurrency == count):
                    wave = run(setting.draft, chosen, plan.max_tokens, count)
                    _require_same(answers, chosen, wave.streams, setting.draft)
                    if timed:
                        setting.waves.append(wave)
                rate = _decode_rate(engine, chosen[:count], plan.max_tokens)
                if timed:
                    engine_rates[count].append(rate)
    progress(1, 1)
    plain = {setting.concurrency: setting for setting in settings if setting.draft == PLAIN}
    return {
        "max_tokens": plan.max_tokens,
        "answers": plan.answers,
        "rounds": plan.rounds,
        "prompts": len(prompts),
        "prompt_tokens": round(statistics.mean(map(len, prompts)), 1),
        "settings": [s.figures(plain.get(s.concurrency)) for s in settings],
        "engine": {
            str(count): _compare(rates, plain.get(count)) for count, rates in engine_rates.items()
        },
    }


def kv_tokens(prompts: Sequence[Sequence[int]], plan: Plan, page_size: int) -> int:
    """Tokens that the pool of the engine must hold."""
    longest = max(map(len, prompts)) + plan.max_tokens
    return max(plan.concurrency) * (longest + page_size)


@contextmanager
def _clients(
    addresses: Mapping[str, str],
) -> Iterator[Callable[[str, Sequence[Sequence[int]], int, int], Wave]]:
    """A connection for each way of drafting; yields what runs one wave. The loop stands still
    between waves, so that nothing of this process disturbs the engine's own steps."""
    loop = asyncio.new_event_loop()
    clients: dict[str, AsyncClient] = {}

    async def connect() -> None:
        for draft, address in addresses.items():
            clients[draft] = AsyncClient(address, timeout=None)

    async def close() -> None:
        for client in clients.values():
            await client.close()

    try:
        loop.run_until_complete(connect())
        yield lambda draft, prompts, max_tokens, width: loop.run_until_complete(
            run_wave(clients[draft], prompts, max_tokens, width=width)
        )
    finally:
        loop.run_until_complete(close())
        loop.close()


def _decode_rate(engine: Engine, prompts: Sequence[Sequence[int]], max_tokens: int) -> float:
    """Tokens/s of the engine's plain steps, one sequence a prompt, up to `max_tokens` each."""
    rows: list[Rows] = []
    for prompt in prompts:
        sequence = engine.open()
        first = prefill(engine, sequence, np.asarray(prompt, np.int32), PREFILL_CHUNK)
        rows.append(Rows(sequence, first, None, "all"))
    start = time.perf_counter()
    for _ in range(max_tokens - 1):
        for row in rows:
            if not engine.reserve(row.sequence, row.sequence.length + 1):
                raise ValueError("the KV pool is too small for the plan; raise kv_tokens")
        outs = engine.forward(rows)
        engine.commit([(row.sequence, 1) for row in rows])
        for row, out in zip(rows, outs, strict=True):
            row.token_ids = out.predictions
    seconds = time.perf_counter() - start
    for row in rows:
        engine.release(row.sequence)
    return len(rows) * (max_tokens - 1) / seconds


def _compare(rates: list[float], plain: Setting | None) -> dict[str, float | None]:
    """The engine's own rate, and the share of it that streams without drafts got."""
    share = None
    if plain is not None:
        through = [wave.decode_tokens_per_s for wave in plain.waves]
        pairs = zip(through, rates, strict=True)
        shares = [served / own for served, own in pairs if served is not None]
        share = round(statistics.median(shares), 3) if shares else None
    return {"tokens_per_s": round(statistics.median(rates), 2), "share": share}


def _require_same(
    answers: dict[tuple[int, ...], tuple[int, ...]],
    prompts: Sequence[Sequence[int]],
    streams: Sequence[Stream],
    draft: str,
) -> None:
    for prompt, stream in zip(prompts, streams, strict=True):
        known = answers.setdefault(tuple(prompt), stream.token_ids)
        if known != stream.token_ids:
            raise RuntimeError(
                f"draft {draft} gave other tokens than a run before it, for a prompt of "
                f"{len(prompt)} tokens; that is a defect of forerun, not of the prompt"
            )


def _percentiles(seconds: Sequence[float]) -> dict[str, float | None]:
    names = [f"p{percentile}" for percentile in PERCENTILES]
    if not seconds:
        return dict.fromkeys(names)
    values: NDArray[np.float64] = np.percentile(seconds, PERCENTILES)
    return {name: round(1e3 * float(v), 2) for name, v in zip(names, values, strict=True)}
