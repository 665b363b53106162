"""forerun as it is served: a client, a draft server, a verify server."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path

from protocol import Answered, Peer, Prompts, Timed, answers_prompts, drafts, serve

from forerun import __version__
from forerun.bench.streams import Wave, run_wave
from forerun.cli.local import LocalOptions, local_servers
from forerun.client import AsyncClient

# The first streams decode while the prompts of the last ones are computed: so many tokens more.
# Sixteen new prompts of 128 tokens took as long as 65 steps where the processors were busy.
OVERLAP = 128


class ForerunServers(Peer):
    """Both servers on Unix sockets, started for this comparison alone."""

    dtype = "bfloat16"

    def __init__(self, folder: str, threads: int, stack: ExitStack) -> None:
        draft, head = drafts() or ("none", None)
        options = LocalOptions(
            Path(folder) / "hugging-face",
            draft=draft,
            draft_model=Path(head) if head else None,
            threads=threads,
            prefill_chunk=512,
            prefix_cache_bytes=0 if answers_prompts() else None,
        )
        self._address = stack.enter_context(local_servers(options))
        self._loop = asyncio.new_event_loop()
        self.versions = {"forerun": __version__}

    def decode(self, prompts: Prompts, steps: int) -> Timed:
        wave = self._run(prompts, steps + 1 + OVERLAP)
        rate = wave.decode_tokens_per_s
        if rate is None:
            raise RuntimeError("the streams never decoded at the same time; take more steps")
        answers = [list(stream.token_ids[: steps + 1]) for stream in wave.streams]
        return len(prompts) * steps / rate, answers

    def prefill(self, prompt: list[int]) -> Timed:
        [stream] = self._run([prompt], 1).streams
        return stream.first_token_s, [list(stream.token_ids)]

    def answer(self, prompts: Prompts, streams: int, max_tokens: int) -> Answered:
        start = time.perf_counter()
        wave = self._run(prompts, max_tokens, streams)
        seconds = time.perf_counter() - start
        stats = [stream.stats for stream in wave.streams]
        return Answered(
            seconds,
            [list(stream.token_ids) for stream in wave.streams],
            sum(each.rounds for each in stats),
            sum(each.accepted for each in stats),
        )

    def _run(self, prompts: Prompts, max_tokens: int, width: int | None = None) -> Wave:
        async def run() -> Wave:
            async with AsyncClient(self._address, timeout=None) as client:
                await client.health()  # connects, untimed
                return await run_wave(client, prompts, max_tokens, width=width, ignore_eos=True)

        return self._loop.run_until_complete(run())


if __name__ == "__main__":
    with ExitStack() as servers:
        serve(lambda folder, threads: ForerunServers(folder, threads, servers))
