"""Generations that are left at any moment, in every way, by the hundred: nothing stays behind.

FORERUN_SOAK_CANCELS says how many generations there are, of which one in 22 runs to its end; 10000
take about five minutes.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable

import pytest

from draft_server.drafters.ngram import NgramDrafter
from draft_server.drafters.standalone import StandaloneDrafter
from forerun.errors import DeadlineExceeded
from tests.fixtures.drafting import alphabet, eventually
from tests.fixtures.scripted_draft import ScriptedDraft
from tests.fixtures.scripted_target import decode_plainly
from tests.fixtures.servers import Running, scripted, servers, target_of

CANCELS = int(os.environ.get("FORERUN_SOAK_CANCELS", "300"))
AT_ONCE = 8
PROMPTS = ["hello a", "z" * 50, "abcdefghijklm", "q"]
MAX_TOKENS = 150
BASE = {
    prompt: tuple(decode_plainly(alphabet, list(prompt.encode()), MAX_TOKENS)) for prompt in PROMPTS
}
# No generation lasts as long.
MOMENT_S = 0.05

Leave = Callable[[Running, random.Random, str], Awaitable[None]]


async def by_call(running: Running, rng: random.Random, prompt: str) -> None:
    stream = running.client.generate(prompt, max_tokens=MAX_TOKENS)
    for _ in range(rng.randint(0, 12)):
        await anext(stream)
    stream.cancel()
    assert stream.token_ids == BASE[prompt][: len(stream.token_ids)]


async def by_break(running: Running, rng: random.Random, prompt: str) -> None:
    left = rng.randint(1, 12)
    async for _ in running.client.generate(prompt, max_tokens=MAX_TOKENS):
        left -= 1
        if not left:
            break


async def by_task(running: Running, rng: random.Random, prompt: str) -> None:
    task = asyncio.create_task(running.client.complete(prompt, max_tokens=MAX_TOKENS))
    await asyncio.sleep(rng.uniform(0, MOMENT_S))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def by_deadline(running: Running, rng: random.Random, prompt: str) -> None:
    timeout = rng.uniform(0.001, MOMENT_S)
    try:
        await running.client.complete(prompt, max_tokens=MAX_TOKENS, timeout=timeout)
    except DeadlineExceeded:
        pass


async def by_the_death_of_its_draft_server(
    running: Running, rng: random.Random, prompt: str
) -> None:
    async with ScriptedDraft(running.verifier.address) as draft:
        for number in range(3):
            await draft.open(number, list(prompt.encode()), MAX_TOKENS, drafting=number == 0)
        await asyncio.sleep(rng.uniform(0, MOMENT_S))


async def not_at_all(running: Running, rng: random.Random, prompt: str) -> None:
    answer = await running.client.complete(prompt, max_tokens=MAX_TOKENS)
    assert answer.token_ids == BASE[prompt]


WAYS: dict[Leave, int] = {
    by_call: 6,
    by_break: 4,
    by_task: 6,
    by_deadline: 4,
    by_the_death_of_its_draft_server: 1,
    not_at_all: 1,
}


def num_tasks() -> int:
    return len(asyncio.all_tasks())


def num_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def at_rest(count: Callable[[], int]) -> int:
    """What `count` comes to: a call that has been answered ends in its own time."""
    least = count()
    for _ in range(20):
        await asyncio.sleep(0.02)
        least = min(least, count())
    return least


async def leave_many(running: Running, rng: random.Random, count: int) -> None:
    jobs = iter(rng.choices(list(WAYS), list(WAYS.values()), k=count))

    async def worker() -> None:
        for leave in jobs:
            await leave(running, rng, rng.choice(PROMPTS))

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


@pytest.mark.timeout(120 + CANCELS / 5)
@pytest.mark.parametrize("method", ["ngram", "standalone"])
async def test_nothing_stays_behind(method: str) -> None:
    rng = random.Random(method)
    # A pool that the sessions do not fit in together: they are moved out and in meanwhile.
    engine = scripted(alphabet, pages_total=100, cache_pages=30)
    draft_engine = scripted(alphabet)
    standalone = StandaloneDrafter(draft_engine, 256)
    drafter = {"ngram": NgramDrafter(), "standalone": standalone}[method]
    # What gRPC and asyncio keep for good.
    async with servers(target_of(scripted(alphabet))) as running:
        await leave_many(running, rng, 2 * AT_ONCE)
    tasks_before, files_before = await at_rest(num_tasks), await at_rest(num_files)
    async with servers(target_of(engine), drafter) as running:
        await not_at_all(running, rng, PROMPTS[0])
        await eventually(lambda: running.draft.stream.num_sessions == 0, "it ends")
        tasks, files = await at_rest(num_tasks), await at_rest(num_files)
        await leave_many(running, rng, CANCELS // 2)
        stream, scheduler = running.draft.stream, running.verifier.scheduler
        await eventually(lambda: stream.num_sessions == 0, "the draft server forgets them all")
        await eventually(lambda: scheduler.num_sessions == 0, "the verify server forgets them all")
        await eventually(lambda: running.verifier.servicer.num_streams == 1, "one stream is left")
        free = lambda: engine.pages_free + engine.pages_cached  # noqa: E731
        await eventually(lambda: free() == 100, "no page of the target is held")
        await eventually(lambda: draft_engine.pages_free == 400, "nor one of the draft model")
        await eventually(lambda: num_tasks() == tasks, "no task is left")
        await eventually(lambda: num_files() == files, "no file is left open")
        cancelled = running.verifier.metrics.value("finished_total", reason="cancelled")
        assert cancelled > CANCELS / 20, "they do not just run to their ends"
        assert running.draft.metrics.registry.get_sample_value("forerun_draft_sessions") == 0
        await eventually(lambda: running.draft.drafting.num_waiting == 0, "no job is left")
        await not_at_all(running, rng, PROMPTS[1])
    await eventually(lambda: num_tasks() == tasks_before, "no task is left at the end")
    await eventually(lambda: num_files() == files_before, "no file is left open at the end")
