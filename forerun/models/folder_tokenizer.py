"""Owns reading a tokenizer from a Hugging Face folder: tokenizer.json and what lies beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from forerun.models.config import eos_token_ids
from forerun.models.errors import ModelError
from forerun.models.fields import Fields
from forerun.models.json_object import read_json_object
from forerun.models.tokenizer import Tokenizer

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


def load_folder_tokenizer(directory: Path) -> Tokenizer:
    """Read tokenizer.json with the chat template and the end-of-generation ids of its folder.

    Raises ModelError if tokenizer.json is absent, damaged or of a kind forerun does not decode.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ModelError(
            f"{path} is missing; copy it from where the checkpoint came from "
            "(tokenizer.model alone is not read)"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ModelError(f"{path} cannot be read by the tokenizers library: {error}") from error
    # A stored setting that would cut or fill prompts.
    backend.no_truncation()
    backend.no_padding()
    settings = read_json_object(directory / "tokenizer_config.json", optional=True)
    special_tokens = _special_tokens(
        read_json_object(directory / "special_tokens_map.json", optional=True), settings
    )
    model = Fields(
        read_json_object(directory / "config.json", optional=True), f"{directory}/config.json"
    )
    generation = Fields(
        read_json_object(directory / "generation_config.json", optional=True),
        f"{directory}/generation_config.json",
    )
    eos_ids = list(eos_token_ids(model, generation))
    end_of_text = backend.token_to_id(special_tokens.get("eos_token", ""))
    if end_of_text is not None:
        eos_ids.append(end_of_text)
    return Tokenizer(
        backend,
        eos_token_ids=eos_ids,
        chat_template=_chat_template(directory, settings),
        special_tokens=special_tokens,
    )


def _special_tokens(*tables: Mapping[str, Any]) -> dict[str, str]:
    """Return name → text; a token may be given as text or as an object with its content."""
    found: dict[str, str] = {}
    for table in tables:
        for name in _SPECIAL_NAMES:
            token = table.get(name)
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                found[name] = text
    return found


def _chat_template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    """Return the template from its own file or from tokenizer_config.json.

    Of a list of named templates the one named `default` is taken.
    """
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if template is None:
        legacy = read_json_object(directory / "chat_template.json", optional=True)
        template = legacy.get("chat_template")
    if isinstance(template, list):
        for entry in template:
            if not isinstance(entry, dict):
                raise ModelError(
                    f"{directory}: chat_template lists {entry!r:.200}; expected an object with "
                    "name and template"
                )
        named = [entry.get("template") for entry in template if entry.get("name") == "default"]
        template = named[0] if named else None
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{directory}: chat_template is a {type(template).__name__}, not text")
    return template
