"""Owns GPT-2's printable stand-ins for the 256 bytes, in which byte-level vocabularies are written.

Source: the byte encoder of GPT-2: bytes that print stand for themselves, the others take the code
points from 256 on, in order.
"""

from __future__ import annotations

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_OF_CHARACTER: dict[str, int] = {
    **{chr(byte): byte for byte in _PRINTABLE},
    **{chr(256 + order): byte for order, byte in enumerate(_OTHERS)},
}
CHARACTER_OF_BYTE: list[str] = [c for c, _ in sorted(BYTE_OF_CHARACTER.items(), key=lambda i: i[1])]


def bytes_of_byte_level(text: str) -> bytes:
    """Return the bytes an entry stands for; an entry with any other character, such as an added
    token with a space, stands for its own UTF-8.
    """
    try:
        return bytes(BYTE_OF_CHARACTER[character] for character in text)
    except KeyError:
        return text.encode()
