"""Tokenizers from tokenizer.json: both families, special tokens, fingerprints, refusals."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, processors

from forerun.models import ModelError, Tokenizer, first_difference, load_tokenizer
from forerun.models.vocabulary import fingerprint
from tests.fixtures.tiny import (
    ASSISTANT_ID,
    BOS,
    BOS_ID,
    EOS_ID,
    NUM_TOKENS,
    USER_ID,
    shared_checkpoint,
    tiny_checkpoint,
)


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return tiny_tokenizer()


@cache
def tiny_tokenizer() -> Tokenizer:
    return load_tokenizer(shared_checkpoint())


@pytest.fixture(scope="module")
def pieces() -> Tokenizer:
    return piece_tokenizer()


@cache
def piece_tokenizer() -> Tokenizer:
    """A small SentencePiece-like vocabulary as Llama 2's tokenizer.json has it."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for piece in ("▁", "a", "b", "▁a", "ab", "▁ab", "é"):
        vocab[piece] = len(vocab)
    merges = [("▁", "a"), ("a", "b"), ("▁", "ab"), ("▁a", "b")]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.post_processor = processors.TemplateProcessing(
        single=["<s>", "$A"], special_tokens=[("<s>", 1)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(backend, eos_token_ids=[2])


def test_a_byte_is_its_own_id(tiny: Tokenizer) -> None:
    assert tiny.vocab_size == NUM_TOKENS
    assert tiny.encode("Aé\n") == [0x41, 0xC3, 0xA9, 0x0A]
    assert [tiny.token_bytes(byte) for byte in range(256)] == [bytes([b]) for b in range(256)]


def test_special_tokens_are_text_to_encode_and_nothing_to_decode(tiny: Tokenizer) -> None:
    ids = tiny.encode(f"a{BOS}b")
    assert ids == [0x61, BOS_ID, 0x62]
    assert [tiny.is_special(i) for i in ids] == [False, True, False]
    assert tiny.decode(ids) == "ab"
    assert tiny.decode(ids, skip_special=False) == f"a{BOS}b"
    assert tiny.token_bytes(BOS_ID) == BOS.encode()
    assert tiny.eos_token_ids == (EOS_ID,)


def test_chat_encoding_is_the_template_without_further_tokens(tiny: Tokenizer) -> None:
    assert tiny.has_chat_template
    ids = tiny.encode_chat([{"role": "user", "content": "hi"}])
    assert ids == [BOS_ID, USER_ID, 0x68, 0x69, ASSISTANT_ID]


@pytest.mark.parametrize("token_id", [-1, NUM_TOKENS, 2**40])
def test_an_id_outside_the_vocabulary_is_an_error(tiny: Tokenizer, token_id: int) -> None:
    with pytest.raises(ValueError, match=str(token_id)):
        tiny.decode([token_id])


def test_a_padded_embedding_does_not_lengthen_the_vocabulary() -> None:
    assert load_tokenizer(shared_checkpoint(vocab_size=272)).vocab_size == NUM_TOKENS


@given(st.lists(st.integers(0, 255), max_size=40))
def test_byte_level_decoding_equals_the_library(values: list[int]) -> None:
    tiny = tiny_tokenizer()
    assert tiny.decode(values) == tiny.backend.decode(values)


@given(st.text(max_size=30))
def test_pieces_round_trip_as_in_the_library(text: str) -> None:
    pieces = piece_tokenizer()
    ids = pieces.encode(text)
    # Text that spells a special token becomes it and is skipped; such text is left to other tests.
    if not any(token in text for token in ("<unk>", "<s>", "</s>", "▁")):
        assert pieces.decode(ids) == text
    assert pieces.decode(ids) == pieces.backend.decode(ids)


def test_pieces_have_bytes(pieces: Tokenizer) -> None:
    assert pieces.strips_leading_space
    ids = pieces.encode("ab €")
    assert ids[0] == 1 and pieces.encode("ab €", add_special=False) == ids[1:]
    assert b"".join(pieces.token_bytes(i) for i in ids[1:]) == " ab €".encode()
    assert pieces.token_bytes(3 + 0xE2) == b"\xe2"
    assert pieces.token_bytes(2) == b"</s>"


def test_an_incomplete_run_of_bytes_keeps_what_is_whole(pieces: Tokenizer) -> None:
    euro = [3 + byte for byte in "€".encode()]
    assert pieces.decode([*euro, *euro[:2]]) == "€�"


def test_fingerprint_follows_entries_and_their_order(tiny: Tokenizer) -> None:
    entries = tiny.vocabulary()
    assert len(entries) == NUM_TOKENS
    assert tiny.fingerprint == fingerprint(entries)
    assert fingerprint(entries[::-1]) != tiny.fingerprint
    assert fingerprint([b"ab", b"c"]) != fingerprint([b"a", b"bc"])


def test_first_difference() -> None:
    assert first_difference([b"a", b"b"], [b"a", b"b"]) is None
    assert first_difference([], []) is None
    assert first_difference([b"a", b"x", b"c"], [b"a", b"y", b"d"]) == (1, b"x", b"y")
    assert first_difference([b"a"], [b"a", b"b"]) == (1, b"", b"b")
    assert first_difference([b"a", b"b"], [b"a"]) == (1, b"b", b"")


def changed(directory: Path, **files: dict[str, Any]) -> Path:
    path = tiny_checkpoint(directory / "model")
    for name, change in files.items():
        file = path / f"{name}.json"
        content = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(content | change))
    return path


def test_end_ids_come_from_every_place(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        config={"eos_token_id": [5]},
        generation_config={"eos_token_id": [6, 5]},
        tokenizer_config={"eos_token": {"content": "<|user|>", "lstrip": False}},
    )
    assert load_tokenizer(path).eos_token_ids == (5, 6, USER_ID)


def test_stored_truncation_and_padding_are_off(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model")
    backend = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    backend.save(str(path / "tokenizer.json"))
    assert load_tokenizer(path).encode("abcdefgh") == list(b"abcdefgh")


def test_an_added_token_that_is_not_special_is_text(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model")
    backend = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    backend.add_tokens([AddedToken("<think> é", normalized=False)])
    backend.save(str(path / "tokenizer.json"))
    tokenizer = load_tokenizer(path)
    ids = tokenizer.encode("a<think> é")
    assert ids == [0x61, NUM_TOKENS]
    assert tokenizer.decode(ids) == "a<think> é" == tokenizer.backend.decode(ids)


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model")
    (path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        load_tokenizer(path)
    (path / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        load_tokenizer(path)


def test_a_forged_id_makes_no_table_of_billions(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model")
    content = json.loads((path / "tokenizer.json").read_text())
    content["model"]["vocab"]["far"] = 2**32 - 2
    (path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match="highest id is 4294967294"):
        load_tokenizer(path)


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        (decoders.WordPiece(), "WordPiece"),
        (decoders.Replace("_", " "), "Replace"),
        (decoders.Strip(" ", 2, 0), "Strip"),
        (None, "none"),
    ],
)
def test_other_decoders_are_refused_by_name(decoder: Any, named: str) -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    if decoder is not None:
        backend.decoder = decoder
    with pytest.raises(ModelError, match=named):
        Tokenizer(backend)
