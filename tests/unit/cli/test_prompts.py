"""Files of prompts: what a line may hold, what is carried through, and what errors name."""

from __future__ import annotations

import json

import pytest

from forerun.cli.errors import CommandError
from forerun.cli.prompts import Prompt, read_prompts
from forerun.cli.results import output_line, without_eos
from forerun.client import Generation, GenerationStats


def test_each_kind_of_prompt() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    lines = [
        json.dumps({"prompt": "Once", "id": 7}),
        "",
        json.dumps({"messages": messages}),
        json.dumps({"prompt_token_ids": [1, 2], "tags": ["a"], "note": None}),
    ]
    assert read_prompts(lines, "in.jsonl") == [
        Prompt("in.jsonl:1", text="Once", carried={"id": 7}),
        Prompt("in.jsonl:3", messages=tuple(messages)),
        Prompt("in.jsonl:4", token_ids=(1, 2), carried={"tags": ["a"], "note": None}),
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON"),
        ('{"prompt": "a", "x": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        ('{"prompt": "a", "x": ' + "9" * 5000 + "}", "not JSON that can be read"),
        ('{"prompt": "a", "x": NaN}', "NaN is no number of JSON"),
        ('{"prompt": "a", "x": [-Infinity]}', "-Infinity is no number of JSON"),
        ('{"prompt": "a", "x": {"y": -1e999}}', "'-1e999' is beyond what a double holds"),
        ('{"prompt": "\\ud800"}', "half of a surrogate pair"),
        ('{"prompt": "a", "x": "\\udfff"}', "half of a surrogate pair"),
        ("[1]", "a JSON object is expected"),
        ("{}", "found none of them"),
        ('{"prompt": "a", "messages": []}', "found prompt and messages"),
        ('{"prompt": ""}', "prompt: a text"),
        ('{"prompt": 3}', "not 3"),
        ('{"messages": []}', "messages: a list"),
        ('{"messages": [{"role": "user"}]}', "messages: a list"),
        ('{"messages": [{"role": "user", "content": 1}]}', "messages: a list"),
        ('{"prompt_token_ids": []}', "prompt_token_ids: a list"),
        ('{"prompt_token_ids": [1, -1]}', "prompt_token_ids: a list"),
        ('{"prompt_token_ids": [true]}', "prompt_token_ids: a list"),
        ('{"prompt_token_ids": [4294967296]}', "prompt_token_ids: a list"),
        ('{"prompt": "a", "text": "b"}', "'text' is one that the output adds"),
    ],
)
def test_bad_line_names_the_file_and_the_line(line: str, problem: str) -> None:
    with pytest.raises(CommandError) as caught:
        read_prompts(['{"prompt": "good"}', "  ", line], "in.jsonl")
    assert str(caught.value).startswith("in.jsonl:3: ")
    assert problem in str(caught.value)


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(CommandError) as caught:
        read_prompts([json.dumps({"prompt": ["x" * 10_000]})], "in.jsonl")
    assert len(str(caught.value)) < 200


def test_file_without_prompts_is_an_error() -> None:
    with pytest.raises(CommandError, match=r"in\.jsonl holds no prompts"):
        read_prompts(["", "\n"], "in.jsonl")


def test_output_line_repeats_what_is_carried_and_adds_the_generation() -> None:
    stats = GenerationStats(
        rounds=3,
        drafted=12,
        accepted=5,
        accepted_by_depth=[3, 2],
        emitted=9,
        ttft_s=0.0123456,
        total_s=0.0923456,
    )
    line = output_line({"id": 7}, Generation((5, 6, 9), "é", "stop", stats), [9])
    assert "\n" not in line and "é" in line
    assert json.loads(line) == {
        "id": 7,
        "token_ids": [5, 6],
        "text": "é",
        "finish_reason": "stop",
        "stats": {
            "rounds": 3,
            "drafted": 12,
            "accepted": 5,
            "accepted_by_depth": [3, 2],
            "emitted": 9,
            "ttft_ms": 12.346,
            "tokens_per_second": 100.0,
        },
    }


def test_rate_of_one_token_is_null() -> None:
    generation = Generation((5,), "a", "length", GenerationStats(emitted=1))
    assert json.loads(output_line({}, generation, []))["stats"]["tokens_per_second"] is None


@pytest.mark.parametrize(
    ("token_ids", "kept"),
    [((1, 2, 9), (1, 2)), ((9, 1), (9, 1)), ((9, 9), (9,)), ((), ()), ((9,), ())],
)
def test_eos_is_left_out_at_the_end_alone(
    token_ids: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    assert without_eos(token_ids, [9]) == kept
