"""Owns how few tokens a text can become, told from its size alone: tokenizing takes seconds for
megabytes, which is long for a text that cannot fit anyway.

Every token stands for at most the bytes of the longest one, so a text of n bytes becomes at least
n / longest tokens, unless the tokenizer throws part of it away or makes it shorter first. Only what
is known to do neither, or by how much, gets a bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tokenizers import normalizers

from forerun.models.byte_level import CHARACTER_OF_BYTE

# U+1FBE U+0308 U+0301, of 7 bytes, become U+0390, of 2: no character has a longer spelling (all of
# Unicode 14, by the canonical decompositions).
_NFC_SHRINKS = 4
_NEVER_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}


class LengthBound:
    """The bound of one tokenizer: its description, as in tokenizer.json, and its normalizer."""

    def __init__(
        self, description: Mapping[str, Any], normalizer: normalizers.Normalizer | None
    ) -> None:
        self._bytes_a_token, self._missing = 0, b""
        model, added = description["model"], description["added_tokens"]
        normalizing = _steps(description["normalizer"], "normalizers")
        splitting = _steps(description["pre_tokenizer"], "pretokenizers")
        shrinks = math.prod(map(_shrinks, normalizing))
        if (
            model["type"] != "BPE"
            or model["continuing_subword_prefix"]
            or model["end_of_word_suffix"]
            or description["truncation"]
            or not all(map(_keeps_all, splitting))
            # White space around such a token goes with it, however much there is.
            or any(token["lstrip"] or token["rstrip"] for token in added)
        ):
            return
        is_byte_level = any(step["type"] == "ByteLevel" for step in splitting)
        of_bytes = CHARACTER_OF_BYTE if is_byte_level else [f"<0x{b:02X}>" for b in range(256)]
        missing = {byte for byte, text in enumerate(of_bytes) if text not in model["vocab"]}
        missing -= _NEVER_IN_UTF8
        # A byte that is missing is left out, or becomes one token with all of its neighbours: it
        # does not count. Those that a normalizer makes are not to be seen in the text, and without
        # bytes as the last resort a whole character is missing.
        if missing and (shrinks > 1 or not is_byte_level):
            return
        if not (is_byte_level or model["byte_fallback"]):
            return
        # A character of a byte-level entry is a byte of the text.
        lengths = (len(text) if is_byte_level else len(text.encode()) for text in model["vocab"])
        longest = max(lengths, default=0)
        for token in added:
            # It stands for its own text, and for whatever is normalized to the same.
            content = token["content"]
            same = normalizer.normalize_str(content) if normalizer is not None else content
            longest = max(longest, len(content.encode()), len(same.encode()))
        self._bytes_a_token, self._missing = shrinks * longest, bytes(sorted(missing))

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that `text` has at least; 0 where nothing is known."""
        if not self._bytes_a_token:
            return 0
        counted = text.encode(errors="replace").translate(None, self._missing)
        return -(-len(counted) // self._bytes_a_token)


def _steps(step: Mapping[str, Any] | None, members: str) -> list[Mapping[str, Any]]:
    """The steps of a sequence that may be absent, single or nested, in order."""
    if step is None:
        return []
    if step["type"] != "Sequence":
        return [step]
    return [inner for member in step[members] for inner in _steps(member, members)]


def _shrinks(normalizer: Mapping[str, Any]) -> int:
    """How many bytes of a text may become one; 0: any number."""
    match normalizer:
        case {"type": "Prepend"}:
            return 1
        case {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}:
            return 1
        case {"type": "NFC"}:
            return _NFC_SHRINKS
    return 0


def _keeps_all(pre_tokenizer: Mapping[str, Any]) -> bool:
    """Whether a step of splitting is known to leave nothing out."""
    match pre_tokenizer:
        case {"type": "ByteLevel" | "Digits" | "Metaspace"}:
            return True
        case {"type": "Split", "behavior": behavior}:
            return bool(behavior != "Removed")
    return False
