"""Whether two vocabularies give the same ids to the same tokens.

Drafts cross the wire as ids, so a pair that disagrees in one id drafts nonsense without an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.errors import ModelMismatch
from forerun.models import first_difference


def check_equal(
    left_name: str, left: Sequence[bytes], right_name: str, right: Sequence[bytes]
) -> None:
    """Raises ModelMismatch that names the first id that differs, and what it is on both sides."""
    _check(left_name, left, right_name, right, max(len(left), len(right)))


def check_shared(
    left_name: str, left: Sequence[bytes], right_name: str, right: Sequence[bytes]
) -> int:
    """How many ids, from 0 up, both have; entries beyond may differ (padding, added tokens).

    Raises ModelMismatch as `check_equal` does where an id within both differs.
    """
    shared = min(len(left), len(right))
    _check(left_name, left, right_name, right, shared)
    return shared


def _check(
    left_name: str, left: Sequence[bytes], right_name: str, right: Sequence[bytes], ids: int
) -> None:
    """Compares the first `ids` ids."""
    differing = first_difference(left[:ids], right[:ids])
    if differing is None:
        return
    token_id, left_entry, right_entry = differing
    raise ModelMismatch(
        f"token id {token_id} is {left_entry!r} in {left_name} ({len(left)} tokens) and"
        f" {right_entry!r} in {right_name} ({len(right)} tokens); both need the same vocabulary",
        metadata={"token_id": str(token_id)},
    )
