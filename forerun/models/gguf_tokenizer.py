"""Owns rebuilding a tokenizer from GGUF metadata with the tokenizers library.

`tokenizer.ggml.pre` names the way text is split before merging. Only the names whose splitting is
known to be the original tokenizer's are accepted: a wrong split gives other ids without an error.
SentencePiece vocabularies (model `llama`) are refused, because the metadata do not say whether the
original puts a space after every special token or only at the beginning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from gguf.constants import TokenType
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers import (
    Tokenizer as Backend,
)

from forerun.models.errors import ModelError
from forerun.models.fields import Fields
from forerun.models.gguf_config import gguf_eos_token_ids
from forerun.models.tokenizer import Tokenizer

_ADDED = {int(TokenType.CONTROL), int(TokenType.USER_DEFINED)}
_SPECIAL_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",
}
# Contractions, words, numbers, punctuation and white space, as GPT-4's splitting has them; the
# length of a run of digits is what differs from one model to another.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(digits: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS % digits), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _pre_tokenizer(pre: str) -> pre_tokenizers.PreTokenizer | None:
    if pre == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "smollm":
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    return {"llama-bpe": _split("{1,3}"), "qwen2": _split("")}.get(pre)


def tokenizer_from_gguf(metadata: Mapping[str, Any], source: str) -> Tokenizer:
    """Rebuild the tokenizer that `metadata` describes; `source` names the file in errors.

    Trailing entries of type UNUSED, which pad the vocabulary to the embedding, are left out.
    Raises ModelError for a tokenizer model or splitting that is not known exactly.
    """
    fields = Fields(metadata, source)
    model = fields.text("tokenizer.ggml.model")
    if model != "gpt2":
        raise _refusal(fields, "tokenizer.ggml.model", model)
    pre = fields.text("tokenizer.ggml.pre", "missing")
    pre_tokenizer = _pre_tokenizer(pre)
    if pre_tokenizer is None:
        raise _refusal(fields, "tokenizer.ggml.pre", pre)
    tokens, types = _entries(fields)
    merges = fields.table.get("tokenizer.ggml.merges") or []
    # Without merges an entry of several characters could never be made.
    if not isinstance(merges, list) or (not merges and _longest_normal(tokens, types) > 1):
        raise _refusal(fields, "tokenizer.ggml.merges", merges)
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    pairs = [_pair(fields, merge) for merge in merges]
    try:
        # Llama 3 takes a piece that is an entry whole, before any merging.
        backend = Backend(models.BPE(vocab, pairs, ignore_merges=pre == "llama-bpe"))
    except Exception as error:  # the library raises plain Exception
        raise ModelError(f"{source}: the vocabulary and its merges disagree: {error}") from error
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    special_tokens = _special_tokens(fields, tokens)
    if fields.flag("tokenizer.ggml.add_bos_token", pre == "llama-bpe"):
        bos = special_tokens.get("bos_token")
        if bos is None:
            raise fields.error("tokenizer.ggml.bos_token_id", None, "an entry, to be added")
        backend.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"],
            pair=[bos, "$A", bos, "$B"],
            special_tokens=[(bos, tokens.index(bos))],
        )
    backend.add_tokens(
        [
            AddedToken(token, normalized=False, special=kind == TokenType.CONTROL)
            for token, kind in zip(tokens, types, strict=True)
            if kind in _ADDED
        ]
    )
    return Tokenizer(
        backend,
        eos_token_ids=gguf_eos_token_ids(fields),
        chat_template=_chat_template(fields),
        special_tokens=special_tokens,
    )


def _special_tokens(fields: Fields, tokens: list[str]) -> dict[str, str]:
    return {
        name: tokens[token_id]
        for name, key in _SPECIAL_KEYS.items()
        for token_id in fields.token_ids(f"tokenizer.ggml.{key}")
        if token_id < len(tokens)
    }


def _entries(fields: Fields) -> tuple[list[str], list[int]]:
    tokens = fields.table.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise fields.error("tokenizer.ggml.tokens", type(tokens).__name__, "a list of strings")
    types = fields.table.get("tokenizer.ggml.token_type") or [TokenType.NORMAL] * len(tokens)
    if not isinstance(types, list) or len(types) != len(tokens):
        raise fields.error("tokenizer.ggml.token_type", len(types), f"{len(tokens)} types")
    size = len(tokens)
    while size and types[size - 1] == TokenType.UNUSED:
        size -= 1
    tokens, types = tokens[:size], types[:size]
    if len(set(tokens)) != size:
        [(twice, _)] = Counter(tokens).most_common(1)
        raise fields.error("tokenizer.ggml.tokens", twice, "each entry once")
    return tokens, types


def _longest_normal(tokens: list[str], types: list[int]) -> int:
    pairs = zip(tokens, types, strict=True)
    return max((len(token) for token, kind in pairs if kind == TokenType.NORMAL), default=0)


def _pair(fields: Fields, merge: object) -> tuple[str, str]:
    left, separator, right = merge.partition(" ") if isinstance(merge, str) else ("", "", "")
    if not separator:
        raise fields.error("tokenizer.ggml.merges", merge, "two entries with a space between them")
    return left, right


def _chat_template(fields: Fields) -> str | None:
    key = "tokenizer.chat_template"
    return fields.text(key) if fields.has(key) else None


def _refusal(fields: Fields, key: str, value: object) -> ModelError:
    return ModelError(
        f"{fields.source}: {key} is {value!r:.80}, from which the tokenizer cannot be rebuilt "
        "exactly; put the original model's tokenizer.json beside the .gguf file"
    )
