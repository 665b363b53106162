"""Every code block of the documentation runs, or is checked as far as can be; each kind says how.

The blocks of a page run in order, in a sandbox that looks like the repository (sandbox.py); what a
command does there is in commands.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import mypy.api
import pytest

from forerun.cli.parser import COMMANDS as FORERUN_COMMANDS
from tests.docs import commands
from tests.docs.checks import DOTENV, TEXTS, YAML, Check
from tests.docs.pages import PAGES, ROOT, Block, all_blocks, blocks, name
from tests.docs.sandbox import Sandbox


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    made = Sandbox(tmp_path)
    monkeypatch.chdir(made.root)
    monkeypatch.delenv("FORERUN_ADDRESS", raising=False)
    monkeypatch.delenv("FORERUN_TOKEN", raising=False)
    yield made
    made.close()


def run_commands(block: Block, sandbox: Sandbox) -> None:
    sandbox.run(block)


def run_python(block: Block, sandbox: Sandbox) -> None:
    """Each block is a program of its own; a traceback names the page and its line."""
    program = "\n" * (block.line - 1) + sandbox.addressed(block.text)
    exec(compile(program, ROOT / block.page, "exec"), {"__name__": "__main__"})


def check_promql(block: Block, sandbox: Sandbox) -> None:
    """tests/deploy/test_monitoring.py asks a real Prometheus every such block of all pages."""
    assert re.search(r"forerun_(draft|verify)_\w+", block.text), block.place


def by_name(checks: Mapping[str, Check]) -> Check:
    """Each has a check of its own."""
    return lambda block, sandbox: checks[key(block)](block, sandbox)


def key(block: Block) -> str:
    return f"{block.page}: {block.heading}"


RUNNERS: dict[str, Check] = {
    "sh": run_commands,
    "python": run_python,
    "dotenv": by_name(DOTENV),
    "promql": check_promql,
    "yaml": by_name(YAML),
    "text": by_name(TEXTS),
}


def test_every_block_is_fenced_and_of_a_kind_that_is_known() -> None:
    indented = [block.place for block in all_blocks() if block.language is None]
    assert not indented, "fence these, with a language"
    unknown = {
        block.place: block.language for block in all_blocks() if block.language not in RUNNERS
    }
    assert not unknown, f"the languages are {sorted(RUNNERS)}"


def test_commands_stand_on_lines_of_their_own() -> None:
    """Bash does not end a block where what stands before && fails."""
    chained = [block.place for block in all_blocks("sh") if re.search(r"&&|\|\||;", block.text)]
    assert not chained


@pytest.mark.parametrize(
    ("language", "checks"), [("dotenv", DOTENV), ("yaml", YAML), ("text", TEXTS)]
)
def test_whatever_needs_a_check_of_its_own_has_one(
    language: str, checks: Mapping[str, Check]
) -> None:
    assert {key(block) for block in all_blocks(language)} == set(checks)


def test_every_command_of_forerun_runs_here_or_elsewhere() -> None:
    assert {*commands.RUN, *commands.RUN_ELSEWHERE} == set(FORERUN_COMMANDS)
    assert all((ROOT / path).exists() for path in commands.RUN_ELSEWHERE.values())


def test_examples_keep_to_the_types(tmp_path: Path) -> None:
    """What a wrong name would do in a branch that no run takes."""
    files = []
    for block in all_blocks("python"):
        file = tmp_path / f"{Path(block.page).stem}_{block.line}.py"
        file.write_text("\n" * (block.line - 1) + block.text)
        files.append(str(file))
    config, cache = ROOT / "pyproject.toml", ROOT / ".mypy_cache"
    settings = [f"--config-file={config}", f"--cache-dir={cache}"]
    told, wrong, code = mypy.api.run([*settings, *files])
    assert code == 0, told + wrong


@pytest.mark.timeout(300)  # both servers start on most pages, and some machines are busy
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name)
def test_the_blocks_of_a_page_run(page: Path, sandbox: Sandbox) -> None:
    for block in blocks(page):
        RUNNERS[block.language or ""](block, sandbox)
