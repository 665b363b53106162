"""Documents are made reproducibly, by the target alone, and kept on disk."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from forerun.training.beginnings import Requests, opening
from forerun.training.corpus import Corpus, Document
from forerun.training.decoding import Continuation, step
from forerun.training.generation import HELD_OUT_EVERY, GenerationSettings, Generator, is_held_out
from forerun.training.prompts import PromptSettings, UserTurn
from forerun.training.quoting import MIN_DOCUMENTS, Quoting
from forerun.training.states import StateStore, states_of
from tests.fixtures.engines import base
from tests.fixtures.tiny import ASSISTANT_ID, BOS_ID, EOS_ID, USER_ID, random_prompts
from tests.fixtures.training import NUM_LAYERS, SETTINGS, corpus, target

OWN_PROMPTS = replace(SETTINGS, prompts=PromptSettings(max_tokens=30))


def _tokens(made: Corpus) -> list[tuple[int, list[int], int, bool]]:
    return [(d.index, d.token_ids.tolist(), d.num_prompt, d.greedy) for d in made.documents]


def _own(folder: Path, settings: GenerationSettings, answer_tokens: int = 200) -> Corpus:
    made = Corpus(folder, settings.to_json())
    Generator(target(), settings).fill(made, answer_tokens, lambda done, total: None, lambda: False)
    return made


def test_greedy_answers_are_the_targets_and_end_at_eos(tmp_path: Path) -> None:
    made = corpus(tmp_path)
    greedy = [d for d in made.documents if d.greedy]
    assert len(made.documents) == 24
    assert 6 <= len(greedy) <= 18
    for document in greedy:
        prompt = document.token_ids[: document.num_prompt].tolist()
        expected = base(target().engine, prompt, SETTINGS.max_answer)
        if EOS_ID in expected:
            expected = expected[: expected.index(EOS_ID) + 1]
        assert document.answer.tolist() == expected
    assert target().engine.pages_free == target().engine.info.pages_total


def test_given_prompts_are_answered_once_each(tmp_path: Path) -> None:
    made = corpus(tmp_path, prompts=10)
    prompts = {d.index: d.token_ids[: d.num_prompt].tolist() for d in made.documents}
    assert [prompts[i] for i in range(10)] == random_prompts(10, max_length=24)


def test_sampling_at_a_low_temperature_is_greedy() -> None:
    engine = target().engine
    prompt = random_prompts(1)[0]
    random = np.random.default_rng(0)
    texts = [
        Continuation(engine.open(), list(prompt), 12, temperature, 8, random)
        for temperature in (0.0, 1e-4)
    ]
    while not all(text.done for text in texts):
        step(target(), [text for text in texts if not text.done], [EOS_ID])
    for text in texts:
        engine.release(text.sequence)
    assert texts[0].added == texts[1].added


def test_sampling_takes_only_the_likeliest_and_not_always_the_same() -> None:
    engine = target().engine
    prompt = random_prompts(1)[0]
    drawn = []
    for seed in range(40):
        random = np.random.default_rng(seed)
        text = Continuation(engine.open(), list(prompt), 1, 1.0, 2, random)
        step(target(), [text], [])
        engine.release(text.sequence)
        drawn += text.added
    assert len(set(drawn)) == 2


def test_own_prompts_are_reproducible_and_differ_by_seed(tmp_path: Path) -> None:
    first = _own(tmp_path / "a", OWN_PROMPTS)
    again = _own(tmp_path / "b", OWN_PROMPTS)
    other = _own(tmp_path / "c", replace(OWN_PROMPTS, seed=1))
    assert _tokens(first) == _tokens(again)
    assert not {t[1][:20].__repr__() for t in _tokens(first)} & {
        t[1][:20].__repr__() for t in _tokens(other)
    }
    assert target().engine.pages_free == target().engine.info.pages_total


def test_own_prompts_are_conversations_and_never_repeat(tmp_path: Path) -> None:
    made = _own(tmp_path, OWN_PROMPTS)
    prompts = [tuple(d.token_ids[: d.num_prompt].tolist()) for d in made.documents]
    assert len(set(prompts)) == len(prompts) > 5
    for prompt in prompts:
        assert prompt[:2] == (BOS_ID, USER_ID)
        assert prompt[-1] == ASSISTANT_ID


def test_an_interrupted_run_goes_on_with_new_documents(tmp_path: Path) -> None:
    made = Corpus(tmp_path, OWN_PROMPTS.to_json())
    calls = iter(range(10**9))
    Generator(target(), OWN_PROMPTS).fill(
        made, 10**9, lambda done, total: None, lambda: next(calls) > 70
    )
    kept = _tokens(made)
    assert kept
    assert target().engine.pages_free == target().engine.info.pages_total

    again = _own(tmp_path, OWN_PROMPTS, answer_tokens=made.num_answer_tokens + 100)
    assert _tokens(again)[: len(kept)] == kept
    assert len(again.documents) > len(kept)
    indices = [d.index for d in again.documents]
    assert len(set(indices)) == len(indices)


def test_held_out_answers_are_greedy(tmp_path: Path) -> None:
    settings = replace(SETTINGS, greedy=0.0)
    made = corpus(tmp_path, prompts=HELD_OUT_EVERY + 1, settings=settings)
    assert {d.index for d in made.documents if d.greedy} == {0, HELD_OUT_EVERY}
    assert is_held_out(0) and not is_held_out(1)


def test_a_user_turn_begins_where_the_template_is_cut() -> None:
    turn = UserTurn(target().tokenizer)
    assert turn.up_to("") == [BOS_ID, USER_ID]
    assert turn.up_to("Who") == [BOS_ID, USER_ID, *b"Who"]
    random = np.random.default_rng(0)
    assert opening(random, 0.0) == ""
    assert opening(random, 1.0) != ""


@pytest.mark.parametrize(
    ("words", "typed", "expected"),
    [
        ("", "What is a cat?", "What is a cat?"),
        ("Who", " is Ada?", "Who is Ada?"),
        ("", "  spaces around  ", "spaces around"),
        ("", "short", None),
        ("Who", "", None),
    ],
)
def test_what_the_target_typed_becomes_a_prompt(
    words: str, typed: str, expected: str | None
) -> None:
    prompt = UserTurn(target().tokenizer).prompt(words, list(typed.encode()))
    wanted = None if expected is None else [BOS_ID, USER_ID, *expected.encode(), ASSISTANT_ID]
    assert prompt == wanted


def test_a_turn_cut_within_a_character_loses_its_end() -> None:
    typed = list("eight or more é".encode())[:-1]
    prompt = UserTurn(target().tokenizer).prompt("", typed)
    assert prompt == [BOS_ID, USER_ID, *b"eight or more", ASSISTANT_ID]


def test_a_turn_with_control_tokens_is_no_prompt() -> None:
    assert UserTurn(target().tokenizer).prompt("", [*b"What is ", ASSISTANT_ID]) is None


def _said(index: int, answer: str) -> Document:
    ids = np.asarray([BOS_ID, *answer.encode(), EOS_ID], dtype=np.int32)
    return Document(index, ids, num_prompt=1, greedy=True)


def test_requests_quote_what_the_target_has_said() -> None:
    said = [_said(i, f"answer {i}, the whole of it") for i in range(MIN_DOCUMENTS)]
    quoting = Quoting(target().tokenizer, 30)
    random = np.random.default_rng(0)
    assert quoting.request(said[1:], random) is None
    requests = [quoting.request(said, random) for _ in range(40)]
    assert {whole for _, whole in filter(None, requests)} == {True, False}
    for request in requests:
        assert request is not None
        quoted = re.findall(r"answer \d+[a-z, ]*", request[0])
        assert 1 <= len(quoted) <= 3
        assert sum(map(len, quoted)) <= 30


def test_begins_of_given_requests_are_theirs_and_no_longer_than_asked() -> None:
    texts = ["Who wrote the book on the table?", "Sum up: " + "a word or two " * 20 + "the end"]
    requests = Requests(texts, target().tokenizer, 60)
    random = np.random.default_rng(0)
    begins = [requests.begin(random) for _ in range(60)]
    assert len(set(begins)) > 20
    short = {begin for begin in begins if begin.startswith("Who")}
    assert texts[0] in short and all(texts[0].startswith(begin) for begin in short)
    long = [begin for begin in begins if begin not in short]
    assert all(begin.startswith("Sum up:") and len(begin) <= 60 for begin in long)
    assert any(begin.endswith("the end") for begin in long), "a long one keeps its end"


def test_prompts_begin_as_given_requests(tmp_path: Path) -> None:
    made = Corpus(tmp_path, OWN_PROMPTS.to_json())
    Generator(target(), OWN_PROMPTS, None, ["Who wrote the book?"]).fill(
        made, 200, lambda done, total: None, lambda: False
    )
    assert made.documents
    for document in made.documents:
        assert bytes(document.token_ids[2:5].tolist()) == b"Who"


def test_states_are_kept_as_a_prefill_would_give_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = [("Summarize: a text", True), ("A text. Question:", False), None]
    turn = iter(range(10**6))
    monkeypatch.setattr(Quoting, "request", lambda *_: request[next(turn) % 3])
    settings = replace(OWN_PROMPTS, prompts=PromptSettings(max_tokens=30, quotes=1.0))
    store = StateStore(tmp_path / "states", states_of((1, 2), NUM_LAYERS), 1 << 24)
    made = Corpus(tmp_path / "corpus", settings.to_json())
    Generator(target(), settings, store=store).fill(
        made, 200, lambda done, total: None, lambda: False
    )
    assert {d.greedy for d in made.documents} == {True, False}

    def unexpected(document: Document) -> torch.Tensor:
        raise AssertionError(f"the states of document {document.index} were not kept")

    for document in made.documents:
        states = target().hidden(document.token_ids, store.taps)
        assert torch.equal(store.of(document, unexpected), states)


def test_a_whole_request_is_answered_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = iter(range(100))
    monkeypatch.setattr(
        Quoting, "request", lambda *_: (f"Summarize: text number {next(asked)}", True)
    )
    made = _own(tmp_path, replace(SETTINGS, prompts=PromptSettings(quotes=1.0)), 60)
    assert made.documents
    for document in made.documents:
        words = bytes(document.token_ids[2 : document.num_prompt - 1].tolist()).decode()
        assert re.fullmatch(r"Summarize: text number \d+", words)


def test_prompt_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"openings is 1\.5"):
        PromptSettings(openings=1.5)
    with pytest.raises(ValueError, match=r"quotes is -1"):
        PromptSettings(quotes=-1)
    with pytest.raises(ValueError, match="quoted_tokens is 2"):
        PromptSettings(quoted_tokens=2)
    with pytest.raises(ValueError, match="temperature is 0"):
        PromptSettings(temperature=0.0)


def test_a_corpus_refuses_other_settings(tmp_path: Path) -> None:
    Corpus(tmp_path, {"seed": 0, "target": "a"})
    Corpus(tmp_path, {"target": "a", "seed": 0})
    with pytest.raises(ValueError, match=r"corpus\.json: target is 'a' there and 'b' now"):
        Corpus(tmp_path, {"seed": 0, "target": "b"})


def test_a_corpus_sees_what_another_process_adds(tmp_path: Path) -> None:
    def document(index: int) -> Document:
        ids = np.arange(index, index + 5, dtype=np.int32)
        return Document(index, ids, num_prompt=2, greedy=index % 2 == 0)

    writer, reader = Corpus(tmp_path, {}), Corpus(tmp_path, {})
    writer.add([document(0), document(3)])
    writer.add([])
    writer.add([document(1)])
    assert not reader.documents and reader.next_index == 0
    reader.refresh()
    assert _tokens(reader) == _tokens(writer) == _tokens(Corpus(tmp_path, {}))
    assert reader.next_index == 4
    assert reader.num_answer_tokens == 9
    assert reader.documents[1].answer.tolist() == [5, 6, 7]
