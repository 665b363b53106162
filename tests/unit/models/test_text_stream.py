"""Incremental text: whatever the pushes, the same text, and never a part of a character."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.models import TextStream, Tokenizer, load_tokenizer
from tests.fixtures.tiny import EOS_ID, NUM_TOKENS, shared_checkpoint
from tests.unit.models.test_tokenizer import piece_tokenizer


@cache
def tiny() -> Tokenizer:
    return load_tokenizer(shared_checkpoint())


def stream(tokenizer: Tokenizer, ids: list[int], cuts: list[int]) -> list[str]:
    """Push `ids` in the parts that `cuts` leave and return each text."""
    text_stream = TextStream(tokenizer)
    bounds = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    parts = [text_stream.push(ids[start:stop]) for start, stop in pairwise(bounds)]
    return [*parts, text_stream.finish()]


CUTS = st.lists(st.integers(0, 60), max_size=12)


@given(st.lists(st.integers(0, NUM_TOKENS - 1), max_size=60), CUTS)
def test_any_ids_join_to_their_decoding(ids: list[int], cuts: list[int]) -> None:
    assert "".join(stream(tiny(), ids, cuts)) == tiny().decode(ids)


@given(st.text(max_size=20), CUTS)
def test_text_never_comes_in_parts_of_a_character(text: str, cuts: list[int]) -> None:
    parts = stream(tiny(), list(text.encode()), cuts)
    assert "".join(parts) == text
    # No replacement character that the text itself does not hold.
    assert "".join(parts).count("�") == text.count("�")
    assert parts[-1] == ""


@given(st.lists(st.integers(0, piece_tokenizer().vocab_size - 1), max_size=30), CUTS)
def test_pieces_join_to_their_decoding(ids: list[int], cuts: list[int]) -> None:
    assert "".join(stream(piece_tokenizer(), ids, cuts)) == piece_tokenizer().decode(ids)


def test_the_space_before_a_text_is_dropped_once() -> None:
    pieces = piece_tokenizer()
    ids = pieces.encode("a a a", add_special=False)
    assert stream(pieces, ids, [1, 2]) == ["a", " a", " a", ""]


def test_a_character_comes_with_its_last_byte() -> None:
    text_stream = TextStream(tiny())
    assert [text_stream.push([byte]) for byte in "a€b".encode()] == ["a", "", "", "€", "b"]
    assert text_stream.push(list("héé".encode())[:-1]) == "hé"
    assert text_stream.push([0xA9]) == "é"


def test_special_tokens_are_skipped_even_inside_a_character() -> None:
    text_stream = TextStream(tiny())
    assert text_stream.push([0xC3, EOS_ID]) == ""
    assert text_stream.push([EOS_ID, 0xA9]) == "é"


def test_an_unfinished_character_ends_as_a_replacement() -> None:
    text_stream = TextStream(tiny())
    assert text_stream.push([0x61, 0xE2, 0x82]) == "a"
    assert text_stream.finish() == "�"


def test_an_id_outside_the_vocabulary_is_an_error() -> None:
    with pytest.raises(ValueError, match="260"):
        TextStream(tiny()).push([260])
