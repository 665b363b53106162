"""The rules between rooms: what may import what, and what no room may do.

The contracts of [tool.importlinter] in pyproject.toml hold the imports between Python modules. What
import-linter cannot see (the compiled module, calls) is read from the syntax trees here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from importlinter import configuration
from importlinter.application import use_cases

REPOSITORY = Path(__file__).parent.parent
ROOMS = ("forerun", "draft_server", "verify_server")

# Loading what these wrote runs code of whoever wrote it.
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "__import__", "torch.load", "os.system", "os.fork"}
VAGUE_NAMES = ("utils", "helper", "manager")
UNFINISHED = ("TODO", "FIXME", "XXX", "NotImplementedError")
MAX_LINES = 400

SOURCES = sorted(
    path
    for room in ROOMS
    for path in (REPOSITORY / room).rglob("*.py")
    if "v1" not in path.relative_to(REPOSITORY).parts  # generated
)
NATIVE_SOURCES = sorted(
    path for suffix in ("cc", "h") for path in (REPOSITORY / "native").rglob(f"*.{suffix}")
)


def _name(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def _imports(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported, at the top or inside a function; for `from a import b` both
    a and a.b, since b may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _calls(tree: ast.AST) -> Iterator[str]:
    """What is called, but for the reader of tensors that builds nothing else."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if keywords.get("weights_only") != "True":
                yield ast.unparse(node.func)


def test_import_contracts(capsys: pytest.CaptureFixture[str]) -> None:
    # Not importlinter.cli, which sets up logging for the whole process.
    configuration.configure()
    kept = use_cases.lint_imports(
        config_filename=str(REPOSITORY / "pyproject.toml"), cache_dir=None, no_logo=True
    )
    assert kept, capsys.readouterr().out


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_module_keeps_the_rules(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    imports = set(_imports(tree))
    package = path.relative_to(REPOSITORY).parts[:2]

    if package not in {("forerun", "engine"), ("forerun", "ops"), ("forerun", "ops.py")}:
        assert "forerun._native" not in imports, "only forerun.engine and forerun.ops may"
    assert not {name.partition(".")[0] for name in imports} & UNSAFE_MODULES
    assert not set(_calls(tree)) & UNSAFE_CALLS
    assert not any(word in path.stem for word in VAGUE_NAMES), "a name says what the file owns"
    assert not [word for word in UNFINISHED if word in text]
    assert ast.get_docstring(tree), "the first line of a file says what it owns"
    assert text.count("\n") <= MAX_LINES, "one idea a file"


@pytest.mark.parametrize("path", NATIVE_SOURCES, ids=_name)
def test_native_file_keeps_the_rules(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not [word for word in UNFINISHED[:3] if word in text]
    assert text.count("\n") <= MAX_LINES, "one idea a file"


def test_rules_see_imports_inside_functions() -> None:
    tree = ast.parse("def load():\n    from forerun import _native\n    import pickle as p\n")
    assert {"forerun._native", "pickle"} <= set(_imports(tree))


def test_rules_see_calls_through_modules() -> None:
    assert set(_calls(ast.parse("weights = torch.load(path)"))) == {"torch.load"}
    assert set(_calls(ast.parse("torch.load(path, weights_only=False)"))) == {"torch.load"}
    assert not set(_calls(ast.parse("torch.load(path, weights_only=True)")))
