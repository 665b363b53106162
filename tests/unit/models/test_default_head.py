"""The head that is shipped drafts for the default model, and for no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from draft_server.drafters.registry import DraftSettings, check_method
from forerun.cli.local import local_options
from forerun.cli.parser import build_parser
from forerun.models import shipped_head
from forerun.models.default_model import FILE_NAME

HEAD_FOLDERS = "forerun.models.default_head._FOLDERS"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the head lies: the second of two places."""
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    head = tmp_path / "head"
    head.mkdir()
    monkeypatch.setattr(HEAD_FOLDERS, (tmp_path / "missing", head))
    return head


def test_is_for_the_default_model_alone(folder: Path, tmp_path: Path) -> None:
    for method in ("eagle3", "ngram+eagle3"):
        assert shipped_head(method, None) == folder
        assert shipped_head(method, tmp_path / FILE_NAME) == folder
        assert shipped_head(method, tmp_path / "other.gguf") is None
    for method in ("eagle", "ngram", "standalone"):
        assert shipped_head(method, None) is None


def test_may_be_missing(folder: Path) -> None:
    folder.rmdir()
    assert shipped_head("eagle3", None) is None


def test_no_head_need_be_named_where_one_is_shipped(folder: Path, tmp_path: Path) -> None:
    check_method("eagle3", DraftSettings())
    for name, target in (("eagle3", tmp_path), ("eagle", None)):
        with pytest.raises(ValueError, match="needs a draft model; name it with --draft-model"):
            check_method(name, DraftSettings(target=target))


def test_is_what_local_servers_draft_with(folder: Path, tmp_path: Path) -> None:
    def draft(*arguments: str) -> str:
        return local_options(build_parser(["demo"]).parse_args(["demo", *arguments])).draft

    assert draft() == "ngram+eagle3"
    assert draft("--model", str(tmp_path)) == "ngram"
    folder.rmdir()
    assert draft() == "ngram"
