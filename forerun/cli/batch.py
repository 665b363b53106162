"""Owns the order of many generations: several in flight, results in the order of the prompts.

Knows nothing of files and flags.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forerun.cli.errors import CommandError
from forerun.cli.prompts import Prompt
from forerun.errors import ForerunError

if TYPE_CHECKING:
    from forerun.client import AsyncClient, AsyncGenerationStream, Generation
    from forerun.client.request import GenerateParams
    from forerun.obs.progress import Report


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for every prompt. max_tokens: None for up to the context limit. stop: texts that
    end an answer. chat: whether text goes through the chat template, as one message of a user."""

    max_tokens: int | None
    stop: tuple[str, ...]
    chat: bool


def start(client: AsyncClient, prompt: Prompt, settings: Settings) -> AsyncGenerationStream:
    """Starts the generation of one prompt."""
    text = prompt.text
    params: GenerateParams = {"stop": settings.stop}
    if settings.max_tokens is not None:
        params["max_tokens"] = settings.max_tokens
    if prompt.token_ids is not None:
        params["token_ids"] = prompt.token_ids
    elif prompt.messages is not None:
        params["messages"] = prompt.messages
    elif text is not None and settings.chat:
        params["messages"] = [{"role": "user", "content": text}]
        text = None
    return client.generate(text, **params)


async def generate_all(
    client: AsyncClient,
    prompts: Sequence[Prompt],
    settings: Settings,
    *,
    concurrency: int,
    report: Report,
) -> AsyncGenerator[tuple[Prompt, Generation], None]:
    """Yields each prompt with its generation, in order, with at most `concurrency` in flight.

    `report` is called with the number of finished prompts and of all. Raises CommandError that
    names the prompt's origin where one fails, after all that come before it; the rest is cancelled.
    """
    free = asyncio.Semaphore(concurrency)
    done = 0

    async def generate(prompt: Prompt) -> Generation:
        nonlocal done
        async with free:
            generation = await start(client, prompt, settings).result()
        done += 1
        report(done, len(prompts))
        return generation

    report(done, len(prompts))
    tasks = [asyncio.create_task(generate(prompt)) for prompt in prompts]
    try:
        for prompt, task in zip(prompts, tasks, strict=True):
            try:
                yield prompt, await task
            except ForerunError as error:
                raise CommandError(f"{prompt.origin}: {error}") from error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
