"""Owns the with statement of what holds open files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType

from typing_extensions import Self


class Opened(ABC):
    """Closes at the end of a with block."""

    @abstractmethod
    def close(self) -> None:
        """Close the files; idempotent. Reading afterwards raises ValueError."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
