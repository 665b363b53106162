"""What every drafting method is to the rest of the draft server.

Owns the words Drafter, DraftState and DrafterInfo. Knows nothing of rounds, sessions or threads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from draft_server.drafters.calibration import Calibration
from forerun.tree import Budget, Tree


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """What a drafter is and needs, for checks at the start.

    name: the method. hidden_taps: hidden states of the target that it needs (layer indices as in
    Open.hidden_taps). blind: whether it proposes tokens without them as well. max_context:
    positions that its own model can hold, None where it has no model. idle: whether it never
    proposes anything, so that sessions are opened without drafting.
    """

    name: str
    hidden_taps: tuple[int, ...] = ()
    blind: bool = False
    max_context: int | None = None
    idle: bool = False


@dataclass(slots=True)
class DraftState:
    """What a drafter keeps for one session; methods extend it.

    committed: prompt and output tokens that are final, in order. fallback: why the latest tree has
    no proposals ("" where it has some, or where nothing was likely enough to propose).
    """

    committed: list[int] = field(default_factory=list)
    fallback: str = ""

    def root_only(self) -> Tree:
        return Tree.root_only(self.committed[-1])


S = TypeVar("S", bound=DraftState)


class Drafter(Protocol[S]):
    """A drafting method. All calls come from one thread, the drafting thread."""

    @property
    def info(self) -> DrafterInfo: ...

    def open(self, prompt_ids: Sequence[int]) -> S:
        """State for a session whose committed tokens are `prompt_ids` (at least one). Cheap."""
        ...

    def advance(self, state: S, token_ids: Sequence[int]) -> None:
        """Appends what was emitted: accepted tokens and the bonus token. Cheap."""
        ...

    def draft(self, batch: Sequence[tuple[S, Budget]], seconds: float = math.inf) -> list[Tree]:
        """One tree a session, within its budget and rooted at its last committed token; root only
        where there is nothing to propose. Siblings differ; confidences are conditional on the
        parent, or None. Work that a session still needs first is done in bounded pieces.

        seconds: what the call may take; a drafter that needs longer proposes less, in time."""
        ...

    def warm(self) -> bool:
        """One bounded piece of work that is not urgent (prefill of a prompt that is not drafted for
        yet). Called while no session waits; returns whether more is left."""
        ...

    def close(self, state: S) -> None:
        """Frees what the session holds; idempotent."""
        ...


@runtime_checkable
class Calibrates(Protocol):
    """What knows how far its confidences can be trusted, by the methods in it."""

    @property
    def calibrations(self) -> Mapping[str, Calibration]: ...


class FeatureDrafter(Drafter[S], Protocol[S]):
    """A method that reads the target's hidden states: `info.hidden_taps` is not empty."""

    def feed(self, state: S, first_position: int, hidden: NDArray[np.uint16]) -> None:
        """Takes the hidden states of consecutive positions, [rows, taps * hidden_size] in bfloat16
        bits, 0 being the first prompt token. Cheap. Those of a position come before or with the
        token behind the next one."""
        ...
