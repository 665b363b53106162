"""Dashboards, alert rules and the documented rates, against servers under load and Prometheus.

Prometheus is a program of its own (Debian package `prometheus`); without it such tests are skipped.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from draft_server.drafters.calibrated import CalibratedDrafter
from draft_server.drafters.calibration import Calibration
from draft_server.drafters.ngram import NgramDrafter
from draft_server.metrics import DraftMetrics
from tests.docs.pages import all_blocks
from tests.fixtures.servers import Running, servers
from tests.fixtures.tiny import shared_checkpoint
from verify_server.config import VerifyConfig
from verify_server.metrics import Metrics
from verify_server.target import load_target

REPOSITORY = Path(__file__).parent.parent.parent
PROMETHEUS = REPOSITORY / "deploy" / "prometheus"
DASHBOARDS = sorted((REPOSITORY / "deploy" / "grafana" / "dashboards").glob("*.json"))
METRICS = REPOSITORY / "docs" / "metrics.md"
NAME = re.compile(r"forerun_(?:draft|verify|build|isa)_\w+")
LOAD_S = 6.0

with_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="Prometheus is not installed (Debian: apt install prometheus)",
)


def panels(dashboard: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(dashboard.read_text())["panels"]
    return found


def queries() -> Iterator[tuple[str, str]]:
    """Every query that a person is shown the answer of, with where it stands."""
    for dashboard in DASHBOARDS:
        for panel in panels(dashboard):
            for target in panel["targets"]:
                yield f"{dashboard.stem}: {panel['title']} {target['refId']}", target["expr"]
    for block in all_blocks("promql"):
        yield block.place, block.text


def families() -> set[str]:
    """The metrics of both servers, by the names that the client library gives them."""
    draft = DraftMetrics()
    draft.watch({"ngram": Calibration()})
    found = {
        f.name for registry in (draft.registry, Metrics().registry) for f in registry.collect()
    }
    return {name for name in found if name.startswith("forerun_")} | {"forerun_isa_info"}


def family(name: str) -> str:
    """Of a sample."""
    return re.sub(r"_(total|bucket|count|sum)$", "", name)


def test_every_metric_is_documented_and_no_other() -> None:
    tables = [line for line in METRICS.read_text().splitlines() if line.startswith("|")]
    assert set(NAME.findall("\n".join(tables))) == families()


def test_queries_and_rules_ask_for_metrics_that_exist() -> None:
    asked = "\n".join(query for _, query in queries()) + (PROMETHEUS / "rules.yml").read_text()
    assert {family(name) for name in NAME.findall(asked)} <= families()
    assert len(list(queries())) > 40


def test_dashboards_are_what_grafana_provisions() -> None:
    assert [path.stem for path in DASHBOARDS] == ["acceptance", "service"]
    boards = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert len({board["uid"] for board in boards}) == len(boards)
    source = (
        REPOSITORY / "deploy" / "grafana" / "provisioning" / "datasources" / "prometheus.yml"
    ).read_text()
    for board in boards:
        places = set()
        for panel in board["panels"]:
            assert f"uid: {panel['datasource']['uid']}\n" in source
            place = panel["gridPos"]
            places |= {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
        area = sum(p["gridPos"]["w"] * p["gridPos"]["h"] for p in board["panels"])
        assert len(places) == area, "panels overlap"
        assert max(x for x, _ in places) < 24


def test_a_figure_of_idle_servers_is_no_nan() -> None:
    """Nothing over nothing, which a curve leaves out and a figure would show."""
    quotients = [
        (panel["title"], panel["fieldConfig"]["defaults"].get("mappings", ()))
        for dashboard in DASHBOARDS
        for panel in panels(dashboard)
        if panel["type"] == "stat" and "/ " in panel["targets"][0]["expr"]
        if "rate(" in panel["targets"][0]["expr"]
    ]
    assert len(quotients) > 5
    for title, mappings in quotients:
        assert [(m["type"], m["options"]["match"]) for m in mappings] == [("special", "nan")], title


def test_a_series_of_each_server_names_its_server() -> None:
    """Several servers of a kind would have the same legend."""
    for dashboard in DASHBOARDS:
        for panel in panels(dashboard):
            for target in panel["targets"]:
                summed = re.search(r"\b(sum|min|histogram_quantile)\b", target["expr"])
                assert summed or "{{instance}}" in target["legendFormat"], panel["title"]


def test_every_alert_has_its_run_book() -> None:
    rules = (PROMETHEUS / "rules.yml").read_text()
    books = re.findall(r"runbook: docs/operations\.md#(\S+)", rules)
    assert len(books) == len(re.findall("- alert:", rules)) > 5
    titles = re.findall(r"^### (.*)$", (REPOSITORY / "docs" / "operations.md").read_text(), re.M)
    anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
    assert set(books) <= anchors


@with_prometheus
@pytest.mark.parametrize(
    "command", ["check config --syntax-only prometheus.yml", "test rules rules_test.yml"]
)
def test_promtool_accepts(command: str) -> None:
    done = subprocess.run(
        ["promtool", *command.split()], cwd=PROMETHEUS, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def scrape_config(running: Running) -> str:
    jobs = {"verify": running.verifier.metrics_address, "draft": running.draft.metrics_address}
    return json.dumps(  # which is YAML as well
        {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(PROMETHEUS / "rules.yml")],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [address]}]}
                for job, address in jobs.items()
            ],
        }
    )


def ask(port: int, path: str, **parameters: str) -> Any:
    query = urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}?{query}", timeout=10) as answer:
        return json.loads(answer.read())


def wait_until_ready(port: int) -> None:
    for _ in range(200):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=1).read()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("Prometheus does not become ready")


def expression(query: str) -> str:
    """As Grafana asks for it."""
    return query.replace("$__rate_interval", "5s").replace("$job", ".*").replace("[5m]", "[5s]")


def is_number(series: dict[str, Any]) -> bool:
    return math.isfinite(float(series["value"][1]))


async def load(running: Running) -> None:
    """Texts that repeat themselves, and some that do not, for a few seconds."""
    prompts = ["abcd" * 20, "hello a", "z" * 70, "0123456789" * 5]
    until = time.monotonic() + LOAD_S
    while time.monotonic() < until:
        answers = (running.client.complete(prompt, max_tokens=60) for prompt in prompts)
        await asyncio.gather(*answers)


@contextmanager
def prometheus(folder: Path, config: str) -> Iterator[int]:
    """A Prometheus that scrapes; yields its port."""
    (folder / "prometheus.json").write_text(config)
    port = free_port()
    flags = [
        f"--config.file={folder / 'prometheus.json'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    with subprocess.Popen(["prometheus", *flags]) as process:
        try:
            wait_until_ready(port)
            yield port
        finally:
            process.terminate()


@with_prometheus
async def test_every_query_returns_data(tmp_path: Path) -> None:
    target = load_target(VerifyConfig(model=str(shared_checkpoint()), threads=1))
    drafter = CalibratedDrafter(NgramDrafter())
    async with servers(target, drafter, draft={"metrics_port": 0}, metrics_port=0) as running:
        with prometheus(tmp_path, scrape_config(running)) as port:
            await load(running)
            await asyncio.to_thread(check_queries, port)
            await asyncio.to_thread(check_scrapes, port)


def check_queries(port: int) -> None:
    empty = []
    for where, query in queries():
        answer = ask(port, "api/v1/query", query=expression(query))
        assert answer["status"] == "success", where
        if not any(map(is_number, answer["data"]["result"])):
            empty.append(where)
    assert not empty
    rules = ask(port, "api/v1/rules")
    assert {r["health"] for g in rules["data"]["groups"] for r in g["rules"]} == {"ok"}


def check_scrapes(port: int) -> None:
    """What there is to scrape is bounded, and no label comes from a session or a client."""
    for job in ("verify", "draft"):
        answer = ask(port, "api/v1/query", query=f'scrape_samples_scraped{{job="{job}"}}')
        (samples,) = (float(series["value"][1]) for series in answer["data"]["result"])
        assert 50 < samples < 1000
    labels = set(ask(port, "api/v1/labels")["data"])
    assert labels <= {
        *("__name__", "job", "instance", "le", "alertname", "alertstate", "severity"),
        *("depth", "reason", "kind", "phase", "state", "part", "method", "level", "gate"),
        *("version", "python_version"),
    }
