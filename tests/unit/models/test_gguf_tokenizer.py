"""Tokenizers rebuilt from GGUF metadata against the ones they describe."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from gguf import TokenType
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import GPT2Tokenizer, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter

from forerun.models import ModelError, Tokenizer, load_tokenizer
from forerun.models.default_model import FILE_NAME, cache_directory
from forerun.models.gguf_tokenizer import tokenizer_from_gguf
from forerun.models.vocabulary import first_difference
from tests.fixtures.gguf_writer import write_gguf
from tests.fixtures.tiny import shared_checkpoint

DATA = Path(__file__).parents[2] / "data"
SPLITS = ["smollm", "gpt-2", "llama-bpe", "qwen2"]
SPECIAL = ["<|start|>", "<|end|>"]
USER_DEFINED = "<think é>"


def read_lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


@cache
def questions() -> list[str]:
    return [turn for line in read_lines("specbench_dev.jsonl") for turn in line["turns"]]


def _tiktoken_pattern() -> str:
    converter: Any = TikTokenConverter
    pattern: str = converter().pattern
    return pattern


@cache
def original(pre: str) -> tokenizers.Tokenizer:
    """A small vocabulary trained with the splitting that `pre` names, as its authors publish it."""
    backend = tokenizers.Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        published = Qwen2Tokenizer().backend_tokenizer
        backend.normalizer = published.normalizer
        backend.pre_tokenizer = published.pre_tokenizer
    elif pre == "gpt-2":
        backend.pre_tokenizer = GPT2Tokenizer().backend_tokenizer.pre_tokenizer
    elif pre == "llama-bpe":
        split = pre_tokenizers.Split(Regex(_tiktoken_pattern()), behavior="isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    else:
        digits = pre_tokenizers.Digits(individual_digits=True)
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(questions(), trainer)
    backend.add_tokens([AddedToken(USER_DEFINED, normalized=False)])
    return backend


def metadata(pre: str) -> dict[str, Any]:
    backend = original(pre)
    size = backend.get_vocab_size()
    types = [TokenType.NORMAL] * size
    types[0] = types[1] = TokenType.CONTROL
    types[-1] = TokenType.USER_DEFINED
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [backend.id_to_token(i) for i in range(size)],
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
        "tokenizer.ggml.merges": [
            " ".join(pair) for pair in json.loads(backend.to_str())["model"]["merges"]
        ],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": False,
    }


@cache
def rebuilt(pre: str) -> Tokenizer:
    return tokenizer_from_gguf(metadata(pre), "model.gguf")


@pytest.mark.parametrize("pre", SPLITS)
def test_encodes_real_text_as_the_original(pre: str) -> None:
    for text in questions()[:120]:
        assert rebuilt(pre).encode(text) == original(pre).encode(text).ids


_PARTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            *SPECIAL,
            USER_DEFINED,
            "<think e\u0301>",
            "12345",
            " 007",
            "don't",
            "I'LL",
            "\n\n",
            "  ",
            "é",
            "e\u0301",
            "ﬁ",
        ]
    ),
)


@pytest.mark.parametrize("pre", SPLITS)
@settings(max_examples=100)
@given(parts=st.lists(_PARTS, max_size=8))
def test_encodes_any_text_as_the_original(pre: str, parts: list[str]) -> None:
    text = "".join(parts)
    ids = original(pre).encode(text).ids
    assert rebuilt(pre).encode(text) == ids
    assert rebuilt(pre).decode(ids) == original(pre).decode(ids)


@pytest.mark.parametrize("pre", SPLITS)
def test_has_the_vocabulary_of_the_original(pre: str) -> None:
    entries = Tokenizer(original(pre)).vocabulary()
    assert first_difference(rebuilt(pre).vocabulary(), entries) is None
    assert rebuilt(pre).eos_token_ids == (1,)
    assert rebuilt(pre).is_special(0) and not rebuilt(pre).is_special(len(entries) - 1)


@pytest.mark.parametrize("pre", SPLITS)
def test_only_llama_takes_an_entry_that_no_merge_makes(pre: str) -> None:
    settings = metadata(pre)
    settings["tokenizer.ggml.tokens"].append("qzxqzx")
    settings["tokenizer.ggml.token_type"].append(int(TokenType.NORMAL))
    ids = tokenizer_from_gguf(settings, "model.gguf").encode("qzxqzx")
    assert (len(ids) == 1) is (pre == "llama-bpe")


def test_the_splits_differ() -> None:
    splitters = [rebuilt(pre).backend.pre_tokenizer for pre in SPLITS]
    assert len({str(splitter.pre_tokenize_str("I'LL 12345")) for splitter in splitters}) == 4


def test_the_first_token_is_added_where_the_file_or_the_split_says_so() -> None:
    settings = metadata("llama-bpe")
    del settings["tokenizer.ggml.add_bos_token"]
    tokenizer = tokenizer_from_gguf(settings, "model.gguf")
    plain = rebuilt("llama-bpe").encode("hello")
    assert tokenizer.encode("hello") == [0, *plain]
    assert tokenizer.encode("hello", add_special=False) == plain
    del settings["tokenizer.ggml.bos_token_id"]
    with pytest.raises(ModelError, match="bos_token_id"):
        tokenizer_from_gguf(settings, "model.gguf")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tokenizer.ggml.pre": "tekken"}, "tekken"),
        ({"tokenizer.ggml.pre": "default"}, "default"),
        ({"tokenizer.ggml.pre": None}, "missing"),
        ({"tokenizer.ggml.model": "llama"}, "llama"),
        ({"tokenizer.ggml.model": "bert"}, "bert"),
        ({"tokenizer.ggml.model": None}, r"tokenizer\.ggml\.model"),
        ({"tokenizer.ggml.merges": None}, "merges"),
        ({"tokenizer.ggml.merges": ["ab"]}, "'ab'"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "tokens"),
        ({"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": None}, "each entry"),
        ({"tokenizer.ggml.token_type": [1]}, "token_type"),
        ({"tokenizer.ggml.merges": ["a nowhere"]}, "nowhere"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        tokenizer_from_gguf(metadata("gpt-2") | changes, "model.gguf")


def test_a_file_gives_the_tokenizer_of_its_folder(tmp_path: Path) -> None:
    source = shared_checkpoint(vocab_size=272)
    path = write_gguf(source, tmp_path / "model.gguf")
    ours, theirs = load_tokenizer(path), load_tokenizer(source)
    # The file lists 12 entries more, of the unused kind, for the padded rows.
    assert ours.vocab_size == theirs.vocab_size == 260
    assert ours.fingerprint == theirs.fingerprint
    assert ours.eos_token_ids == theirs.eos_token_ids
    messages = [{"role": "user", "content": "héllo <|eos|> 12"}]
    assert ours.encode_chat(messages) == theirs.encode_chat(messages)


def test_tokenizer_json_beside_the_file_is_preferred(tmp_path: Path) -> None:
    path = write_gguf(shared_checkpoint(), tmp_path / "model.gguf", pre="unheard-of")
    with pytest.raises(ModelError, match="unheard-of"):
        load_tokenizer(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((shared_checkpoint() / name).read_bytes())
    assert load_tokenizer(path).encode("a") == [97]


def test_the_default_model_gives_the_recorded_prompts() -> None:
    path = cache_directory() / FILE_NAME
    if not path.is_file():
        pytest.skip("the default model is not in the cache; `forerun` fetches it on first use")
    tokenizer = load_tokenizer(path)
    turns = {line["question_id"]: line["turns"] for line in read_lines("specbench_dev.jsonl")}
    recorded = read_lines("smollm2_greedy_fp32.jsonl")
    assert len(recorded) == 26
    for line in recorded:
        messages = [{"role": "user", "content": turns[line["question_id"]][0]}]
        assert tokenizer.encode_chat(messages) == line["prompt_token_ids"]


def test_normalisation_is_that_of_qwen2() -> None:
    assert isinstance(rebuilt("qwen2").backend.normalizer, normalizers.NFC)
    assert rebuilt("qwen2").encode("e\u0301") == rebuilt("qwen2").encode("é")
