"""Both servers for real, over Unix sockets: ids are those of plain decoding, and nothing leaks."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from draft_server.app import DraftServer
from draft_server.config import DraftConfig
from draft_server.drafters.registry import DraftSettings, create_drafter
from draft_server.drafters.standalone import StandaloneDrafter
from forerun.client import AsyncClient
from tests.fixtures.drafting import alphabet, eventually, tiny_tokenizer
from tests.fixtures.scripted_target import NextToken, ScriptedTarget, decode_plainly, hash_next
from tests.fixtures.tiny import shared_checkpoint
from verify_server.app import VerifyServer
from verify_server.config import VerifyConfig
from verify_server.target import Target, load_target

PROMPT = "hello a"
PROMPT_IDS = list(PROMPT.encode())


def scripted(next_token: NextToken, **limits: int) -> ScriptedTarget:
    sizes = {"vocab_size": 256, "pages_total": 400, "max_rows": 640, "max_context": 400}
    return ScriptedTarget(next_token, **sizes | limits)


def target_of(engine: ScriptedTarget) -> Target:
    tokenizer = tiny_tokenizer()
    return Target(
        engine=engine,
        vocab_size=engine.info.vocab_size,
        eos_token_ids=tokenizer.eos_token_ids,
        fingerprint=tokenizer.fingerprint,
        vocabulary=tokenizer.vocabulary(),
        model_name="scripted",
        architecture="llama",
    )


@dataclass
class Running:
    """Both servers and a client."""

    draft: DraftServer
    verifier: VerifyServer
    client: AsyncClient

    async def replace_verifier(self, target: Target) -> None:
        self.verifier = VerifyServer(target, self.verifier.config)
        await self.verifier.start()


@asynccontextmanager
async def servers(target: Target, drafter: Any = None, **verify: Any) -> AsyncIterator[Running]:
    with tempfile.TemporaryDirectory(prefix="forerun-") as folder:
        address = f"unix:{folder}/verify.sock"
        settings: dict[str, Any] = {"listen": address, "patience_ms": 2000.0} | verify
        verifier = VerifyServer(target, VerifyConfig(**settings))
        await verifier.start()
        draft = DraftServer(
            DraftConfig(listen=f"unix:{folder}/draft.sock", verifier=address),
            tokenizer=tiny_tokenizer(),
            drafter=drafter,
        )
        await draft.start()
        client = AsyncClient(draft.address, timeout=60, max_retries=0)
        running = Running(draft, verifier, client)
        try:
            await asyncio.wait_for(draft.wait_ready(), 10)
            yield running
        finally:
            await client.close()
            await draft.stop(0)
            await running.verifier.stop(0)


@pytest.mark.parametrize("next_token", [alphabet, hash_next(256)])
async def test_ngram_on_a_scripted_target(next_token: NextToken) -> None:
    engine = scripted(next_token)
    async with servers(target_of(engine)) as running:
        prompts = [PROMPT, PROMPT + "b", PROMPT + "bcdefg", "z" * 50]
        answers = [running.client.complete(prompt, max_tokens=100) for prompt in prompts]
        for prompt, answer in zip(prompts, await asyncio.gather(*answers), strict=True):
            expected = decode_plainly(next_token, list(prompt.encode()), 100)
            assert list(answer.token_ids) == expected
            assert answer.stats.emitted == 100
    assert engine.pages_free == engine.info.pages_total


async def test_draft_equal_to_target_is_always_accepted() -> None:
    next_token = hash_next(256)
    engine, draft_engine = scripted(next_token), scripted(next_token)
    drafter = StandaloneDrafter(draft_engine, 256)
    async with servers(target_of(engine), drafter) as running:
        answers = [running.client.complete(PROMPT + extra, max_tokens=150) for extra in "abcd"]
        for extra, answer in zip("abcd", await asyncio.gather(*answers), strict=True):
            expected = decode_plainly(next_token, [*PROMPT_IDS, ord(extra)], 150)
            assert list(answer.token_ids) == expected
            assert answer.stats.acceptance_rate == 1.0
            assert answer.stats.rounds > 10
        await eventually(
            lambda: draft_engine.pages_free == draft_engine.info.pages_total, "draft KV is freed"
        )
    assert engine.pages_free == engine.info.pages_total


async def test_past_the_drafts_own_context_decoding_is_plain_and_exact() -> None:
    """Draft 64, target 256, prompt 60, 100 new; another session drafts on meanwhile."""
    next_token = hash_next(256)
    engine = scripted(next_token, max_context=256)
    drafter = StandaloneDrafter(scripted(next_token, max_context=64), 256)
    async with servers(target_of(engine), drafter) as running:
        long, short = await asyncio.gather(
            running.client.complete("x" * 60, max_tokens=100),
            running.client.complete(PROMPT, max_tokens=50),
        )
        assert list(long.token_ids) == decode_plainly(next_token, list(b"x" * 60), 100)
        assert list(short.token_ids) == decode_plainly(next_token, PROMPT_IDS, 50)
        assert short.stats.acceptance_rate == 1.0
        fallbacks = running.draft.metrics.registry.get_sample_value(
            "forerun_draft_fallback_total", {"reason": "draft_context"}
        )
        assert fallbacks and fallbacks > 0


async def test_a_restart_of_the_real_verify_server_changes_no_id() -> None:
    engine = scripted(alphabet)
    async with servers(target_of(engine)) as running:
        engine.hold()
        engine.let_pass(6)
        streams = [running.client.generate(PROMPT, max_tokens=200) for _ in range(4)]
        tasks = [asyncio.create_task(stream.result()) for stream in streams]
        await asyncio.to_thread(lambda: [engine.wait_entered() for _ in range(7)])
        stopping = asyncio.create_task(running.verifier.stop(0))
        engine.open_gate()
        await stopping
        again = scripted(alphabet)
        await running.replace_verifier(target_of(again))
        for task in tasks:
            answer = await task
            assert list(answer.token_ids) == decode_plainly(alphabet, PROMPT_IDS, 200)
    assert again.pages_free == again.info.pages_total


async def test_stop_strings_and_cancels_free_the_target() -> None:
    engine = scripted(alphabet)
    async with servers(target_of(engine)) as running:
        answer = await running.client.complete(PROMPT, max_tokens=300, stop="xyz")
        assert answer.text == "bcdefghijkqrstuvw"
        assert answer.finish_reason == "stop"
        async for _ in running.client.generate(PROMPT, max_tokens=300):
            break
        await eventually(lambda: running.verifier.scheduler.num_sessions == 0, "all sessions end")
        assert engine.pages_free == engine.info.pages_total


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_the_tiny_model_drafts_for_itself(dtype: str) -> None:
    """Engines for real: the same model on both sides, so that every proposal is accepted."""
    pytest.importorskip("forerun._native")
    path = shared_checkpoint()
    config = VerifyConfig(model=str(path), dtype=dtype, threads=1, kv_tokens=4096, max_context=512)
    target = await asyncio.to_thread(load_target, config)
    settings = DraftSettings(model=path, dtype=dtype, threads=1, kv_tokens=4096, max_context=512)  # type: ignore[arg-type]
    drafter = await asyncio.to_thread(create_drafter, "standalone", settings, tiny_tokenizer())
    prompts = [PROMPT, "the quick brown fox", "y" * 40]
    async with servers(target, drafter, dtype=dtype) as running:
        plain = [
            await running.client.complete(p, max_tokens=60, plain=True, ignore_eos=True)
            for p in prompts
        ]
        drafted = await asyncio.gather(
            *(running.client.complete(p, max_tokens=60, ignore_eos=True) for p in prompts)
        )
    for one, other in zip(plain, drafted, strict=True):
        assert one.token_ids == other.token_ids and one.text == other.text
        assert other.stats.acceptance_rate == 1.0 and other.stats.rounds > 0
