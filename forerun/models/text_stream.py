"""Owns turning token ids into text as they arrive."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from forerun.models.tokenizer import Tokenizer


class TextStream:
    """Incremental detokenizer of one generation.

    What all calls return, joined, equals `tokenizer.decode` of all ids with special tokens
    skipped. A character whose bytes are spread over tokens comes whole with its last byte.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = tokenizer.strips_leading_space

    def push(self, token_ids: Iterable[int]) -> str:
        """Return the text that these ids complete; may be empty.

        Raises ValueError for an id outside the vocabulary.
        """
        data = b"".join(
            self._tokenizer.token_bytes(token_id)
            for token_id in token_ids
            if not self._tokenizer.is_special(token_id)
        )
        if self._at_start and data:
            self._at_start = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def finish(self) -> str:
        """Return what is left: U+FFFD if the ids ended inside a character, else nothing."""
        return self._decoder.decode(b"", final=True)
