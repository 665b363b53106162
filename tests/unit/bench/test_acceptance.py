"""What is counted where drafts are compared with none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forerun.bench.acceptance import Answers, report
from forerun.cli import bench_report, main
from forerun.cli.bench_acceptance import read_questions
from forerun.cli.errors import CommandError
from forerun.client import Generation, GenerationStats
from forerun.models import load_tokenizer
from tests.fixtures.bench import DATA
from tests.fixtures.tiny import shared_checkpoint

Capture = pytest.CaptureFixture[str]


def _answers(
    category: str, ids: tuple[int, ...], plain: tuple[int, ...], **stats: object
) -> Answers:
    drafted = Generation(ids, "", "length", GenerationStats(**stats))  # type: ignore[arg-type]
    return Answers(category, drafted, Generation(plain, "", "length", GenerationStats()))


def test_figures_name_their_denominators() -> None:
    first = _answers(
        "qa", (1, 2), (1, 2),
        rounds=4, plain_steps=1, drafted=20, accepted=6, emitted=11,
        drafted_by_depth=[4, 3], accepted_by_depth=[4, 2],
    )  # fmt: skip
    second = _answers(
        "rag", (1, 3), (1, 2),
        rounds=2, plain_steps=3, drafted=4, accepted=0, emitted=5, drafted_by_depth=[2, 1, 1],
    )  # fmt: skip
    figures = report([first, second])

    assert figures["all"] == {
        "questions": 2,
        "identical": 1,
        "emitted": 16,
        "rounds": 6,
        "plain_steps": 4,
        "drafted": 24,
        "accepted": 6,
        "accepted_per_round": 1.0,
        "accepted_per_step": 0.6,
        "drafted_per_round": 4.0,
        "accepted_by_depth": [0.6667, 0.5, 0.0],
        "rounds_by_depth": [6, 4, 1],
    }
    assert figures["categories"].keys() == {"qa", "rag"}
    assert figures["categories"]["qa"]["accepted_per_step"] == 1.2
    assert figures["categories"]["rag"]["identical"] == 0
    assert figures["denominators"].keys() <= figures["all"].keys()


def test_answers_without_rounds_have_no_rates() -> None:
    figures = report([_answers("qa", (1,), (1,), plain_steps=2)])["all"]
    assert figures["accepted_per_round"] is None
    assert figures["accepted_per_step"] == 0


def test_questions_are_spread_over_the_categories_of_spec_bench() -> None:
    tokenizer = load_tokenizer(shared_checkpoint())
    questions = read_questions(None, 12, tokenizer)
    categories = [question.category for question in questions]
    assert set(categories) == {
        "mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag",
    }  # fmt: skip
    assert max(categories.count(name) for name in categories) == 2
    assert len(read_questions(DATA / "specbench_dev.jsonl", 1000, tokenizer)) == 240


def test_questions_of_other_files(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(shared_checkpoint())
    path = tmp_path / "questions.jsonl"
    path.write_text('{"prompt_token_ids": [1, 2], "category": "mine"}\n{"prompt": "abc"}\n')
    first, second = read_questions(path, 5, tokenizer)
    assert (first.category, list(first.prompt)) == ("mine", [1, 2])
    assert (second.category, list(second.prompt)[2:5]) == ("all", list(b"abc"))
    path.write_text('{"turns": []}\n')
    with pytest.raises(CommandError, match=r"questions\.jsonl:1: exactly one of prompt"):
        read_questions(path, 5, tokenizer)
    with pytest.raises(CommandError, match="does not exist; name a file of questions"):
        read_questions(tmp_path / "absent.jsonl", 5, tokenizer)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--questions", "0"], "--questions is 0; it must be at least 1"),
        (["--draft", "none"], "give another --draft"),
    ],
)
def test_flags_that_cannot_be_used(arguments: list[str], message: str, capsys: Capture) -> None:
    assert main(["bench", "acceptance", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_acceptance_of_the_target_as_its_own_draft(tmp_path: Path, capsys: Capture) -> None:
    questions = tmp_path / "questions.jsonl"
    lines = [
        {"turns": ["abcabc"], "category": "coding"},
        {"prompt_token_ids": [5, 6, 7, 5, 6, 7], "category": "qa"},
    ]
    questions.write_text("\n".join(map(json.dumps, lines)))
    arguments = (
        f"bench acceptance --model {shared_checkpoint()} --input {questions} --max-tokens 12 "
        "--draft standalone --nodes 3 --depth 3 --json"
    )
    assert main(arguments.split()) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["categories"].keys() == {"mt_bench", "qa"}
    assert figures["all"]["questions"] == figures["all"]["identical"] == 2
    assert figures["all"]["accepted"] == figures["all"]["drafted"] > 0
    assert len(figures["all"]["accepted_by_depth"]) == 3
    bench_report.print_acceptance(figures)
    assert "mt_bench" in capsys.readouterr().out
