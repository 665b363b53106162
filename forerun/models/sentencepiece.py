"""Owns the notation of SentencePiece vocabularies: "▁" is a space, "<0x41>" a byte."""

from __future__ import annotations

import re

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def bytes_of_piece(piece: str) -> bytes:
    """Return the bytes a piece stands for."""
    match = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else piece.replace("▁", " ").encode()
