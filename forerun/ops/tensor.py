"""Owns the type of a tensor argument. Refuses to know any tensor library."""

from __future__ import annotations

from typing import Any, Protocol


class Tensor(Protocol):
    """A numpy array or a CPU tensor that others can share through DLPack, such as torch's.

    Source: the DLPack methods of the Python array API standard.
    """

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> Any: ...
