"""What is read off the arrival times of streams that run side by side."""

from __future__ import annotations

import pytest

from forerun.bench.e2e import Setting, _require_same
from forerun.bench.streams import Stream, Wave
from forerun.client import GenerationStats


def _stream(asked: float, *arrivals: tuple[float, int], **stats: int) -> Stream:
    return Stream(asked, GenerationStats(**stats), (), list(arrivals))


def test_tokens_that_arrive_together_share_their_wait() -> None:
    stream = _stream(1.0, (3.0, 2), (6.0, 3), (7.0, 1))
    assert stream.first_token_s == 2.0
    assert stream.inter_token_s == [1.0, 1.0, 1.0, 1.0]


def test_rate_of_all_tokens_is_from_the_request_to_the_last_token() -> None:
    wave = Wave([_stream(0.0, (1.0, 1), (5.0, 4)), _stream(0.0, (2.0, 1), (10.0, 4))])
    assert wave.tokens_per_s == 1.0


def test_rate_of_decoding_counts_only_what_arrives_while_all_decode() -> None:
    first = _stream(0.0, (1.0, 1), (2.0, 1), (3.0, 1), (4.0, 1))
    second = _stream(0.0, (2.0, 1), (4.0, 2), (9.0, 7))
    # From 2.0, exclusive, to 4.0: two tokens of the first, two of the second.
    assert Wave([first, second]).decode_tokens_per_s == 2.0


def test_no_rate_of_decoding_where_no_two_streams_meet() -> None:
    wave = Wave([_stream(0.0, (1.0, 1), (2.0, 1)), _stream(0.0, (3.0, 1), (4.0, 1))])
    assert wave.decode_tokens_per_s is None


def test_figures_of_a_setting() -> None:
    def setting(draft: str, *seconds: float, **stats: int) -> Setting:
        waves = [Wave([_stream(0.0, (s / 2, 1), (s, 1), **stats)]) for s in seconds]
        return Setting(draft, 1, waves)

    plain = setting("none", 1.0, 2.0, 4.0)
    drafted = setting("ngram", 0.5, 4.0, 1.0, rounds=4, accepted=3)
    figures = drafted.figures(plain)
    assert figures["tokens_per_s"] == 2.0
    assert figures["times_plain"] == 2.0  # the median of 2, 1/2 and 4
    assert figures["accepted_per_round"] == 0.75
    assert figures["ttft_ms"] == {"p50": 500.0, "p90": 1700.0, "p99": 1970.0}
    assert plain.figures(plain)["accepted_per_round"] is None


def test_another_answer_to_the_same_prompt_is_an_error() -> None:
    answers: dict[tuple[int, ...], tuple[int, ...]] = {}
    stats = GenerationStats()
    _require_same(answers, [[1, 2]], [Stream(0.0, stats, (3, 4))], "none")
    _require_same(answers, [[1, 2]], [Stream(0.0, stats, (3, 4))], "ngram")
    with pytest.raises(RuntimeError, match="draft ngram gave other tokens"):
        _require_same(answers, [[1, 2]], [Stream(0.0, stats, (3, 5))], "ngram")
