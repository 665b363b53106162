"""Both servers for real, over Unix sockets: ids are those of plain decoding, and nothing leaks."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from draft_server.app import DraftServer
from draft_server.config import DraftConfig
from draft_server.drafters.registry import DraftSettings, create_drafter
from draft_server.drafters.standalone import StandaloneDrafter
from forerun.client import AsyncClient
from forerun.errors import Unavailable
from tests.fixtures.drafting import alphabet, eventually, tiny_tokenizer
from tests.fixtures.eagle3 import write_head
from tests.fixtures.fused_heads import write_eagle, write_target
from tests.fixtures.scripted_target import NextToken, decode_plainly, hash_next
from tests.fixtures.servers import scripted, servers, target_of
from tests.fixtures.tiny import shared_checkpoint
from verify_server.config import VerifyConfig
from verify_server.target import load_target

PROMPT = "hello a"
PROMPT_IDS = list(PROMPT.encode())


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
        await eventually(running.verifier.servicer.idle.is_set, "the ends of all sessions are told")
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


def make_certificate(certificate: Path, key: Path) -> None:
    """A certificate for the loopback address, signed by itself."""
    request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    names = "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    command = ["openssl", *request.split(), *names.split(), "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
async def test_tls_both_ways_and_a_token_between_the_servers(tmp_path: Path) -> None:
    certificate, key, token = (tmp_path / name for name in ("cert.pem", "key.pem", "token"))
    await asyncio.to_thread(make_certificate, certificate, key)
    token.write_text("s3cret")
    tls = {"tls_ca": certificate, "tls_cert": certificate, "tls_key": key, "token_file": token}
    verify = {name: str(path) for name, path in tls.items()} | {"listen": "127.0.0.1:0"}
    draft = {f"verifier_{name}": str(path) for name, path in tls.items()}
    async with servers(target_of(scripted(alphabet)), draft=draft, **verify) as running:
        answer = await running.client.complete(PROMPT, max_tokens=20)
        assert list(answer.token_ids) == decode_plainly(alphabet, PROMPT_IDS, 20)
        (tmp_path / "wrong").write_text("guess")
        stranger = draft | {"verifier_token_file": str(tmp_path / "wrong")}
        own = {"listen": "127.0.0.1:0", "verifier": running.verifier.address}
        server = DraftServer(
            DraftConfig(**own, **stranger, reopen_timeout_s=0.3), tokenizer=tiny_tokenizer()
        )
        await server.start()
        try:
            async with AsyncClient(server.address, max_retries=0) as client:
                with pytest.raises(Unavailable, match="the token is missing or wrong"):
                    await client.complete(PROMPT, max_tokens=2)
        finally:
            await server.stop(0)


@pytest.mark.parametrize("draft", ["eagle3", "ngram+eagle3", "eagle", "mtp", "ngram+mtp"])
async def test_heads_read_the_targets_hidden_states_and_change_no_token(
    draft: str, tmp_path: Path
) -> None:
    """Random heads: most of what they propose is wrong, and nothing of it shows."""
    kind = "nextn" if "mtp" in draft else "eagle"
    path, model = write_target(tmp_path / "target", kind), None
    if draft == "eagle":
        model = write_eagle(tmp_path / "head")
    elif "eagle3" in draft:
        model = write_head(tmp_path / "head")
    target = load_target(VerifyConfig(model=str(path), threads=1))
    async with servers(target) as plain:
        prompts = [PROMPT, "z" * 70, PROMPT * 9]
        expected = [await plain.client.complete(prompt, max_tokens=60) for prompt in prompts]
    settings = DraftSettings(min_product=0.0, target=path, model=model, threads=1, kv_tokens=4096)
    drafter = create_drafter(draft, settings, tiny_tokenizer())
    assert drafter.info.name == draft
    async with servers(target, drafter, draft={"draft_timeout_ms": 20000.0}) as running:
        answers = [running.client.complete(prompt, max_tokens=60) for prompt in prompts]
        for answer, right in zip(await asyncio.gather(*answers), expected, strict=True):
            assert answer.token_ids == right.token_ids
            assert answer.stats.drafted > 40
    kept = target.engine.pages_free + target.engine.pages_cached
    assert kept == target.engine.info.pages_total
