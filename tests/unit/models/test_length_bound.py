"""No text is said to have more tokens than it has, and long ones are said to have many."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from forerun.models.byte_level import CHARACTER_OF_BYTE
from forerun.models.length_bound import LengthBound

# Seven bytes that normalize to two, and others that become shorter.
SHRINKING = ["\u1fbe\u0308\u0301", "\u212a", "\u1fef", "\u1100\u1161\u11a8", "e\u0301"]
TEXTS = st.lists(
    st.one_of(st.text(), st.sampled_from([*SHRINKING, "aab", "  ", 4 * "▁", "\x04"]))
).map("".join)


def byte_level(left_out: str = "", **options: Any) -> tokenizers.Tokenizer:
    """All bytes but those of the characters left out, and "aab" of three bytes."""
    bytes_ = set(range(256)) - set(left_out.encode())
    vocab = {CHARACTER_OF_BYTE[byte]: index for index, byte in enumerate(sorted(bytes_))}
    merges = [("a", "b"), ("a", "ab")]
    vocab |= {left + right: len(vocab) + index for index, (left, right) in enumerate(merges)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges, **options))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return backend


def pieces(*, byte_fallback: bool = True) -> tokenizers.Tokenizer:
    """SentencePiece-like, as Llama 2's; the longest entry are the six characters of a byte."""
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": 1 + byte for byte in range(256)}
    vocab |= {piece: 257 + index for index, piece in enumerate(["▁", "a", "b", "ab"])}
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab, [("a", "b")], unk_token="<unk>", fuse_unk=True, byte_fallback=byte_fallback
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return backend


def composing() -> tokenizers.Tokenizer:
    backend = byte_level()
    backend.normalizer = normalizers.NFC()
    return backend


def with_added(**options: Any) -> tokenizers.Tokenizer:
    backend = byte_level()
    backend.add_tokens([AddedToken("<mask>", **options)])
    return backend


def pieces_with_spaces() -> tokenizers.Tokenizer:
    backend = pieces()
    backend.add_tokens([AddedToken(4 * " ", normalized=True)])
    return backend


KNOWN = {
    "byte-level": (byte_level, 3),
    "bytes are missing": (lambda: byte_level("\x04é"), 3),
    "fused unknowns": (lambda: byte_level("\x04", unk_token="a", fuse_unk=True), 3),
    "NFC": (composing, 3 * 4),
    "pieces": (pieces, 6),
    "added": (with_added, 6),
    "added with spaces": (pieces_with_spaces, 5 * 3),
}


@cache
def known(name: str) -> tuple[tokenizers.Tokenizer, LengthBound]:
    backend = KNOWN[name][0]()
    return backend, bound(backend)


def bound(backend: tokenizers.Tokenizer) -> LengthBound:
    return LengthBound(json.loads(backend.to_str()), backend.normalizer)


@pytest.mark.parametrize("name", KNOWN)
@given(text=TEXTS)
def test_no_text_has_fewer_tokens(name: str, text: str) -> None:
    backend, length_bound = known(name)
    assert length_bound.fewest_tokens(text) <= len(backend.encode(text).ids)


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("text", [*SHRINKING, "aab", " ", "▁", "x"])
def test_nor_has_a_long_one(name: str, text: str) -> None:
    backend, length_bound = known(name)
    assert length_bound.fewest_tokens(1000 * text) <= len(backend.encode(1000 * text).ids)


@pytest.mark.parametrize("name", KNOWN)
def test_long_texts_have_many(name: str) -> None:
    _, length_bound = known(name)
    bytes_a_token = KNOWN[name][1]
    assert length_bound.fewest_tokens("x" * 1000 * bytes_a_token) == 1000
    assert length_bound.fewest_tokens("x" * (1000 * bytes_a_token + 1)) == 1001
    assert length_bound.fewest_tokens("") == 0


def stripped() -> tokenizers.Tokenizer:
    backend = byte_level()
    backend.normalizer = normalizers.Strip()
    return backend


def split_at_white_space() -> tokenizers.Tokenizer:
    backend = byte_level()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return backend


def composing_without(left_out: str) -> tokenizers.Tokenizer:
    backend = byte_level(left_out)
    backend.normalizer = normalizers.NFC()
    return backend


def whole_words(model: Any) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return backend


UNKNOWN = {"<unk>": 0}


@pytest.mark.parametrize(
    ("backend", "text"),
    [
        (stripped(), " " * 1000),
        (split_at_white_space(), " " * 1000),
        (pieces(byte_fallback=False), "x" * 1000),
        (with_added(lstrip=True), " " * 1000 + "<mask>"),
        (composing_without("`"), "\u1fef" * 1000),
        (whole_words(models.WordLevel(UNKNOWN, unk_token="<unk>")), "x" * 1000),
        (whole_words(models.WordPiece(UNKNOWN, unk_token="<unk>")), "x" * 1000),
        (whole_words(models.Unigram([("<unk>", 0.0)], unk_id=0)), "x" * 1000),
    ],
    ids=["strip", "removed", "fused", "lstrip", "composed", "word", "word piece", "unigram"],
)
def test_where_text_is_lost_nothing_is_said(backend: tokenizers.Tokenizer, text: str) -> None:
    assert len(backend.encode(text).ids) < 3, "else this proves nothing"
    assert bound(backend).fewest_tokens(text) == 0
