"""What clients may ask, and what is wrong with what they asked.

Owns the checks of requests: every error names the field. Knows nothing of sessions or streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draft_server.session import Generation
from forerun.errors import InvalidArgument
from forerun.v1 import generate_pb2, verify_pb2

ROLES = ("system", "user", "assistant")
# Every character of the output is held against every stop string.
MAX_STOPS = 64

# Of a text that is tokenized for its own sake: about a second of one of the few threads for that.
MAX_TOKENIZE_BYTES = 1 << 20

# The values that change nothing for greedy decoding, by the field of Sampling.
GREEDY_VALUES: dict[str, tuple[float, ...]] = {
    "temperature": (0.0,),
    "top_p": (1.0,),
    "top_k": (0, 1),
    "min_p": (0.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "repetition_penalty": (1.0,),
    "n": (1,),
    "best_of": (1,),
    "logprobs": (),
}
EMPTY_FIELDS = ("logit_bias", "grammar", "json_schema")


class PromptTokenizer(Protocol):
    """What requests need of a tokenizer (forerun.models.Tokenizer)."""

    @property
    def has_chat_template(self) -> bool: ...

    def fewest_tokens(self, text: str) -> int: ...
    def encode(self, text: str, add_special: bool = True) -> list[int]: ...
    def apply_chat_template(self, messages: Sequence[dict[str, str]]) -> str: ...


def read_generation(
    request: generate_pb2.GenerateRequest,
    tokenizer: PromptTokenizer,
    target: verify_pb2.GetTargetInfoResponse,
    deadline: float | None,
) -> Generation:
    """The checked request, its prompt as ids. Tokenizing takes time: not for the event loop.

    Raises InvalidArgument.
    """
    _check_sampling(request.sampling)
    _check_stops(request.stop)
    _check_ids("stop_token_ids", request.stop_token_ids, target.vocab_size)
    if request.HasField("max_tokens") and request.max_tokens == 0:
        raise InvalidArgument.for_field("max_tokens", "is 0; it must be in 1..4294967295")
    limits = target.limits
    longest = min(limits.max_prompt_tokens, limits.max_context_tokens - 1)
    field, prompt_ids = _read_prompt(request, tokenizer, target.vocab_size, longest)
    _check_length(field, len(prompt_ids), longest)
    room = limits.max_context_tokens - len(prompt_ids)
    return Generation(
        prompt_ids=prompt_ids,
        max_tokens=min(request.max_tokens, room) if request.HasField("max_tokens") else room,
        stop_token_ids=tuple(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
        plain=request.plain,
        deadline=deadline,
    )


def tokenize(request: generate_pb2.TokenizeRequest, tokenizer: PromptTokenizer) -> list[int]:
    """The ids of what a client wants to see tokenized. Takes time: not for the event loop.

    Raises InvalidArgument.
    """
    kind = request.WhichOneof("input")
    if kind is None:
        raise InvalidArgument.for_field("input", "is missing; send text or conversation")
    size = request.ByteSize()
    if size > MAX_TOKENIZE_BYTES:
        raise InvalidArgument.for_field(
            kind, f"has {size} bytes; at most {MAX_TOKENIZE_BYTES} are tokenized in one call"
        )
    if kind == "conversation":
        return encode_conversation(request.conversation, tokenizer)
    return encode_text("text", request.text, tokenizer)


def encode_text(
    field: str, text: str, tokenizer: PromptTokenizer, longest: int | None = None
) -> list[int]:
    """longest: tokens that there is room for; a text that cannot fit is refused unread."""
    if not text:
        raise InvalidArgument.for_field(field, "is empty", reason="EMPTY_PROMPT")
    _check_length(field, tokenizer.fewest_tokens(text), longest, "at least ")
    return tokenizer.encode(text)


def encode_conversation(
    conversation: generate_pb2.Conversation, tokenizer: PromptTokenizer, longest: int | None = None
) -> list[int]:
    """The prompt of a conversation by the model's template; longest as for `encode_text`. Raises
    InvalidArgument."""
    if not conversation.messages:
        raise InvalidArgument.for_field(
            "conversation.messages", "is empty; send at least one", reason="EMPTY_PROMPT"
        )
    for index, message in enumerate(conversation.messages):
        if message.role not in ROLES:
            raise InvalidArgument.for_field(
                f"conversation.messages[{index}].role",
                f"is {message.role!r}; it must be one of {', '.join(ROLES)}",
            )
    if not tokenizer.has_chat_template:
        raise InvalidArgument.for_field(
            "conversation", "cannot be used: the model has no chat template; send text"
        )
    messages = [{"role": m.role, "content": m.content} for m in conversation.messages]
    try:
        text = tokenizer.apply_chat_template(messages)
    except ValueError as error:  # what the template itself refuses, such as the order of roles
        raise InvalidArgument.for_field("conversation.messages", str(error)) from error
    _check_length("conversation.messages", tokenizer.fewest_tokens(text), longest, "at least ")
    # The template writes BOS itself where the model wants it.
    return tokenizer.encode(text, add_special=False)


def _read_prompt(
    request: generate_pb2.GenerateRequest,
    tokenizer: PromptTokenizer,
    vocab_size: int,
    longest: int,
) -> tuple[str, Sequence[int]]:
    """The field that holds the prompt, and its ids."""
    kind = request.WhichOneof("prompt")
    if kind is None:
        raise InvalidArgument.for_field(
            "prompt",
            "is missing; send text, conversation or token_ids",
            reason="EMPTY_PROMPT",
        )
    field: str = kind
    ids: Sequence[int]
    if kind == "text":
        ids = encode_text(field, request.text, tokenizer, longest)
    elif kind == "conversation":
        ids = encode_conversation(request.conversation, tokenizer, longest)
        field = "conversation.messages"
    else:
        field = "token_ids.ids"
        ids = list(request.token_ids.ids)
        _check_length(field, len(ids), longest)
        _check_ids(field, ids, vocab_size)
    if not ids:
        raise InvalidArgument.for_field(field, "has no tokens", reason="EMPTY_PROMPT")
    return field, ids


def _check_length(field: str, tokens: int, longest: int | None, least: str = "") -> None:
    if longest is not None and tokens > longest:
        raise InvalidArgument.for_field(
            field,
            f"has {least}{tokens} tokens; the target takes prompts of at most {longest}",
            reason="PROMPT_TOO_LONG",
        )


def _check_ids(field: str, ids: Sequence[int], vocab_size: int) -> None:
    for index, token_id in enumerate(ids):
        if token_id >= vocab_size:
            raise InvalidArgument.for_field(
                f"{field}[{index}]",
                f"is {token_id}; a token id must be in 0..{vocab_size - 1}",
                reason="TOKEN_OUT_OF_RANGE",
            )


def _check_stops(stops: Sequence[str]) -> None:
    if len(stops) > MAX_STOPS:
        raise InvalidArgument.for_field("stop", f"has {len(stops)} strings; at most {MAX_STOPS}")
    for index, stop in enumerate(stops):
        if not stop:
            raise InvalidArgument.for_field(f"stop[{index}]", "is empty; every text ends there")


def _check_sampling(sampling: generate_pb2.Sampling) -> None:
    for name, allowed in GREEDY_VALUES.items():
        if sampling.HasField(name) and getattr(sampling, name) not in allowed:  # type: ignore[arg-type]
            served = " or ".join(f"{value:g}" for value in allowed) or "unset"
            raise _unsupported(name, f"is {getattr(sampling, name):g}", served)
    for name in EMPTY_FIELDS:
        if getattr(sampling, name):
            raise _unsupported(name, "is set", "empty")


def _unsupported(name: str, found: str, served: str) -> InvalidArgument:
    return InvalidArgument.for_field(
        f"sampling.{name}",
        f"{found}; decoding is greedy, which serves {served} alone",
        reason="UNSUPPORTED_SAMPLING",
    )
