"""Keyword arguments to request messages, for the sync and the async client alike.

Owns which arguments there are. Leaves all judgement to the server: a sampling field goes out as it
was given, so that the server can refuse it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from google.protobuf.descriptor import FieldDescriptor

from forerun.errors import InvalidArgument
from forerun.v1 import generate_pb2

if TYPE_CHECKING:
    from typing_extensions import Unpack

Messages = Sequence[Mapping[str, str]]


class SamplingParams(TypedDict, total=False):
    """Sampling fields of other servers. The server refuses whatever is not greedy."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    n: int | None
    best_of: int | None
    seed: int | None
    logprobs: int | None
    grammar: str | None
    json_schema: str | None


class GenerateParams(SamplingParams, total=False):
    """Keyword arguments of `generate` and `complete`.

    messages: a conversation, [{"role": "user", "content": "Hi"}]; token_ids: a prompt as ids. One
      of them, or the prompt as text, is required.
    max_tokens: tokens to emit at most, 1 to 2**32 - 1; default up to the context limit.
    stop: a string or several; the text ends before the first that completes.
    stop_token_ids: ids that end the generation besides the model's own.
    ignore_eos: go on past the model's own end-of-sequence ids.
    plain: decode without drafts; the output is the same.
    traceparent: W3C trace context, version 00; the server drops anything else.
    """

    messages: Messages | None
    token_ids: Sequence[int] | None
    max_tokens: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    plain: bool | None
    traceparent: str | None


# What a number of a message can hold, and what less the server refuses.
_HIGHEST = {FieldDescriptor.CPPTYPE_UINT32: 2**32 - 1, FieldDescriptor.CPPTYPE_UINT64: 2**64 - 1}
_LOWEST = {"max_tokens": 1}
_PLAIN_FIELDS = ("max_tokens", "stop_token_ids", "ignore_eos", "plain", "traceparent")
_SAMPLING_FIELDS = frozenset(generate_pb2.Sampling.DESCRIPTOR.fields_by_name)


def generate_request(
    prompt: str | None, **params: Unpack[GenerateParams]
) -> generate_pb2.GenerateRequest:
    """The message of a generation. An argument that is None counts as not given.

    Raises TypeError for arguments that do not exist or exclude each other, and InvalidArgument for
    values that no message can hold.
    """
    given: dict[str, Any] = {name: value for name, value in params.items() if value is not None}
    request = generate_pb2.GenerateRequest()
    _set_prompt(request, prompt, given.pop("messages", None), given.pop("token_ids", None))
    stop = given.pop("stop", ())
    _merge(request, "stop", [stop] if isinstance(stop, str) else stop)
    for name in _PLAIN_FIELDS:
        if name in given:
            _merge(request, name, given.pop(name))
    for name, value in given.items():
        if name not in _SAMPLING_FIELDS:
            raise TypeError(f"generate() has no argument {name!r}")
        _merge(request.sampling, name, value)
    return request


def tokenize_request(text: str | None, messages: Messages | None) -> generate_pb2.TokenizeRequest:
    """The message that asks for the ids of a text or of a conversation."""
    _require_one(text=text, messages=messages)
    if messages is not None:
        return generate_pb2.TokenizeRequest(conversation=_conversation(messages))
    request = generate_pb2.TokenizeRequest()
    _merge(request, "text", text)
    return request


def detokenize_request(
    token_ids: Sequence[int], skip_special_tokens: bool
) -> generate_pb2.DetokenizeRequest:
    """The message that asks for the text of ids."""
    request = generate_pb2.DetokenizeRequest(skip_special_tokens=skip_special_tokens)
    _merge(request, "token_ids", token_ids)
    return request


def _set_prompt(
    request: generate_pb2.GenerateRequest,
    prompt: str | None,
    messages: Messages | None,
    token_ids: Sequence[int] | None,
) -> None:
    _require_one(prompt=prompt, messages=messages, token_ids=token_ids)
    if prompt is not None:
        _merge(request, "text", prompt)
    elif messages is not None:
        request.conversation.CopyFrom(_conversation(messages))
    elif token_ids is not None:
        request.token_ids.SetInParent()  # an empty prompt is the server's to refuse
        _merge(request.token_ids, "ids", token_ids, field="token_ids")


def _require_one(**choices: Any) -> None:
    given = [name for name, value in choices.items() if value is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise TypeError(f"give one of {', '.join(choices)}; found {found}")


def _conversation(messages: Messages) -> generate_pb2.Conversation:
    conversation = generate_pb2.Conversation()
    for index, message in enumerate(messages):
        if set(message) != {"role", "content"}:
            raise InvalidArgument.for_field(
                f"messages[{index}]", f"has {sorted(message)}; it must have role and content alone"
            )
        conversation.messages.add()
        for name in ("role", "content"):
            _merge(conversation.messages[index], name, message[name], f"messages[{index}].{name}")
    return conversation


def _merge(message: Any, name: str, value: Any, field: str | None = None) -> None:
    try:
        message.MergeFrom(type(message)(**{name: value}))
    except ValueError as error:
        highest = _HIGHEST.get(message.DESCRIPTOR.fields_by_name[name].cpp_type)
        problem = str(error)
        if highest is not None and isinstance(value, int):
            problem = f"is {value}; it must be in {_LOWEST.get(name, 0)}..{highest}"
        raise InvalidArgument.for_field(field or name, problem) from error
