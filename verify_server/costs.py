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


class StepCosts:
    """Nanoseconds of a step by its rows: affine, never falling, through what was measured lately.

    Rows are weighed by their context (`row_weight`), so that one number stands for both.
    """

    def __init__(self, info: EngineInfo) -> None:
        # Multiply-adds of a row with the weights (in bfloat16), and with one cached token.
        weights, token = info.weight_bytes / 2, 2 * info.num_layers * info.hidden_size
        self._context_price = ATTENTION_PRICE * token / weights if weights else 0.0
        self._steps = 0
        self._rows = self._ns = self._variance = self._covariance = 0.0
        self._slope = 0.0
        self._reach = 0.0
        self._lean: tuple[float, float] | None = None
        self.fitted = False

    def row_weight(self, context: float) -> float:
        """What a row behind `context` cached tokens costs, 1 being a row behind none."""
        return 1.0 + self._context_price * context

    def plain_rows(self, contexts: Iterable[int]) -> float:
        """The weighed rows of a plain step of sessions with these contexts."""
        return sum(map(self.row_weight, contexts))

    def record(self, rows: float, ns: float, *, lean: bool) -> None:
        """Learns from a step of that many weighed rows; lean: it had none of a prompt. `fitted`,
        from then on, says whether steps of different sizes were seen."""
        ns = min(ns, self._longest(rows, lean=lean))
        self._steps += 1
        newest = max(NEWEST, 1 / self._steps)
        rows_off, ns_off = rows - self._rows, ns - self._ns
        self._rows += newest * rows_off
        self._ns += newest * ns_off
        self._variance = (1 - newest) * (self._variance + newest * rows_off * rows_off)
        self._covariance = (1 - newest) * (self._covariance + newest * rows_off * ns_off)
        self._reach = max(rows, REACH_KEPT * self._reach)
        dearest = self._ns / self._rows  # nothing but rows: no constant part
        if self._variance > (LEAST_SPREAD * self._rows) ** 2:
            self._slope = max(0.0, self._covariance / self._variance)
            self.fitted = True
        elif not self.fitted:
            self._slope = dearest
        self._slope = min(self._slope, dearest)
        if lean:
            old_rows, old_ns = self._lean or (rows, ns)
            self._lean = old_rows + NEWEST * (rows - old_rows), old_ns + NEWEST * (ns - old_ns)

    def _longest(self, rows: float, *, lean: bool) -> float:
        """The most that a step of that many weighed rows counts as. No step takes longer than the
        usual one by more than it has more rows."""
        known_rows, known_ns = (lean and self._lean) or (self._rows, self._ns)
        if known_ns == 0:
            return math.inf
        return OUTLIER * known_ns * max(1.0, rows / known_rows)

    def ns(self, rows: float) -> float:
        """What a step of that many weighed rows takes; 0 where nothing was measured."""
        return self._ns + self._slope * (rows - self._rows)

    def lean_ns(self, rows: float) -> float:
        """What steps without prompts take, where their roots are that many weighed rows.

        Remembered for itself: between long steps a line knows nothing of short ones, which take as
        long as the weights do.
        """
        if self._lean is None:
            return self.ns(rows)
        lean_rows, ns = self._lean
        return ns + self._slope * max(0.0, rows - lean_rows)

    def rows_within(self, ns: float) -> float:
        """The most weighed rows that a step of `ns` can have, as far as that is known."""
        if self._steps == 0:
            return math.inf
        spare = ns - self.ns(0)
        if spare < 0:
            return 0.0
        return min(spare / self._slope if self._slope else math.inf, REACH * self._reach)
