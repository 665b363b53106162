"""A head published as pytorch_model.bin, and files that are something else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from forerun.cli import main
from forerun.models import ModelError, open_checkpoint
from forerun.models.eagle import EagleCheckpoint
from forerun.training.convert import convert
from tests.fixtures.fused_heads import head_tensors, write_eagle
from tests.fixtures.tiny import shared_checkpoint


def test_a_published_head_loads_once_it_is_converted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_eagle(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    tensors = {
        name: torch.from_numpy(value).half() for name, value in head_tensors("eagle").items()
    }
    tensors["fc.bias"] = tensors["fc.bias"].expand(2, -1)[0]
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    with open_checkpoint(shared_checkpoint()) as target:
        with pytest.raises(ModelError, match="forerun convert-head"):
            EagleCheckpoint(tmp_path, target.config)
        assert main(["convert-head", str(tmp_path)]) == 0
        assert str(tmp_path / "model.safetensors") in capsys.readouterr().out
        with EagleCheckpoint(tmp_path, target.config) as head:
            assert "fc_bias" in head.parts
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    with pytest.raises(ModelError, match="is there already"):
        convert(tmp_path)


class Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("it-ran",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"fc.weight": Malicious()}, "no file of tensors alone"),
        ([torch.ones(2)], "holds a list"),
        ({"fc.weight": 3}, "'fc.weight' is a int, not a tensor"),
        ({}, "expected tensors by name"),
    ],
)
def test_what_holds_anything_else_is_refused(
    content: object, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=message) as caught:
        convert(tmp_path)
    assert "weights_only" not in str(caught.value), "no advice to read it anyway"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pytorch_model.bin"]


@pytest.mark.parametrize("content", [b"", b"no archive at all", b"PK\x03\x04 and no more"])
def test_a_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(ModelError, match="is no file of tensors alone"):
        convert(tmp_path)
    with pytest.raises(ModelError, match="nothing to convert"):
        convert(tmp_path / "elsewhere")
