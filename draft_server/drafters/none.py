"""Drafts nothing: the target decodes plainly."""

from __future__ import annotations

import math
from collections.abc import Sequence

from draft_server.drafters.base import DrafterInfo, DraftState
from forerun.tree import Budget, Tree


class NoDrafter:
    """The method `none`."""

    info = DrafterInfo("none", idle=True)

    def open(self, prompt_ids: Sequence[int]) -> DraftState:
        return DraftState(list(prompt_ids))

    def advance(self, state: DraftState, token_ids: Sequence[int]) -> None:
        state.committed.extend(token_ids)

    def draft(
        self, batch: Sequence[tuple[DraftState, Budget]], seconds: float = math.inf
    ) -> list[Tree]:
        return [state.root_only() for state, _ in batch]

    def warm(self) -> bool:
        return False

    def close(self, state: DraftState) -> None:
        pass
