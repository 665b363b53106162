"""What training publishes is served as its model card says, and changes no token."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from draft_server.drafters.registry import DraftSettings, create_drafter
from forerun.training.command import Job, train_draft
from forerun.training.methods import METHODS
from forerun.training.settings import TrainingSettings
from tests.fixtures.drafting import tiny_tokenizer
from tests.fixtures.servers import servers
from tests.fixtures.training import DRAFT_VOCAB, SETTINGS, checkpoint
from verify_server.config import VerifyConfig
from verify_server.target import load_target

ANSWER = 40
MESSAGES = [[{"role": "user", "content": text}] for text in ("hello a", "z" * 30, "the quick fox")]
HELD_OUT = [{"role": "user", "content": "x"}]


@pytest.fixture(params=METHODS)
def trained(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A method, and the folder of a head that has learned the answers to MESSAGES."""
    method, out = str(request.param), tmp_path / "head"
    job = Job(
        target=checkpoint(),
        out=out,
        work=tmp_path / "work",
        prompts=[HELD_OUT, *MESSAGES],
        answer_tokens=10**9,
        generation=replace(SETTINGS, max_answer=ANSWER, greedy=1.0),
        training=TrainingSettings(
            method=method, tokens=3600, draft_vocab=DRAFT_VOCAB, batch_rows=60, unroll=2
        ),
        threads=1,
    )
    assert train_draft(job)
    return method, out


async def test_a_head_from_training_to_text(trained: tuple[str, Path]) -> None:
    method, head = trained
    target = load_target(VerifyConfig(model=str(checkpoint()), threads=1))
    async with servers(target) as plain:
        expected = [await plain.client.complete(messages=m, max_tokens=ANSWER) for m in MESSAGES]
    settings = DraftSettings(target=checkpoint(), model=head, threads=1, kv_tokens=4096)
    drafter = create_drafter(method, settings, tiny_tokenizer())
    async with servers(target, drafter, draft={"draft_timeout_ms": 20000.0}) as running:
        answers = [running.client.complete(messages=m, max_tokens=ANSWER) for m in MESSAGES]
        found = await asyncio.gather(*answers)
    for answer, right in zip(found, expected, strict=True):
        assert answer.token_ids == right.token_ids
    accepted = sum(answer.stats.accepted for answer in found)
    emitted = sum(answer.stats.emitted for answer in found)
    assert accepted > emitted / 2, "it has learned these very answers"
