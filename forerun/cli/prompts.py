"""Owns what a prompt is on the command line, and how a file of prompts is read.

A file holds one JSON object a line with exactly one of `prompt` (text), `messages` (a list of
objects with `role` and `content`) and `prompt_token_ids`. Its other keys are carried through to the
output. Knows nothing of servers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from forerun.cli.errors import CommandError
from forerun.cli.results import OUTPUT_KEYS

if TYPE_CHECKING:
    from forerun.models import Tokenizer

PROMPT_KEYS = ("prompt", "messages", "prompt_token_ids")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: exactly one of text, messages and token_ids is set.

    `carried` are the keys of its line that the output repeats; `origin` is where it came from, for
    messages of error ("prompts.jsonl:3").
    """

    origin: str
    text: str | None = None
    messages: tuple[dict[str, str], ...] | None = None
    token_ids: tuple[int, ...] | None = None
    carried: dict[str, Any] = field(default_factory=dict)


def read_prompts(lines: Iterable[str], name: str) -> list[Prompt]:
    """Reads a file of prompts; blank lines are passed over.

    Raises CommandError that names the file and the line, and what is wrong with it.
    """
    prompts = [
        _parse(line, f"{name}:{number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not prompts:
        raise CommandError(f"{name} holds no prompts; write one JSON object a line")
    return prompts


def encode_prompt(prompt: Prompt, tokenizer: Tokenizer) -> list[int]:
    """Token ids of a prompt; text goes through the chat template where the model has one."""
    if prompt.token_ids is not None:
        return list(prompt.token_ids)
    if prompt.messages is not None:
        return tokenizer.encode_chat(prompt.messages)
    text = prompt.text or ""
    if tokenizer.has_chat_template:
        return tokenizer.encode_chat([{"role": "user", "content": text}])
    return tokenizer.encode(text)


def is_text(text: str) -> bool:
    """Whether UTF-8 can hold `text`: Python reads bytes that are not UTF-8, and JSON's lone
    surrogates, into strings that it cannot write."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parse(line: str, origin: str) -> Prompt:
    def refuse(problem: str) -> NoReturn:
        raise CommandError(f"{origin}: {problem}")

    try:
        entry = json.loads(line, parse_constant=_refuse_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        refuse(f"not JSON: {error.msg} at column {error.colno}")
    except RecursionError:
        refuse("not JSON that can be read: it is nested too deeply")
    except ValueError as error:  # NaN, 1e999, an integer of thousands of digits
        refuse(f"not JSON that can be read: {error}")
    if not is_text(json.dumps(entry, ensure_ascii=False)):
        refuse("holds half of a surrogate pair, which no text does")
    if not isinstance(entry, dict):
        refuse(f"a JSON object is expected, not {_shorten(entry)}")
    given = [key for key in PROMPT_KEYS if key in entry]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        refuse(f"exactly one of {', '.join(PROMPT_KEYS)} is expected; found {found}")
    clashing = sorted(OUTPUT_KEYS & entry.keys())
    if clashing:
        refuse(f"the key {clashing[0]!r} is one that the output adds; rename it")
    carried = {key: value for key, value in entry.items() if key not in PROMPT_KEYS}
    value = entry[given[0]]
    if given[0] == "prompt":
        if not isinstance(value, str) or not value:
            refuse(f"prompt: a text that is not empty is expected, not {_shorten(value)}")
        return Prompt(origin, text=value, carried=carried)
    if given[0] == "messages":
        if not isinstance(value, list) or not value or not all(map(_is_message, value)):
            refuse(
                "messages: a list of objects with the texts role and content is expected, "
                f"not {_shorten(value)}"
            )
        return Prompt(origin, messages=tuple(value), carried=carried)
    if not isinstance(value, list) or not value or not all(map(_is_token_id, value)):
        refuse(f"prompt_token_ids: a list of ids from 0 up is expected, not {_shorten(value)}")
    return Prompt(origin, token_ids=tuple(value), carried=carried)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    """Python reads 1e999 as infinity, which JSON cannot write."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:60]!r} is beyond what a double holds")
    return number


def _is_message(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and value.keys() == {"role", "content"}
        and all(isinstance(part, str) for part in value.values())
    )


def _is_token_id(value: object) -> bool:
    # JSON's true is an int to Python.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32


def _shorten(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
