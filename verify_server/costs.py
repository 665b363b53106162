"""What a step costs, learned from the steps themselves. Knows rows and nanoseconds, no sessions.

A step reads every weight once and multiplies it by every row: time is near a constant and a share
for each row. Both drift with the machine, the neighbours and where on the roofline steps are, so
they are fitted to the last few dozen steps and never to older ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from forerun.engine.interface import EngineInfo

# The weight of the newest step: the fit forgets half of what it knew in eleven steps.
NEWEST = 1 / 16
# A step counts as this many times what the steps before it lead to expect, at most: a pause of the
# machine says nothing about the next step, and a machine that is slower is believed within some.
OUTLIER = 4.0
# Rows that vary by less than a tenth of their mean say nothing about the price of a row.
LEAST_SPREAD = 0.1
# Beyond this many times the most rows measured lately the fit is a guess.
REACH = 2.0
REACH_KEPT = 0.99
# Attention reaches about half the multiply-adds a second of the weight products: SmolLM2-135M at
# the AVX2 level takes 1.25 us for a row and 1000 positions, and 2.4 ms for a row.
ATTENTION_PRICE = 2.0


class _Line:
    """Nanoseconds by rows: affine, never falling, through what was measured lately. fitted: whether
    steps of different sizes were seen; slope: until then as if rows were all that costs."""

    def __init__(self) -> None:
        self.rows = self.ns = self.slope = 0.0
        self.steps = 0
        self.fitted = False
        self._variance = self._covariance = 0.0

    def at(self, rows: float) -> float:
        return self.ns + self.slope * (rows - self.rows)

    def record(self, rows: float, ns: float) -> None:
        self.steps += 1
        newest = max(NEWEST, 1 / self.steps)
        rows_off, ns_off = rows - self.rows, ns - self.ns
        self.rows += newest * rows_off
        self.ns += newest * ns_off
        self._variance = (1 - newest) * (self._variance + newest * rows_off * rows_off)
        self._covariance = (1 - newest) * (self._covariance + newest * rows_off * ns_off)
        dearest = self.ns / self.rows
        if self._variance > (LEAST_SPREAD * self.rows) ** 2:
            self.slope = max(0.0, self._covariance / self._variance)
            self.fitted = True
        elif not self.fitted:
            self.slope = dearest
        self.slope = min(self.slope, dearest)


class StepCosts:
    """Nanoseconds of a step by its rows, of all steps and of those without prompts: a few rows more
    hide behind the reading of weights, hundreds do not, and one line cannot say both.

    Rows are weighed by their context (`row_weight`), so that one number stands for both.
    """

    def __init__(self, info: EngineInfo) -> None:
        # Multiply-adds of a row with the weights (in bfloat16), and with one cached token.
        weights, token = info.weight_bytes / 2, 2 * info.num_layers * info.hidden_size
        self._context_price = ATTENTION_PRICE * token / weights if weights else 0.0
        self._all, self._lean = _Line(), _Line()
        self._reach = 0.0

    @property
    def fitted(self) -> bool:
        """Whether steps of different sizes were seen."""
        return self._all.fitted

    def row_weight(self, context: float) -> float:
        """What a row behind `context` cached tokens costs, 1 being a row behind none."""
        return 1.0 + self._context_price * context

    def plain_rows(self, contexts: Iterable[int]) -> float:
        """The weighed rows of a plain step of sessions with these contexts."""
        return sum(map(self.row_weight, contexts))

    def record(self, rows: float, ns: float, *, lean: bool) -> None:
        """Learns from a step of that many weighed rows; lean: it had none of a prompt."""
        ns = min(ns, self._longest(rows, lean=lean))
        self._all.record(rows, ns)
        if lean:
            self._lean.record(rows, ns)
        self._reach = max(rows, REACH_KEPT * self._reach)

    def _longest(self, rows: float, *, lean: bool) -> float:
        """The most that a step of that many weighed rows counts as. No step takes longer than the
        usual one by more than it has more rows."""
        known = self._lean if lean and self._lean.steps else self._all
        if known.ns == 0:
            return math.inf
        return OUTLIER * known.ns * max(1.0, rows / known.rows)

    def ns(self, rows: float) -> float:
        """What a step of that many weighed rows takes; 0 where nothing was measured."""
        return self._all.at(rows)

    def decode_ns(self, rows: float) -> float:
        """The same of a step without prompts, as far as such steps of different sizes were seen."""
        return self._lean.at(rows) if self._lean.fitted else self.ns(rows)

    def lean_ns(self, rows: float) -> float:
        """What steps without prompts take, where their roots are that many weighed rows.

        Remembered for itself: between long steps a line knows nothing of short ones, which take as
        long as the weights do.
        """
        if self._lean.fitted or not self._lean.steps:
            return self.decode_ns(rows)
        return self._lean.ns + self._all.slope * max(0.0, rows - self._lean.rows)

    def rows_within(self, ns: float) -> float:
        """The most weighed rows that a step of `ns` can have, as far as that is known."""
        if self._all.steps == 0:
            return math.inf
        spare = ns - self.ns(0)
        if spare < 0:
            return 0.0
        slope = self._all.slope
        return min(spare / slope if slope else math.inf, REACH * self._reach)
