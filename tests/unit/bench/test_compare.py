"""The comparison with other engines: its line protocol, failures that are told, and its page."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.compare import process
from benchmarks.compare.cases import CASES, DECODE_1, PREFILL, Requests
from benchmarks.compare.peers import HERE, PeerFailed
from benchmarks.compare.process import PeerProcess
from benchmarks.compare.results import PeerResult, write

Start = Callable[[str], PeerProcess]

SCRIPT = """\
import sys
sys.path.insert(0, {drivers!r})
from protocol import Peer, serve

class Made(Peer):
    versions, dtype = {{"made": "1"}}, "integers"

    def __init__(self, folder, threads):
        print("a library that prints on standard output")
        {load}

    def decode(self, prompts, steps):
        return 0.5, [[prompt[-1] + step for step in range(steps + 1)] for prompt in prompts]

    def prefill(self, prompt):
        {prefill}

serve(Made)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def run(prefill: str = "return 0.25, [[7]]", load: str = "pass") -> PeerProcess:
            script = tmp_path / "driver.py"
            text = SCRIPT.format(drivers=str(HERE / "drivers"), load=load, prefill=prefill)
            script.write_text(textwrap.dedent(text))
            peer = PeerProcess([sys.executable, script, "folder", "2"], tmp_path / "log")
            stack.callback(peer.close)
            return peer

        yield run


def test_a_driver_that_answers_no_prompts_says_so(start: Start) -> None:
    request = {"case": "answer", "prompts": [[1]], "streams": 1, "max_tokens": 4}
    with pytest.raises(PeerFailed, match="it answers no prompts"):
        start().ask(request)


def test_answers_of_a_driver(start: Start) -> None:
    peer = start()
    assert (peer.versions, peer.dtype) == ({"made": "1"}, "integers")
    decode = {"case": "decode", "prompts": [[1, 2], [3, 9]], "steps": 2}
    assert peer.ask(decode) == {"seconds": 0.5, "tokens": [[2, 3, 4], [9, 10, 11]]}
    prefill = {"case": "prefill", "prompts": [[1, 2]]}
    assert peer.ask(prefill) == {"seconds": 0.25, "tokens": [[7]]}


@pytest.mark.parametrize(
    ("body", "reason"),
    [("raise ValueError('no room')", "ValueError: no room"), ("sys.exit(3)", "status 3")],
)
def test_a_driver_that_fails_tells_why(start: Start, body: str, reason: str) -> None:
    peer = start(body)
    with pytest.raises(PeerFailed, match=reason):
        peer.ask({"case": "prefill", "prompts": [[1]]})


def test_a_peer_that_cannot_be_loaded(start: Start) -> None:
    with pytest.raises(PeerFailed, match="ImportError: no such library"):
        start(load="raise ImportError('no such library')")


def test_a_peer_that_does_not_answer(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = start("import time; time.sleep(60)")
    monkeypatch.setattr(process, "CASE_TIMEOUT_S", 0.2)
    with pytest.raises(PeerFailed, match="no answer within"):
        peer.ask({"case": "prefill", "prompts": [[1]]})


def test_prompts_of_decoding_stay_and_those_of_prefills_never_repeat() -> None:
    requests = Requests(list(range(10_000)))
    first, second = (dict(requests.next_round()) for _ in range(2))
    assert first.keys() == second.keys() == set(CASES)
    assert [len(prompt) for prompt in first[DECODE_1]["prompts"]] == [128]
    assert first[DECODE_1] == second[DECODE_1]
    [one], [other] = first[PREFILL]["prompts"], second[PREFILL]["prompts"]
    assert len(one) == len(other) == 512 and not set(one) & set(other)


def test_page_tells_rates_bars_and_failures(tmp_path: Path) -> None:
    def result(name: str, seconds: float) -> PeerResult:
        peer = PeerResult(name, versions={name: "1"}, dtype="bfloat16")
        peer.seconds = {case: [seconds, 2 * seconds, 9.0] for case in CASES}
        peer.tokens = {case: [[1, 2, 3]] for case in CASES}
        return peer

    other = result("llama.cpp", 1.0)
    other.tokens[DECODE_1] = [[1, 5, 3]]
    results = [result("forerun", 0.5), other, PeerResult("vLLM", failed="not installed: no wheel")]
    path = write(results, tmp_path, threads=2)
    report = json.loads(path.read_text())
    [mine, theirs, failed] = report["peers"]
    assert mine["tokens_per_s"][DECODE_1.name] == DECODE_1.steps / 1.0
    assert theirs["same_tokens"][DECODE_1.name] == "1 of 3"
    assert failed["failed"] == "not installed: no wheel"
    bars = {(bar["case"], bar["peer"]): (bar["ratio"], bar["met"]) for bar in report["bars"]}
    assert bars[DECODE_1.name, "llama.cpp"] == (2.0, True)
    assert bars[DECODE_1.name, "OpenVINO GenAI"] == (None, False)
    page = path.with_suffix(".md").read_text()
    assert "| llama.cpp | 8.0 (0.50) |" in page
    assert "- vLLM: **failed: not installed: no wheel**" in page
    assert "not measured" in page
