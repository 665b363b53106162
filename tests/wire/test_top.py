"""`forerun top` shows what real servers do, and goes on where one does not answer."""

from __future__ import annotations

import asyncio

import pytest

from draft_server.drafters.ngram import NgramDrafter
from forerun.cli import main
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
