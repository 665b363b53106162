"""What a draft server counts of single rounds."""

from __future__ import annotations

import pytest

from draft_server.metrics import PARTS, DraftMetrics


def parts(metrics: DraftMetrics) -> dict[str, float]:
    name = "forerun_draft_round_part_seconds_total"
    values = {part: metrics.registry.get_sample_value(name, {"part": part}) for part in PARTS}
    return {part: value for part, value in values.items() if value is not None}


def test_the_parts_of_rounds_are_their_time() -> None:
    """A plain step can begin before the verdict of the one before has been handled here."""
    metrics = DraftMetrics()
    assert parts(metrics) == dict.fromkeys(PARTS, 0.0)
    metrics.record_parts(total_s=10.0, draft_s=1.0, queue_s=2.0, verify_s=4.0)
    assert parts(metrics) == {"draft": 1.0, "queue": 2.0, "verify": 4.0, "other": 3.0}
    metrics.record_parts(total_s=5.0, draft_s=0.0, queue_s=3.0, verify_s=4.0)
    metrics.record_parts(total_s=3.0, draft_s=0.0, queue_s=0.5, verify_s=29.0)
    total = metrics.registry.get_sample_value("forerun_draft_round_seconds_sum")
    assert sum(parts(metrics).values()) == pytest.approx(total)
