"""`forerun top` shows what real servers do, and goes on where one does not answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest
from prometheus_client.samples import Sample

from draft_server.drafters.ngram import NgramDrafter
from forerun.cli import main, top
from forerun.obs.scrape import Scrape
from tests.fixtures.servers import Running, servers
from tests.fixtures.tiny import shared_checkpoint
from verify_server.config import VerifyConfig
from verify_server.target import load_target


async def keep_busy(running: Running) -> None:
    while True:
        await running.client.complete("abcd" * 20, max_tokens=40)


async def test_it_shows_both_servers_and_one_that_is_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    target = load_target(VerifyConfig(model=str(shared_checkpoint()), threads=1))
    ports = {"metrics_port": 0}
    async with servers(target, NgramDrafter(), draft=ports, **ports) as running:
        busy = asyncio.create_task(keep_busy(running))
        addresses = [running.draft.metrics_address, running.verifier.metrics_address]
        command = ["top", "--once", "--interval", "1.5", *addresses]
        assert await asyncio.to_thread(main, command) == 0
        capsys.readouterr()
        assert await asyncio.to_thread(main, [*command, "127.0.0.1:1"]) == 1
        busy.cancel()
    shown = capsys.readouterr().out
    draft, verify, away = shown.split("╭─")[1:]
    assert f"draft server {addresses[0]}, " in draft
    assert f"verify server {addresses[1]}, " in verify
    assert "127.0.0.1:1" in away and "no metrics: " in away
    figures = {line.partition(" %")[0] for line in draft.splitlines()}
    assert any("acceptance rate" in line for line in figures)
    assert "accepted by depth" in draft and "█" in draft
    assert "time of a round" in draft and "verify" in draft
    assert "KV pages" in verify and "prefilling" in verify
    for view in (draft, verify):
        tokens = next(line for line in view.splitlines() if "tokens/s" in line)
        assert int(tokens.split("tokens/s")[1].split()[0]) > 0


@pytest.mark.parametrize("interval", ["0", "-1", "inf", "nan"])
def test_an_interval_that_cannot_be_is_refused(
    interval: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--once", "--interval", interval, "127.0.0.1:1"]) == 1
    assert f"--interval is {float(interval)}; it must be above 0" in capsys.readouterr().err


def reading(at: float, tokens: float, started: float = 1.0) -> Scrape:
    values = {"forerun_draft_emitted_total": tokens, top.STARTED: started}
    return Scrape(at, [Sample(name, {}, value) for name, value in values.items()])


def reads(*given: Scrape | str) -> Callable[[str], Scrape | str]:
    """In place of reading: these, then Ctrl-C."""
    left = iter(given)

    def read(address: str) -> Scrape | str:
        for each in left:
            return each
        raise KeyboardInterrupt

    return read


def tokens_per_second(shown: str) -> list[str]:
    return re.findall(r"tokens/s +(\S+)", shown)


def test_what_is_no_terminal_gets_one_view_after_the_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    views = reads(reading(1, 10), reading(2, 30), reading(4, 40))
    monkeypatch.setattr(top, "_read", views)
    assert main(["top", "--interval", "0.001", "a:1"]) == 0
    assert tokens_per_second(capsys.readouterr().out) == ["20", "5"]


@pytest.mark.parametrize("before", ["no metrics: refused", reading(1, 10, started=0.5)])
def test_a_server_that_has_just_come_has_no_rates_yet(
    before: Scrape | str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those since its start, by the time of the interval or of this machine, would be wrong."""
    monkeypatch.setattr(top, "_read", reads(before, reading(2, 5000), reading(3, 5020)))
    assert main(["top", "--interval", "0.001", "a:1"]) == 0
    shown = capsys.readouterr().out
    assert "figures come with the next reading" in shown
    assert tokens_per_second(shown) == ["20"]


def test_without_a_first_reading_once_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "_read", reads("no metrics: refused", reading(2, 5000)))
    assert main(["top", "--once", "--interval", "0.001", "a:1"]) == 1


@pytest.mark.parametrize("address", ["[fe80::1]:9101", "[/x]:1"])
def test_an_address_is_shown_as_it_was_given(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "_read", reads(f"no metrics: {address}", reading(1, 0), reading(2, 0)))
    assert main(["top", "--interval", "0.001", address]) == 0
    assert capsys.readouterr().out.count(address) == 2


def test_a_narrow_terminal_loses_bars_before_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    pages = [Sample("forerun_verify_pages", {"state": "cached"}, 1234.0)]
    monkeypatch.setattr(top, "_read", reads(Scrape(1, pages), Scrape(2, pages)))
    assert main(["top", "--interval", "0.001", "a:1"]) == 0
    assert re.search(r"cached +█+ +1234", capsys.readouterr().out)
