"""Stop strings against a reference that looks at one token at a time."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_server.stops import OutputText


class ByteText:
    """Ids 0..255 are bytes; 256 is special and has no text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(bytes(i for i in token_ids if i < 256))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


def one_by_one(token_ids: Sequence[int], stops: Sequence[str]) -> tuple[str, int]:
    """The text and the number of tokens, found by looking at the whole text after every token."""
    decoder = ByteText()
    text = ""
    for count, token_id in enumerate(token_ids, start=1):
        known = len(text)
        text += decoder.push([token_id])
        for end in range(known + 1, len(text) + 1):
            completed = [stop for stop in stops if text[:end].endswith(stop)]
            if completed:
                return text[: end - max(map(len, completed))], count
    return text + decoder.finish(), len(token_ids)


def generate(blocks: Sequence[Sequence[int]], stops: Sequence[str]) -> tuple[list[str], int]:
    """The pieces of text and the number of tokens that stay."""
    output = OutputText(ByteText(), stops)
    shown, count = [], 0
    for block in blocks:
        piece = output.push(block)
        shown.append(piece.text)
        count += piece.num_tokens
        if piece.stopped:
            return shown, count
    return [*shown, output.finish()], count


BLOCKS = st.lists(
    st.lists(st.sampled_from([*b"aab", 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 256]), max_size=6), max_size=8
)
STOPS = st.lists(st.text("abé€", min_size=1, max_size=4), max_size=4)


@given(BLOCKS, STOPS)
def test_equals_one_token_at_a_time(blocks: list[list[int]], stops: list[str]) -> None:
    token_ids = [token_id for block in blocks for token_id in block]
    shown, count = generate(blocks, stops)
    text, expected = one_by_one(token_ids, stops)
    assert ("".join(shown), count) == (text, expected)


@given(BLOCKS, STOPS)
def test_what_was_shown_is_never_taken_back(blocks: list[list[int]], stops: list[str]) -> None:
    text, _ = one_by_one([token_id for block in blocks for token_id in block], stops)
    shown, _ = generate(blocks, stops)
    for count in range(len(shown) + 1):
        assert text.startswith("".join(shown[:count]))
    assert not any(stop in text for stop in stops)


@pytest.mark.parametrize(
    ("blocks", "stops", "text", "count"),
    [
        ([b"xab", b"cd"], ["abc"], "x", 4),  # split over two blocks
        ([b"1ab456"], ["ab"], "1", 3),  # tokens 2 and 3 of a block of six
        ([b"zabz"], ["zz", "ab"], "z", 3),  # listed second, completed first
        ([b"ab"], ["b", "ab"], "", 2),  # completed at once: the longer one
        ([b"aaab"], ["aab"], "a", 4),  # overlaps itself
        ([b"ab"], ["abc"], "ab", 2),  # held back, then let go at the end
        (["é€".encode()], ["€"], "é", 5),  # inside characters
    ],
)
def test_cases(blocks: list[bytes], stops: list[str], text: str, count: int) -> None:
    shown, kept = generate(blocks, stops)
    assert ("".join(shown), kept) == (text, count)


def test_holds_back_only_what_could_become_a_stop_string() -> None:
    output = OutputText(ByteText(), ["abc"])
    assert output.push(b"xab").text == "x"
    assert output.push(b"ab").text == "ab"
    assert output.push(b"d").text == "abd"
