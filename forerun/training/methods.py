"""The heads that can be trained, by the method that drafts with them."""

from __future__ import annotations

from forerun.training.eagle import EagleHead
from forerun.training.eagle3 import Eagle3Head
from forerun.training.head import Head
from forerun.training.mtp import MtpHead

METHODS: dict[str, type[Head]] = {head.name: head for head in (Eagle3Head, EagleHead, MtpHead)}


def head_of(method: str) -> type[Head]:
    """Raises ValueError for a method whose head cannot be trained."""
    if method not in METHODS:
        raise ValueError(f"method is {method!r}; heads are trained for {', '.join(METHODS)}")
    return METHODS[method]
