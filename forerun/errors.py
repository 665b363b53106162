"""The one table of errors that both servers and the client share.

Owns the classes, and their way to and from `google.rpc.Status` (AIP-193: an ErrorInfo with a stable
reason in every error, BadRequest for fields, RetryInfo where trying again later may help). Knows
nothing of sessions or transports: a `grpc.RpcError` is only read, never raised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc.code_pb2 import Code
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

if TYPE_CHECKING:
    import grpc
    from typing_extensions import Self

DOMAIN = "forerun"
STATUS_DETAILS_KEY = "grpc-status-details-bin"

# A status travels twice in HTTP/2 trailers, where 8 KiB in all is the usual limit.
MAX_TEXT = 400
MAX_FIELDS = 4


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """A field path such as "tree.parents[3]", and what is wrong with its value."""

    field: str
    description: str


class ForerunError(Exception):
    """An error with a gRPC code name, a stable reason and what a program needs to react.

    `code` is a name of `grpc.StatusCode`; `reason` is UPPER_SNAKE, one of `reasons` unless a newer
    peer sent it; `fields` are the request fields at fault; `retry_after_ms` is set where the same
    request may succeed later; `metadata` are short strings for programs. str() is the message.
    """

    code: str = "UNKNOWN"
    reasons: ClassVar[tuple[str, ...]] = ("UNKNOWN",)

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        fields: Sequence[FieldViolation] = (),
        retry_after_ms: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.reasons[0]
        self.fields = list(fields)
        self.retry_after_ms = retry_after_ms
        self.metadata = dict(metadata or {})


class InvalidArgument(ForerunError):
    """The request is wrong and will stay wrong; `fields` names the places."""

    code = "INVALID_ARGUMENT"
    reasons: ClassVar[tuple[str, ...]] = (
        "INVALID_FIELD",
        "EMPTY_PROMPT",
        "TOKEN_OUT_OF_RANGE",
        "PROMPT_TOO_LONG",
        "UNSUPPORTED_SAMPLING",
    )

    @classmethod
    def for_field(cls, field: str, description: str, *, reason: str | None = None) -> Self:
        """The error of one field; its message is "field: description"."""
        violation = FieldViolation(field, description)
        return cls(f"{field}: {description}", reason=reason, fields=[violation])


class InvalidTree(InvalidArgument):
    """A token tree breaks a rule of the encoding (docs/protocol.md)."""

    reasons = ("INVALID_TREE",)


class SessionNotFound(ForerunError):
    """No such session on this stream."""

    code = "NOT_FOUND"
    reasons = ("SESSION_NOT_FOUND",)


class ModelMismatch(ForerunError):
    """Two servers, or a target and a draft model, do not share a vocabulary."""

    code = "FAILED_PRECONDITION"
    reasons = ("VOCABULARY_MISMATCH",)


class Overloaded(ForerunError):
    """No room now; `retry_after_ms` says when to try again."""

    code = "RESOURCE_EXHAUSTED"
    reasons = ("OVERLOADED", "KV_FULL", "TOO_MANY_SESSIONS")


class MessageTooLarge(ForerunError):
    """A message exceeds a size limit; trying again does not help. metadata: limit_bytes."""

    code = "RESOURCE_EXHAUSTED"
    reasons = ("MESSAGE_TOO_LARGE",)


class Unavailable(ForerunError):
    """The server cannot be reached, is stopping, or has lost its verify server."""

    code = "UNAVAILABLE"
    reasons = ("UNREACHABLE", "DRAINING", "VERIFIER_UNREACHABLE", "TARGET_CHANGED")


class DeadlineExceeded(ForerunError):
    """The time that the caller gave ran out."""

    code = "DEADLINE_EXCEEDED"
    reasons = ("DEADLINE_EXCEEDED",)


class Cancelled(ForerunError):
    """The caller cancelled."""

    code = "CANCELLED"
    reasons = ("CANCELLED",)


class SessionLost(ForerunError):
    """A session broke off on the server and could not be reopened."""

    code = "ABORTED"
    reasons = ("SESSION_LOST",)


class Unauthenticated(ForerunError):
    """The token is missing or wrong."""

    code = "UNAUTHENTICATED"
    reasons = ("UNAUTHENTICATED",)


class Internal(ForerunError):
    """A defect of the server; its log tells more."""

    code = "INTERNAL"
    reasons = ("INTERNAL",)


ERRORS: tuple[type[ForerunError], ...] = (
    InvalidArgument,
    InvalidTree,
    SessionNotFound,
    ModelMismatch,
    Overloaded,
    MessageTooLarge,
    Unavailable,
    DeadlineExceeded,
    Cancelled,
    SessionLost,
    Unauthenticated,
    Internal,
)
_BY_REASON = {reason: error for error in ERRORS for reason in error.reasons}
# Of a code without one of our reasons. NOT_FOUND, ABORTED and FAILED_PRECONDITION from a proxy say
# nothing about a session or a model.
_BY_CODE: dict[str, type[ForerunError]] = {
    error.code: error
    for error in (
        InvalidArgument,
        Overloaded,
        Unavailable,
        DeadlineExceeded,
        Cancelled,
        Unauthenticated,
        Internal,
    )
}


def to_status(error: BaseException) -> Status:
    """The status that tells a peer about `error`.

    Texts are cut to MAX_TEXT characters and fields to MAX_FIELDS, so that it fits in trailers.
    Whatever is not a ForerunError becomes INTERNAL without its text: log it where it is caught.
    """
    if not isinstance(error, ForerunError):
        error = Internal("internal error; the log of the server tells more")
    status = Status(code=Code.Value(error.code), message=_cut(error.message))
    metadata = {key: _cut(value) for key, value in error.metadata.items()}
    info = ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata)
    status.details.add().Pack(info)
    if error.fields:
        bad_request = BadRequest()
        for violation in error.fields[:MAX_FIELDS]:
            bad_request.field_violations.add(
                field=_cut(violation.field), description=_cut(violation.description)
            )
        status.details.add().Pack(bad_request)
    if error.retry_after_ms is not None:
        delay = Duration()
        delay.FromMilliseconds(error.retry_after_ms)
        status.details.add().Pack(RetryInfo(retry_delay=delay))
    return status


def from_status(status: Status) -> ForerunError:
    """The error that a status tells of: by the reason, else (another domain, a newer peer) by the
    code."""
    info, bad_request, retry = ErrorInfo(), BadRequest(), RetryInfo()
    for detail in status.details:
        for message in (info, bad_request, retry):
            with suppress(DecodeError):
                detail.Unpack(message)
    delay = retry.retry_delay if retry.HasField("retry_delay") else None
    known = info.domain == DOMAIN
    code = Code.Name(status.code) if status.code in Code.values() else "UNKNOWN"
    by_code = _BY_CODE.get(code, ForerunError)
    by_reason = _BY_REASON.get(info.reason, by_code) if known else by_code
    kind = by_reason if by_reason.code == code else by_code
    error = kind(
        status.message,
        reason=info.reason if known else None,
        fields=[FieldViolation(v.field, v.description) for v in bad_request.field_violations],
        retry_after_ms=delay.ToMilliseconds() if delay else None,
        metadata=info.metadata,
    )
    error.code = code
    return error


def from_rpc_error(error: grpc.RpcError) -> ForerunError:
    """The error that a failed call (sync or aio) tells of. `error` becomes its __cause__."""
    call: Any = error  # grpc raises objects that are an RpcError and a Call
    status = _attached_status(call)
    if status is None:
        status = Status(code=call.code().value[0], message=call.details() or call.code().name)
    converted = _message_too_large(status) or from_status(status)
    converted.__cause__ = error
    return converted


def _attached_status(call: Any) -> Status | None:
    for key, value in call.trailing_metadata() or ():
        if key == STATUS_DETAILS_KEY:
            try:
                return Status.FromString(value)
            except DecodeError:
                return None
    return None


def _message_too_large(status: Status) -> MessageTooLarge | None:
    """gRPC's own words for a message beyond a limit, which carry no details."""
    sizes = re.search(r"larger than max \((\d+) vs\. (\d+)\)", status.message)
    if status.code != Code.RESOURCE_EXHAUSTED or not sizes:
        return None
    size, limit = sizes.groups()
    return MessageTooLarge(
        f"the message has {size} bytes and the limit is {limit} bytes; make it smaller",
        metadata={"limit_bytes": limit, "size_bytes": size},
    )


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
