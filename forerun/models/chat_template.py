"""Owns rendering of chat messages to text by a model's own Jinja template, in a sandbox.

The environment offers what Transformers' offers (`apply_chat_template`), since templates are
written against it: trimmed blocks, loop controls, `raise_exception`, `strftime_now`, a `tojson`
that escapes no HTML, and `{% generation %}` blocks, which only mark a region for training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from forerun.models.errors import ModelError


class ChatTemplateError(ModelError):
    """A template that cannot be compiled, or messages that it refuses or cannot render."""


class _GenerationBlock(Extension):
    tags = {"generation"}  # noqa: RUF012  (Jinja declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class ChatTemplate:
    """A compiled template. special_tokens: name → text (`bos_token`, ...), visible in it.

    Raises ChatTemplateError if the template is not valid Jinja.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template is not valid: {error}") from error

    def render(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True
    ) -> str:
        """Return the text of a conversation, ending where the assistant's answer begins.

        messages: each with `role` and `content`. Raises ChatTemplateError where the template
        refuses them (unknown role, wrong order) or tries what the sandbox forbids.
        """
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        # A template is a program of someone else's: any failure in it is about these messages.
        except Exception as error:
            raise ChatTemplateError(f"the chat template refused the messages: {error}") from error
