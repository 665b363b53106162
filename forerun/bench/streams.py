"""Owns the timing of generations that run side by side through a draft server.

What is measured is what a client sees: when it asked, and when tokens arrived. Knows no engine.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.client import AsyncClient, GenerateParams, GenerationStats

# Of each stream, to tell a rate: they come in bunches.
LEAST_TOKENS = 2


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
    """Generations in the order in which they were asked for, `width` of them at a time: the first
    ones at once, and another one as soon as one ends, while there are any."""

    streams: list[Stream]
    width: int

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all streams while `width` of them are under way: from the moment when the
        first ones were sent to the first end that no other one follows."""
        ends = sorted(stream.arrivals[-1][0] for stream in self.streams)
        stop = ends[len(ends) - self.width]
        start = min(stream.asked for stream in self.streams)
        return _tokens(self.streams, start, stop) / (stop - start)

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens of the first streams while every one of them decodes: from the first token of the
        last to begin, to the last token of the first to end. None where there is no such time, or
        too little to tell a rate."""
        first = self.streams[: self.width]
        start = max(stream.arrivals[0][0] for stream in first)
        stop = min(stream.arrivals[-1][0] for stream in first)
        tokens = _tokens(first, start, stop)
        return tokens / (stop - start) if tokens >= LEAST_TOKENS * len(first) else None

    @property
    def mean_inter_token_s(self) -> float | None:
        """Seconds from a token to the next of its stream, the mean over all streams: the time of
        answers without that of their prompts. None where no token follows another."""
        seconds = [each for stream in self.streams for each in stream.inter_token_s]
        return statistics.mean(seconds) if seconds else None


async def run_wave(
    client: AsyncClient,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    *,
    width: int | None = None,
    ignore_eos: bool = False,
) -> Wave:
    """Asks for all prompts, `width` at a time (None: all of them), and waits for all answers;
    raises what the servers refuse."""
    common: GenerateParams = {"max_tokens": max_tokens, "ignore_eos": ignore_eos}
    width = width or len(prompts)
    streams: list[Stream] = []
    left = iter(prompts)

    async def follow_each() -> None:
        for prompt in left:  # shared: each prompt goes to whoever is free for it
            stream = Stream(time.perf_counter(), GenerationStats())
            streams.append(stream)
            await _follow(client, stream, {"token_ids": prompt, **common})

    await asyncio.gather(*(follow_each() for _ in range(width)))
    return Wave(streams, width)


def _tokens(streams: Sequence[Stream], start: float, stop: float) -> int:
    """What arrived after `start` and no later than `stop`."""
    arrivals = (arrival for stream in streams for arrival in stream.arrivals)
    return sum(count for moment, count in arrivals if start < moment <= stop)


async def _follow(client: AsyncClient, result: Stream, params: GenerateParams) -> None:
    async with client.generate(**params) as stream:
        async for chunk in stream:
            if chunk.token_ids:
                result.arrivals.append((time.perf_counter(), len(chunk.token_ids)))
    generation = await stream.result()
    result.stats, result.token_ids = generation.stats, generation.token_ids
