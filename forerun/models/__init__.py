"""Models as files: configuration, weights and tokenizer, without running anything.

It needs NumPy but neither PyTorch nor the native module, and it executes nothing that a checkpoint
brings along: weights are read as numbers and chat templates run in a sandbox.
"""

from __future__ import annotations

from forerun.models.chat_template import ChatTemplateError
from forerun.models.checkpoint import Checkpoint
from forerun.models.config import ModelConfig
from forerun.models.default_head import shipped_head
from forerun.models.default_model import default_model_path
from forerun.models.errors import ModelError
from forerun.models.formats import load_tokenizer, open_checkpoint
from forerun.models.rope import RopeConfig
from forerun.models.text_stream import TextStream
from forerun.models.tokenizer import Tokenizer
from forerun.models.vocabulary import first_difference

__all__ = [
    "ChatTemplateError",
    "Checkpoint",
    "ModelConfig",
    "ModelError",
    "RopeConfig",
    "TextStream",
    "Tokenizer",
    "default_model_path",
    "first_difference",
    "load_tokenizer",
    "open_checkpoint",
    "shipped_head",
]
