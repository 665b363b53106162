"""Owns requests about a text: some of the prompts quote what the target has answered before.

What a user asks of a text that is given (a summary, an answer from documents, a translation)
repeats it, and is longer than what a small model types of its own accord: a head that has seen no
such document drafts badly there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.models import Tokenizer
from forerun.training.corpus import Document

MIN_DOCUMENTS = 32
MAX_PASSAGES = 3

# Whole requests, and those that end where the target goes on to type.
WHOLE = (
    "Summarize: {text}",
    "Summarize the following text in a few sentences.\n\n{text}",
    "{text}\n\nWhat is the main point of this text?",
    "Rewrite in simpler words: {text}",
    "Translate into French: {text}",
    "Correct the spelling and grammar of this text:\n\n{text}",
    "List the most important facts of the following text.\n\n{text}",
)
BEGUN = (
    "Read the passage and answer the question.\n\nPassage: {text}\n\nQuestion:",
    "Answer the question, using these documents.\n\n{text}\n\nQuestion:",
    "{text}\n\nUsing the text above,",
)


class Quoting:
    """Puts passages of earlier answers into requests.

    max_tokens: of all the passages of a request together.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens

    def request(
        self, documents: Sequence[Document], random: np.random.Generator
    ) -> tuple[str, bool] | None:
        """What a user has typed about passages of `documents`, and whether that is all of it; None
        while there are too few of them."""
        if len(documents) < MIN_DOCUMENTS:
            return None
        count = int(random.integers(1, MAX_PASSAGES + 1))
        chosen = random.choice(len(documents), count, replace=False)
        text = "\n\n".join(self._passage(documents[i], self._max_tokens // count) for i in chosen)
        whole = bool(random.random() < len(WHOLE) / len(WHOLE + BEGUN))
        forms = WHOLE if whole else BEGUN
        return forms[random.integers(len(forms))].format(text=text), whole

    def _passage(self, document: Document, max_tokens: int) -> str:
        said = document.answer[:max_tokens].tolist()
        ids = [token_id for token_id in said if not self._tokenizer.is_special(token_id)]
        return self._tokenizer.decode(ids).strip("\N{REPLACEMENT CHARACTER}").strip()
