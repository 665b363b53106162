"""Owns the comparison of vocabularies as lists of bytes, one entry an id."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence


def fingerprint(vocabulary: Iterable[bytes]) -> str:
    """Return the SHA-256, in hexadecimal, over the entries in order of id.

    Each entry is preceded by its length as 4 bytes, little-endian, so that no two lists collide by
    moving a boundary.
    """
    digest = hashlib.sha256()
    for entry in vocabulary:
        digest.update(len(entry).to_bytes(4, "little"))
        digest.update(entry)
    return digest.hexdigest()


def first_difference(a: Sequence[bytes], b: Sequence[bytes]) -> tuple[int, bytes, bytes] | None:
    """Return the first id whose entries differ and both entries; None if there is none.

    Where one list is longer, the first id beyond the shorter differs from b"".
    """
    for token_id, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return token_id, left, right
    shorter = min(len(a), len(b))
    if len(a) == len(b):
        return None
    return (shorter, a[shorter], b"") if len(a) > len(b) else (shorter, b"", b[shorter])
