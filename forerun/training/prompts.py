"""Owns where the prompts of the training data come from; knows nothing of answers.

Self-made prompts follow Magpie (arXiv:2406.08464): the chat template is cut where a user would
begin to type, and the target, which has learned to continue any text, types. A part of the prompts
gets its first words (beginnings.py), a part is about what it has said before (quoting.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from forerun.models import ModelError, Tokenizer
from forerun.training.quoting import MAX_PASSAGES

MIN_CHARACTERS = 8
_MARK = "\N{WHITE SQUARE}user\N{WHITE SQUARE}"


@dataclass(frozen=True, slots=True)
class PromptSettings:
    """How prompts are sampled.

    max_tokens: of what the user types. temperature, top_k: of the draws. quotes: share of the
    prompts that are about passages from earlier answers; openings: share of the others that begin
    as common requests do, unless there are given ones, as which all of them begin; each 0 to 1.
    quoted_tokens: at most, of an earlier answer or a given request.
    """

    max_tokens: int = 96
    temperature: float = 1.0
    top_k: int = 64
    openings: float = 0.5
    quotes: float = 0.25
    quoted_tokens: int = 360

    def __post_init__(self) -> None:
        for name in ("openings", "quotes"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 to 1")
        if self.quoted_tokens < MAX_PASSAGES:
            raise ValueError(
                f"quoted_tokens is {self.quoted_tokens}; it must be at least {MAX_PASSAGES}"
            )
        if self.temperature <= 0:
            raise ValueError(f"temperature is {self.temperature}; prompts are drawn, so above 0")


class UserTurn:
    """The chat template around what a user types.

    Raises ModelError for a model without a chat template, or with one that changes what is typed.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        rendered = tokenizer.apply_chat_template([{"role": "user", "content": _MARK}])
        self._before, found, _ = rendered.partition(_MARK)
        if not found:
            raise ModelError(
                "the chat template does not show the user's text as it is; give prompts with --data"
            )
        self._tokenizer = tokenizer

    def up_to(self, words: str) -> list[int]:
        """The ids up to where the target goes on to type after `words`."""
        return self._tokenizer.encode(self._before + words, add_special=False)

    def prompt(self, words: str, typed: list[int]) -> list[int] | None:
        """The ids of the whole prompt, once the target has typed; None if that is no request."""
        if any(self._tokenizer.is_special(token_id) for token_id in typed):
            return None
        # A turn that was cut off may end within a character.
        text = (words + self._tokenizer.decode(typed)).rstrip("\N{REPLACEMENT CHARACTER}").strip()
        if len(text) < MIN_CHARACTERS:
            return None
        return self._tokenizer.encode_chat([{"role": "user", "content": text}])
