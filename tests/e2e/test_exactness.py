"""The two real servers, the real model: ids are the target's own with any drafter and setting.

`make test` runs 6 questions x 32 tokens; `make exactness` sets FORERUN_EXACTNESS=full for 60 x 128.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable

import pytest

from forerun.cli.local import LocalOptions, local_servers
from tests.fixtures.bench import generate_all, questions, references
from tests.fixtures.engines import ISA_LEVELS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

FULL = os.environ.get("FORERUN_EXACTNESS") == "full"
DRAFTS = ("none", "ngram", "standalone", "ngram+eagle3")
QUESTIONS, TOKENS = (60, 128) if FULL else (6, 32)
Start = Callable[[LocalOptions], str]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine no draft is late: what takes part must not depend on speed."""
    monkeypatch.setenv("FORERUN_DRAFT_DRAFT_TIMEOUT_MS", "20000")


@pytest.mark.parametrize("draft", DRAFTS)
def test_float32_ids_equal_transformers(draft: str) -> None:
    """All 26 recorded continuations, none excepted."""
    recorded = references()
    assert len(recorded) == 26
    with local_servers(LocalOptions(dtype="float32", draft=draft)) as address:
        prompts = [reference.prompt for reference in recorded]
        got = generate_all(address, prompts, max_tokens=64, concurrency=8)
    for reference, generation in zip(recorded, got, strict=True):
        assert list(generation.token_ids) == reference.greedy, f"question {reference.question_id}"


@pytest.fixture(scope="module")
def plain_bf16() -> list[tuple[int, ...]]:
    """BASE: no drafts, one stream, the default page size and chunk, the best level."""
    with local_servers(LocalOptions(draft="none")) as address:
        return [g.token_ids for g in generate_all(address, questions(QUESTIONS), TOKENS)]


# Half of the settings draft every round, the others where it pays, which may be nowhere.
SETTINGS = [
    LocalOptions(draft=draft, page_size=page_size, prefill_chunk=chunk, adaptive=adaptive)
    for draft, (page_size, chunk, adaptive) in itertools.product(
        DRAFTS, [(16, 512, False), (64, 32, True)]
    )
]


@pytest.mark.parametrize("options", SETTINGS, ids=lambda o: f"{o.draft}-page{o.page_size}")
def test_bfloat16_ids_are_the_same_in_every_setting(
    options: LocalOptions, plain_bf16: list[tuple[int, ...]]
) -> None:
    with local_servers(options) as address:
        for concurrency in (1, 8):
            got = generate_all(address, questions(QUESTIONS), TOKENS, concurrency)
            assert [g.token_ids for g in got] == plain_bf16, f"concurrency {concurrency}"
            if options.draft == "none" or not options.adaptive:
                drafting = [g.stats.drafted > 0 for g in got]
                assert drafting == [options.draft != "none"] * QUESTIONS, "by question"


@pytest.mark.parametrize("isa", ISA_LEVELS[1:])
def test_bfloat16_ids_are_the_same_at_each_other_level(
    isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_ISA", isa)
    short = sorted(questions(60), key=len)[:6]  # the scalar level takes 25 ms a row
    got = {}
    for draft in DRAFTS:
        with local_servers(LocalOptions(draft=draft)) as address:
            answers = generate_all(address, short, 32, concurrency=3)
            got[draft] = [answer.token_ids for answer in answers]
    assert got["ngram"] == got["none"]
    assert got["standalone"] == got["none"]


def test_a_draft_that_is_the_target_has_every_proposal_accepted() -> None:
    """200 rounds and more, whether they pay or not. Only the last round of an answer may hold
    proposals that were not taken: those behind its end."""
    with local_servers(LocalOptions(draft="standalone", adaptive=False)) as address:
        answers = generate_all(address, questions(24), 96, concurrency=4)
    assert sum(answer.stats.rounds for answer in answers) >= 200
    for answer in answers:
        drafted, accepted = answer.stats.drafted_by_depth, answer.stats.accepted_by_depth
        cut = [d - a for d, a in itertools.zip_longest(drafted, accepted, fillvalue=0)]
        assert re.fullmatch("0*1*0*", "".join(map(str, cut))), answer.stats
