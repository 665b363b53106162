"""Blocks that are no programs: what each of them is, and what it is held against.

A block is named by its page and heading. Output of programs is compared with what they print, as
far as it is the same on every machine.
"""

from __future__ import annotations

import argparse
import io
import math
import re
from collections.abc import Callable
from dataclasses import replace

import yaml
from rich.console import Console

from draft_server.config import DraftConfig
from forerun.cli import demo_report
from forerun.cli.demo import PROMPT
from forerun.client import Generation, GenerationStats, ModelInfo
from forerun.settings import Settings
from forerun.tree import Tree
from forerun.v1.generate_pb2 import GetModelInfoResponse
from tests.docs.pages import ROOT, Block
from tests.docs.sandbox import Sandbox
from verify_server.config import VerifyConfig

Check = Callable[[Block, Sandbox], None]


def is_the_env_file(block: Block, sandbox: Sandbox) -> None:
    """It is deploy/.env, which Compose reads from here on; each name is a variable of the files."""
    files = "\n".join(path.read_text() for path in (ROOT / "deploy").glob("compose*.yaml"))
    lines = [line.partition(" #")[0] for line in block.text.splitlines() if line]
    for line in lines:
        variable = line.partition("=")[0]
        assert re.search(rf"\$\{{{variable}\W", files), f"{block.place}: {variable}"
    (sandbox.root / "deploy" / ".env").write_text(block.text)


def is_of_the_kubelet(block: Block, sandbox: Sandbox) -> None:
    """It does not start unless these are equal."""
    settings = yaml.safe_load(block.text)
    mib = {"Mi": 1, "Gi": 1024}

    def size(text: str) -> int:
        return int(text[:-2]) * mib[text[-2:]]

    eviction = 100
    reserved = sum(size(node["limits"]["memory"]) for node in settings["reservedMemory"])
    assert reserved == size(settings["systemReserved"]["memory"]) + eviction
    assert settings["topologyManagerPolicy"] == "single-numa-node"


def is_a_compose_file(block: Block, sandbox: Sandbox) -> None:
    """Its services are there, and take its settings."""
    configs: dict[str, type[Settings]] = {"verify": VerifyConfig, "draft": DraftConfig}
    (sandbox.root / "deploy" / "compose.own.yaml").write_text(block.text)
    files = "-f deploy/compose.yaml -f deploy/compose.own.yaml"
    sandbox.run(replace(block, text=f"docker compose {files} config --quiet"))
    for name, service in yaml.safe_load(block.text)["services"].items():
        assert set(service) == {"environment"}
        configs[name].from_args(argparse.Namespace(), service["environment"])
        for key in service["environment"]:
            assert key.startswith(configs[name].environment_prefix), key


def drawing(block: Block, sandbox: Sandbox) -> None:
    """Nothing to compare."""


def is_the_demo(block: Block, sandbox: Sandbox) -> None:
    """What the demo prints of these figures; tests/unit/cli/test_demo.py runs it."""
    told = {"model_name": "SmolLM2-135M-Instruct.Q4_1", "dtype": "bfloat16", "isa": "avx2"}
    model = ModelInfo.from_pb(GetModelInfoResponse(**told, draft="ngram+eagle3"))
    stats = GenerationStats(drafted_by_depth=[14], accepted_by_depth=[11])
    answer = Generation(tuple(range(78)), "", "stop", stats)
    printed = io.StringIO()
    console = Console(file=printed, width=100)
    demo_report.print_heading(model, PROMPT, console)
    demo_report.print_comparison(demo_report.Comparison(answer, 5, 47.87, 164.54), console)
    lines = {words(line) for line in printed.getvalue().splitlines()}
    cut_short = "The lighthouse stands on a narrow rock at the edge of the bay. ..."
    assert {words(line) for line in block.text.splitlines()} - lines == {"...", cut_short}


def words(line: str) -> str:
    """A line without the rules of a table, and without its widths."""
    return " ".join(re.sub(r"[│┃┏┓┡┩└┘━─┳╇┴┼]", " ", line).split())


def is_a_list_of_rooms(block: Block, sandbox: Sandbox) -> None:
    """The folders and modules that are named exist."""
    folder = ROOT
    for line in block.text.splitlines():
        room = re.match(r"( *)(\S+/)\s", line)
        if room is None:
            continue
        if not room[1]:
            folder = ROOT / room[2]
        assert (folder if not room[1] else folder / room[2]).is_dir(), line


def is_a_tree(block: Block, sandbox: Sandbox) -> None:
    """The arrays are a tree by the rules, and the bytes those of the probabilities beside them."""
    rows = {}
    for line in block.text.splitlines():
        field, *values = line.split("(")[0].split()
        rows[field] = [int(value) for value in values]
    Tree(**rows)
    told = re.search(r"\((.*)\)", block.text)
    assert told
    probabilities = [float(value) for value in told[1].split(",")]
    assert [round(-16 * math.log(p)) for p in probabilities] == rows["confidences"]


DOTENV: dict[str, Check] = {"docs/deployment.md: 5. Settings": is_the_env_file}

YAML: dict[str, Check] = {
    "docs/deployment.md: 5. Settings": is_a_compose_file,
    "docs/kubernetes.md: A socket each": is_of_the_kubelet,
}

TEXTS: dict[str, Check] = {
    "README.md: forerun": is_the_demo,
    "docs/architecture.md: Architecture": drawing,
    "docs/architecture.md: Rooms": is_a_list_of_rooms,
    "docs/kernels.md: Tiles": drawing,
    "docs/kernels.md: Attention": drawing,
    "docs/protocol.md: VerifyService: between a draft server and a verify server": drawing,
    "docs/protocol.md: The token tree": is_a_tree,
}
