"""What drafts bring in an engine is told next to its own plain decoding."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.compare.speculation_report import Answer, Variant, row, write


def answer(seconds: float, *tokens: int, rounds: int = 0, accepted: int = 0) -> Answer:
    return {
        "seconds": seconds,
        "tokens": [[token, token] for token in tokens],
        "rounds": rounds,
        "accepted": accepted,
    }


def variants() -> tuple[Variant, Variant]:
    plain, drafted = Variant("made", "none"), Variant("made", "eagle3")
    plain.answers[1] = [answer(4.0, 1, 2, 3), answer(6.0, 1, 2, 3)]
    drafted.answers[1] = [
        answer(2.0, 1, 2, 3, rounds=4, accepted=2),
        answer(4.0, 1, 2, 9, rounds=4, accepted=4),
    ]
    return plain, drafted


def test_a_row_holds_an_engine_against_itself() -> None:
    plain, drafted = variants()
    found = row(drafted, plain, 1)
    assert found["times_plain"] == 1.75, "the median of the rounds' ratios"
    assert (found["plain_tokens_per_s"], found["tokens_per_s"]) == (1.2, 2.0)
    assert found["accepted_per_round"] == 0.75
    assert (found["same_answers"], found["answers"]) == (2, 3)


def test_what_failed_says_why(tmp_path: Path) -> None:
    plain, drafted = variants()
    broken = Variant("broken", "eagle3", failed="no such head")
    settings = {"threads": 2, "rounds": 2, "streams": (1,), "prompts": 3, "max_tokens": 2}
    everyone = [plain, Variant("broken", "none"), drafted, broken]
    write(everyone, tmp_path, settings)
    (report,) = tmp_path.glob("speculation-*.json")
    rows = json.loads(report.read_text())["rows"]
    assert [(row["peer"], row.get("failed")) for row in rows] == [
        ("made", None),
        ("broken", "no such head"),
    ]
    page = report.with_suffix(".md").read_text()
    assert "| made | eagle3 | 1 | 1.2 | 2.0 | 1.75 | 0.75 | 2 of 3 |" in page
    assert "failed: no such head" in page
