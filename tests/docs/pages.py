"""The pages of the documentation as Markdown reads them: their code blocks, headings, links, words.

Owns which files are pages. Knows nothing of what a block means.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parent.parent.parent
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)
_MARKDOWN = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code. page: below ROOT, such as "docs/sdk.md". heading: the one it stands under.
    line: its first line of code, from 1. language: the word behind the fence, "" where there is
    none; None for a block that is only indented."""

    page: str
    heading: str
    line: int
    language: str | None
    text: str

    @property
    def place(self) -> str:
        """For a person."""
        return f"{self.page}:{self.line}"


def name(page: Path) -> str:
    """A page's path below ROOT."""
    return page.relative_to(ROOT).as_posix()


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    """All code blocks of a page, in order."""
    found = []
    heading = ""
    tokens = tokens_of(page)
    for before, token in pairwise(tokens):
        if before.type == "heading_open":
            heading = token.content
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            fenced = token.type == "fence"
            language = token.info.strip() if fenced else None
            line = token.map[0] + 1 + fenced
            found.append(Block(name(page), heading, line, language, token.content))
    return tuple(found)


def all_blocks(language: str | None = None) -> Iterator[Block]:
    """The code blocks of all pages; of one language where it is given."""
    for page in PAGES:
        for block in blocks(page):
            if language is None or block.language == language:
                yield block


def headings(page: Path) -> list[str]:
    """The headings of a page, without their marks."""
    tokens = tokens_of(page)
    return [token.content for before, token in pairwise(tokens) if before.type == "heading_open"]


def inline(page: Path, kind: str) -> list[Token]:
    """The inline tokens of a page of one type of markdown-it's, such as "link_open"."""
    return [
        child for token in tokens_of(page) for child in token.children or () if child.type == kind
    ]


@cache
def tokens_of(page: Path) -> list[Token]:
    """A page as markdown-it reads it."""
    return _MARKDOWN.parse(page.read_text(encoding="utf-8"))
