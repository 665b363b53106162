"""Owns the exchange between text and token ids, and what bytes each id stands for.

It wraps a `tokenizers.Tokenizer`, however that was made, and knows no file format. Two families of
vocabularies are served: byte-level (GPT-2's printable stand-ins for bytes) and SentencePiece-like
("▁" for a space, "<0x..>" for a byte).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import tokenizers

from forerun.models.byte_level import bytes_of_byte_level
from forerun.models.chat_template import ChatTemplate, ChatTemplateError
from forerun.models.errors import ModelError
from forerun.models.length_bound import LengthBound
from forerun.models.sentencepiece import bytes_of_piece
from forerun.models.vocabulary import fingerprint


class Tokenizer:
    """Tokenizer of one model.

    vocab_size: number of entries; ids are 0..vocab_size-1, and an embedding may have more rows.
    eos_token_ids: ids that end a generation. special_tokens: name → text, for the chat template.
    Raises ModelError if the decoder belongs to neither family.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_token_ids: Iterable[int] = (),
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        self.backend = backend
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.vocab_size: int = max(vocabulary.values(), default=-1) + 1
        # Ids may have gaps, but a forged one must not become a table of billions of entries.
        if self.vocab_size > 2 * len(vocabulary) + 1024:
            raise ModelError(
                f"the tokenizer has {len(vocabulary)} entries but its highest id is "
                f"{self.vocab_size - 1}; expected ids without large gaps"
            )
        added = backend.get_added_tokens_decoder()
        self._special_ids = frozenset(i for i, token in added.items() if token.special)
        description = json.loads(backend.to_str())
        self._decoding = _Decoding(description["decoder"])
        self._length_bound = LengthBound(description, backend.normalizer)
        texts = {token_id: text for text, token_id in vocabulary.items()}
        self._bytes = [
            texts[i].encode()
            if i in self._special_ids
            else self._decoding.bytes_of(texts[i], is_added=i in added)
            if i in texts
            else b""
            for i in range(self.vocab_size)
        ]
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        self._chat_template = (
            ChatTemplate(chat_template, special_tokens or {}) if chat_template is not None else None
        )

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Return the ids of `text`; with `add_special` also those the model expects around it,
        such as BOS. The text of a special token becomes that token.
        """
        ids: list[int] = self.backend.encode(text, add_special_tokens=add_special).ids
        return ids

    def fewest_tokens(self, text: str) -> int:
        """Return a number of ids that `encode(text)` has at least, told from the size of the text
        alone; 0 where this tokenizer has no such bound.
        """
        return self._length_bound.fewest_tokens(text)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD.

        Equals the library's decoding, except that it does not throw away a run of byte tokens
        because its end is incomplete. Raises ValueError for an id outside the vocabulary.
        """
        data = b"".join(
            self.token_bytes(i) for i in ids if not (skip_special and i in self._special_ids)
        )
        if self.strips_leading_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes an id adds to the text; for a special token, its own text in UTF-8."""
        if not 0 <= token_id < self.vocab_size:
            raise ValueError(
                f"token id {token_id} is outside the vocabulary 0..{self.vocab_size - 1}"
            )
        return self._bytes[token_id]

    def is_special(self, token_id: int) -> bool:
        """Whether an id is a control token that is no part of the text."""
        return token_id in self._special_ids

    @property
    def strips_leading_space(self) -> bool:
        """Whether decoding drops the one space that encoding puts before a text."""
        return self._decoding.strips_leading_space

    @property
    def has_chat_template(self) -> bool:
        """Whether the model brought a chat template."""
        return self._chat_template is not None

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return the text of a conversation by the model's own template.

        Raises ChatTemplateError if there is none or it refuses the messages.
        """
        if self._chat_template is None:
            raise ChatTemplateError(
                "the model has no chat template; send text or token ids instead"
            )
        return self._chat_template.render(messages, add_generation_prompt=add_generation_prompt)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the prompt ids of a conversation, up to where the assistant's answer begins."""
        # The template writes BOS itself where the model wants it.
        return self.encode(self.apply_chat_template(messages), add_special=False)

    def vocabulary(self) -> list[bytes]:
        """Return the bytes of every id, 0..vocab_size-1."""
        return list(self._bytes)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the vocabulary; equal for two tokenizers with the same entries in order."""
        return fingerprint(self._bytes)


class _Decoding:
    """How the entries of a vocabulary become bytes, read off the library's decoder."""

    def __init__(self, decoder: Mapping[str, Any] | None) -> None:
        decoder = decoder or {"type": "none"}
        steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
        kinds = [step["type"] for step in steps]
        self._is_byte_level = kinds == ["ByteLevel"]
        self.strips_leading_space = False
        if self._is_byte_level:
            return
        for step in steps:
            if step["type"] == "Metaspace":
                self.strips_leading_space |= step.get("prepend_scheme", "always") != "never"
            elif step["type"] == "Strip":
                if (step["content"], step["start"], step["stop"]) != (" ", 1, 0):
                    raise ModelError(f"tokenizer decoder step {step} is not supported")
                self.strips_leading_space = True
            elif step["type"] == "Replace":
                if (step["pattern"], step["content"]) != ({"String": "▁"}, " "):
                    raise ModelError(f"tokenizer decoder step {step} is not supported")
            elif step["type"] not in ("ByteFallback", "Fuse"):
                raise ModelError(
                    f"tokenizer decoder {step['type']!r} is not supported; "
                    "supported: ByteLevel, or ByteFallback with Replace, Fuse, Strip, Metaspace"
                )

    def bytes_of(self, text: str, *, is_added: bool) -> bytes:
        if self._is_byte_level:
            return bytes_of_byte_level(text)
        return text.encode() if is_added else bytes_of_piece(text)
