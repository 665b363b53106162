"""What is read off the arrival times of streams that run side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from forerun.bench.e2e import Setting, _require_same
from forerun.bench.streams import Stream, Wave, run_wave
from forerun.client import AsyncClient, GenerationStats


def _stream(asked: float, *arrivals: tuple[float, int], **stats: int) -> Stream:
    return Stream(asked, GenerationStats(**stats), (), list(arrivals))


def test_tokens_that_arrive_together_share_their_wait() -> None:
    stream = _stream(1.0, (3.0, 2), (6.0, 3), (7.0, 1))
    assert stream.first_token_s == 2.0
    assert stream.inter_token_s == [1.0, 1.0, 1.0, 1.0]


def test_rate_of_all_tokens_counts_while_all_streams_are_under_way() -> None:
    streams = [
        _stream(0.0, (1.0, 1), (4.0, 4)),
        _stream(0.0, (2.0, 1), (10.0, 4)),  # ends last, and does not count by its end
        _stream(4.0, (5.0, 2), (8.0, 2)),  # takes the place of the first; nobody takes its own
    ]
    assert Wave(streams, 2).tokens_per_s == (1 + 4 + 1 + 2 + 2) / 8.0
    assert Wave(streams[:1], 1).tokens_per_s == 5 / 4.0


class _Answers:
    """A client whose answers come when they are told to, and which writes down who asked when."""

    def __init__(self) -> None:
        self.under_way: dict[int, asyncio.Event] = {}
        self.most = 0

    @asynccontextmanager
    async def generate(self, *, token_ids: list[int], **_: object) -> AsyncIterator[_Answers]:
        event = self.under_way[token_ids[0]] = asyncio.Event()
        self.most = max(self.most, len(self.under_way))
        await event.wait()
        del self.under_way[token_ids[0]]
        yield self

    async def __aiter__(self) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(token_ids=[1])

    async def result(self) -> SimpleNamespace:
        return SimpleNamespace(stats=GenerationStats(), token_ids=(1,))


async def test_the_next_prompt_is_asked_as_soon_as_an_answer_ends() -> None:
    client = _Answers()
    wave = asyncio.create_task(
        run_wave(cast(AsyncClient, client), [[number] for number in range(4)], 1, width=2)
    )
    for ended, then in ((1, {0, 2}), (2, {0, 3}), (3, {0})):
        await asyncio.sleep(0.01)
        client.under_way[ended].set()
        await asyncio.sleep(0.01)
        assert client.under_way.keys() == then
    client.under_way[0].set()
    streams = (await wave).streams
    assert client.most == 2 and len(streams) == 4
    assert [s.asked for s in streams] == sorted(s.asked for s in streams)


def test_rate_of_decoding_counts_only_what_arrives_while_all_decode() -> None:
    first = _stream(0.0, (1.0, 1), (2.0, 1), (3.0, 1), (4.0, 1))
    second = _stream(0.0, (2.0, 1), (4.0, 2), (9.0, 7))
    # From 2.0, exclusive, to 4.0: two tokens of the first, two of the second.
    assert Wave([first, second, _stream(2.5, (2.6, 9))], 2).decode_tokens_per_s == 2.0


def test_no_rate_of_decoding_where_no_two_streams_meet() -> None:
    wave = Wave([_stream(0.0, (1.0, 1), (2.0, 1)), _stream(0.0, (3.0, 1), (4.0, 1))], 2)
    assert wave.decode_tokens_per_s is None


def test_pace_of_decoding_leaves_the_prompt_out() -> None:
    slow = [_stream(0.0, (5.0, 1), (6.0, 1), (9.0, 3))], 1
    fast = [_stream(0.0, (9.0, 1), (9.5, 1), (11.0, 3))], 1
    assert Wave(*slow).mean_inter_token_s == 1.0
    figures = Setting("ngram", 1, [Wave(*fast)]).figures(Setting("none", 1, [Wave(*slow)]))
    assert figures["decoding_times_plain"] == 2.0 and figures["times_plain"] < 1
    alone = Setting("none", 1, [Wave([_stream(0.0, (1.0, 1))], 1)])
    assert alone.figures(alone)["decoding_times_plain"] is None


def test_figures_of_a_setting() -> None:
    def setting(draft: str, *seconds: float, **stats: int) -> Setting:
        waves = [Wave([_stream(0.0, (s / 2, 1), (s, 1), **stats)], 1) for s in seconds]
        return Setting(draft, 1, waves)

    plain = setting("none", 1.0, 2.0, 4.0)
    drafted = setting("ngram", 0.5, 4.0, 1.0, rounds=4, accepted=3)
    figures = drafted.figures(plain)
    assert figures["tokens_per_s"] == 2.0
    assert figures["times_plain"] == 2.0  # the median of 2, 1/2 and 4
    assert figures["decoding_times_plain"] == 2.0
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
