"""Owns the timing of generations that run side by side through a draft server.

What is measured is what a client sees: when it asked, and when tokens arrived. Knows no engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.client import AsyncClient, GenerateParams, GenerationStats


@dataclass(slots=True)
class Stream:
    """One generation. asked: when it was sent. arrivals: (when, how many) of the messages that
    brought tokens. All on the clock of time.perf_counter()."""

    asked: float
    stats: GenerationStats
    token_ids: tuple[int, ...] = ()
    arrivals: list[tuple[float, int]] = field(default_factory=list)

    @property
    def first_token_s(self) -> float:
        """Seconds from the request to the first token."""
        return self.arrivals[0][0] - self.asked

    @property
    def inter_token_s(self) -> list[float]:
        """For each token that came after the first message, the seconds since the message before
        its own, shared out among the tokens of its own."""
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return [(now - last) / count for (last, _), (now, count) in pairs for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Wave:
    """Generations that were sent at once."""

    streams: list[Stream]

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all streams, from the moment they were sent to the last token."""
        tokens = sum(count for stream in self.streams for _, count in stream.arrivals)
        last = max(stream.arrivals[-1][0] for stream in self.streams)
        return tokens / (last - min(stream.asked for stream in self.streams))

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens of all streams while every one of them decodes: from the first token of the last
        to begin, to the last token of the first to end. None where there is no such time."""
        start = max(stream.arrivals[0][0] for stream in self.streams)
        stop = min(stream.arrivals[-1][0] for stream in self.streams)
        tokens = sum(
            count
            for stream in self.streams
            for moment, count in stream.arrivals
            if start < moment <= stop
        )
        return tokens / (stop - start) if stop > start else None


async def run_wave(
    client: AsyncClient,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    *,
    ignore_eos: bool = False,
) -> Wave:
    """Asks for all prompts at once and waits for all answers; raises what the servers refuse."""
    common: GenerateParams = {"max_tokens": max_tokens, "ignore_eos": ignore_eos}
    streams = [_follow(client, {"token_ids": prompt, **common}) for prompt in prompts]
    return Wave(list(await asyncio.gather(*streams)))


async def _follow(client: AsyncClient, params: GenerateParams) -> Stream:
    result = Stream(time.perf_counter(), GenerationStats())
    async with client.generate(**params) as stream:
        async for chunk in stream:
            if chunk.token_ids:
                result.arrivals.append((time.perf_counter(), len(chunk.token_ids)))
    generation = await stream.result()
    result.stats, result.token_ids = generation.stats, generation.token_ids
    return result
