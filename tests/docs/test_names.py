"""What the docs name in running text exists: links, commands, flags, and the client's own names."""

from __future__ import annotations

import argparse
import re
import urllib.parse
from dataclasses import fields
from pathlib import Path

import pytest

from forerun import errors
from forerun.cli.parser import COMMANDS, build_parser
from forerun.client import Chunk, ConnectionOptions, GenerateParams, Generation, GenerationStats
from forerun.client.request import SamplingParams
from tests.docs.pages import PAGES, ROOT, headings, inline, name

SDK = ROOT / "docs" / "sdk.md"
# Of programs that are not forerun's.
FOREIGN_FLAGS = {"--grid", "--strict", "--volumes"}


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings(page))
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for token in inline(page, "link_open"):
        link = urllib.parse.urlsplit(str(token.attrs["href"]))
        if link.scheme:
            continue
        target = (page.parent / link.path) if link.path else page
        assert target.exists(), link.geturl()
        if link.fragment:
            assert link.fragment in anchors(target), link.geturl()


def code_words(page: Path) -> set[str]:
    """What stands between backticks in a page."""
    return {token.content for token in inline(page, "code_inline")}


def test_commands_and_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for word in code_words(page):
            if found := re.match(r"(?:\.venv/bin/)?forerun ([a-z][a-z-]*)", word):
                assert found[1] in COMMANDS, f"{name(page)}: {word}"
            if found := re.match(r"make ([a-z-]+)", word):
                assert found[1] in targets, f"{name(page)}: {word}"


def flags(parser: argparse.ArgumentParser) -> set[str]:
    """Those of a parser and of its commands."""
    found = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= set().union(*map(flags, action.choices.values()))
    return found


def test_flags_exist() -> None:
    known = FOREIGN_FLAGS.union(*(flags(build_parser([command])) for command in COMMANDS))
    for page in PAGES:
        for word in code_words(page):
            for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", word):
                assert flag in known, f"{name(page)}: {word}"


def test_the_clients_guide_names_all_of_its_fields() -> None:
    named = {word.partition("(")[0] for word in code_words(SDK)}
    for shown in (Generation, Chunk, GenerationStats):
        assert {field.name for field in fields(shown)} <= named
    rates = {
        key
        for kind in GenerationStats.__mro__
        for key, value in vars(kind).items()
        if isinstance(value, property)
    }
    assert rates <= named
    own = GenerateParams.__annotations__.keys() - SamplingParams.__annotations__.keys()
    assert own | ConnectionOptions.__annotations__.keys() <= named
    assert {error.__name__ for error in errors.ERRORS} <= named
