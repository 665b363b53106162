"""Measures forerun next to other engines on this machine: `make compare`.

Owns the course of the comparison. Every peer is prepared, loaded, warmed up by one round, and then
asked for every case in turn, round after round, while the others stand still. A peer that cannot
be installed or fails on the way is reported with its reason.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from benchmarks.compare.cases import Requests
from benchmarks.compare.export import FOLDER, export
from benchmarks.compare.peers import HERE, PEERS, PeerFailed, environment
from benchmarks.compare.process import PeerProcess, start
from benchmarks.compare.results import OUTPUT, PeerResult, write
from forerun.models.default_model import cache_directory


def main() -> int:
    parser = argparse.ArgumentParser(prog="make compare", description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--peers", help="names, separated by ';'; default: all", default="")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--set-up-only", action="store_true", help="install peers, measure nothing")
    args = parser.parse_args()

    cache = cache_directory() / "compare"
    models = cache / "model"
    export(models)
    names = [name.strip() for name in args.peers.split(";") if name.strip()]
    results = [PeerResult(spec.name) for spec in PEERS if not names or spec.name in names]
    specs = {spec.name: spec for spec in PEERS}
    with ExitStack() as stack:
        running: dict[str, PeerProcess] = {}
        for result in results:
            try:
                process = start(specs[result.name], cache, models, args.threads)
            except PeerFailed as error:
                _fail(result, error)
                continue
            stack.callback(process.close)
            running[result.name] = process
            result.versions, result.dtype = process.versions, process.dtype
        if args.set_up_only:
            return int(any(result.failed for result in results))
        requests = Requests.of(models / FOLDER)
        try:
            for number in range(1 + args.rounds):
                print(f"round {number} of {args.rounds}", file=sys.stderr, flush=True)
                _round(requests, results, running, timed=number > 0)
        except KeyboardInterrupt:
            print("interrupted; what was measured is written", file=sys.stderr, flush=True)
    report = write(results, args.output, args.threads)
    plots = environment("plots", cache)
    subprocess.run([plots, HERE / "plots.py", report, report.with_suffix(".svg")], check=True)
    return 0


def _round(
    requests: Requests,
    results: list[PeerResult],
    running: dict[str, PeerProcess],
    *,
    timed: bool,
) -> None:
    """All cases, and for each all peers, so that a slow moment falls on neighbours alike."""
    for case, request in requests.next_round():
        for result in results:
            if result.failed is not None:
                continue
            try:
                answer = running[result.name].ask(request)
            except PeerFailed as error:
                _fail(result, error)
                continue
            result.tokens[case] = answer["tokens"]
            if timed:
                result.seconds[case].append(answer["seconds"])


def _fail(result: PeerResult, error: PeerFailed) -> None:
    result.failed = str(error)
    print(f"{result.name}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
