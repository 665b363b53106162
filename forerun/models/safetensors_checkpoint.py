"""Owns reading a Hugging Face folder: config.json and one or more safetensors files."""

from __future__ import annotations

from pathlib import Path

from forerun.models.bfloat16 import Bits
from forerun.models.checkpoint import Checkpoint
from forerun.models.config import config_from_hugging_face
from forerun.models.json_object import read_json_object
from forerun.models.safetensors_folder import SafetensorsFolder


class SafetensorsCheckpoint(Checkpoint):
    """A folder with config.json and safetensors files."""

    def __init__(self, directory: Path) -> None:
        config = config_from_hugging_face(
            read_json_object(directory / "config.json"),
            read_json_object(directory / "generation_config.json", optional=True),
            directory.resolve().name,
        )
        self._folder = SafetensorsFolder(directory)
        super().__init__(directory, config, self._folder.shapes)
        self._folder.open(self.tensor_shapes)

    def _read_block(self, name: str, start: int, stop: int) -> Bits:
        return self._folder.read_block(name, start, stop)

    def close(self) -> None:
        self._folder.close()
