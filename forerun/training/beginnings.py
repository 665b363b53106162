"""Owns how requests begin that the target types to an end: as those of a list, or of given ones.

Left alone, a small model asks for short explanations above all. A head that is trained for users
whose requests are known drafts better for them when it has seen what the target says to others of
their kind: a given request is cut somewhere, and the target types another end to it, as bootstraps
of instructions from a few seeds do (Self-Instruct, arXiv:2212.10560).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from forerun.models import Tokenizer

# First words of tasks that differ in how much of the prompt their answers repeat.
COMMON = (
    "Summarize the following article.\n\n",
    "Summarize this text in a few sentences:\n",
    "Give me a short summary of this news story:\n\n",
    "Translate this sentence into English: ",
    "Translate the following text from French to English:\n",
    "Translate into Spanish: ",
    "What does this German sentence mean in English?\n",
    "Read the passage and answer the question.\n\nPassage: ",
    "Use the documents below to answer the question.\n\n",
    "Context:\n",
    "Rewrite the following paragraph so that it is easier to read:\n",
    "Correct the mistakes in this text:\n",
    "Extract all names and dates from the following text:\n",
    "Classify each of the following ",
    "Who ",
    "When did ",
    "Where ",
    "How many ",
    "What is the name of ",
    "A train ",
    "A farmer has ",
    "Solve this problem step by step: ",
    "Calculate ",
    "If ",
    "Write a Python function that ",
    "Write a program ",
    "Write an email ",
    "Write a story about ",
    "Imagine you are ",
    "Compare ",
    "Explain ",
    "List ",
)

# Of a given request, at least: what kind of request it is should show.
MIN_SHARE = 0.25
# Of a long one, what is left of its begin; the rest is its end, where a question may be.
MIN_HEAD, MAX_HEAD = 0.3, 0.8


def opening(random: np.random.Generator, share: float) -> str:
    """First words of a common request, "" but for a `share` of the calls."""
    words = COMMON[random.integers(len(COMMON))] if random.random() < share else ""
    # A trailing space belongs to the next token.
    return words.rstrip(" ")


class Requests:
    """Begins of given requests, each at least one character. max_tokens: of a begin."""

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer, max_tokens: int) -> None:
        self._texts = texts
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens

    def begin(self, random: np.random.Generator) -> str:
        """The first words of one of them, or all; without the middle of one that is too long."""
        text = self._texts[int(random.integers(len(self._texts)))]
        ids = self._tokenizer.encode(text, add_special=False)
        if len(ids) > self._max_tokens:
            head = int(random.uniform(MIN_HEAD, MAX_HEAD) * self._max_tokens)
            ids = ids[:head] + ids[head - self._max_tokens :]
        words = re.findall(r"\s*\S+", self._tokenizer.decode(ids))
        count = round(random.uniform(MIN_SHARE, 1) * len(words))
        return "".join(words[: max(count, 1)])
