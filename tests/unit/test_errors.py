"""Errors keep their class, code, reason, fields and retry on the way through a status."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest
from google.rpc.code_pb2 import Code
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from forerun import errors
from forerun.errors import FieldViolation, ForerunError, from_status, to_status

EVERY_REASON = [(kind, reason) for kind in errors.ERRORS for reason in kind.reasons]


@pytest.mark.parametrize(("kind", "reason"), EVERY_REASON)
def test_every_reason_survives(kind: type[ForerunError], reason: str) -> None:
    sent = kind(
        "what, which value, what to do",
        reason=reason,
        fields=[FieldViolation("tree.parents[3]", "is 7; a parent must be in 0..2")],
        retry_after_ms=1500,
        metadata={"limit_bytes": "10"},
    )
    received = from_status(Status.FromString(to_status(sent).SerializeToString()))
    assert type(received) is kind
    assert vars(received) == {**vars(sent), "code": kind.code}


def test_codes_and_reasons_are_those_of_grpc_and_unique() -> None:
    reasons = [reason for _, reason in EVERY_REASON]
    assert len(set(reasons)) == len(reasons)
    for kind, reason in EVERY_REASON:
        assert grpc.StatusCode[kind.code].value[0] == Code.Value(kind.code)
        assert reason == reason.upper() and len(reason) <= 63


def test_the_first_reason_is_the_default_and_without_retry_there_is_none() -> None:
    received = from_status(to_status(errors.Unavailable("gone")))
    assert (received.reason, received.retry_after_ms, received.fields) == ("UNREACHABLE", None, [])


def test_for_field_names_the_field() -> None:
    error = errors.InvalidArgument.for_field(
        "max_tokens", "is 0; at least 1", reason="EMPTY_PROMPT"
    )
    assert str(error) == "max_tokens: is 0; at least 1"
    assert error.fields == [FieldViolation("max_tokens", "is 0; at least 1")]
    assert error.reason == "EMPTY_PROMPT"


def test_other_exceptions_keep_their_text_to_themselves() -> None:
    status = to_status(ValueError("/secret/path"))
    assert status.code == Code.INTERNAL
    assert b"secret" not in status.SerializeToString()
    assert isinstance(from_status(status), errors.Internal)


def test_an_unknown_reason_falls_back_to_the_code() -> None:
    status = Status(code=Code.RESOURCE_EXHAUSTED, message="no")
    status.details.add().Pack(ErrorInfo(reason="NEWER_REASON", domain="forerun"))
    received = from_status(status)
    assert type(received) is errors.Overloaded
    assert received.reason == "NEWER_REASON"


def test_another_domain_says_nothing_about_our_reasons() -> None:
    status = Status(code=Code.NOT_FOUND, message="no")
    status.details.add().Pack(ErrorInfo(reason="INVALID_TREE", domain="proxy.example"))
    assert type(from_status(status)) is ForerunError


@pytest.mark.parametrize(
    ("code", "name"), [(Code.UNIMPLEMENTED, "UNIMPLEMENTED"), (Code.UNKNOWN, "UNKNOWN")]
)
def test_a_code_without_a_class_is_kept(code: int, name: str) -> None:
    received = from_status(Status(code=code, message="no"))
    assert type(received) is ForerunError
    assert received.code == name


def test_codes_and_details_that_make_no_sense_are_survived() -> None:
    assert from_status(Status(code=99, message="no")).code == "UNKNOWN"
    status = to_status(errors.Internal("no"))
    status.details[0].value = b"\xff\xff"
    assert isinstance(from_status(status), errors.Internal)


def test_a_status_fits_in_trailers() -> None:
    fields = [FieldViolation("f" * 5000, "d" * 5000)] * 100
    sent = errors.InvalidArgument("m" * 100_000, fields=fields, metadata={"k": "v" * 5000})
    assert len(to_status(sent).SerializeToString()) < 6000


def test_the_documentation_lists_every_reason_with_its_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([A-Z_]+)` \| `([A-Z_]+)` \|", page, re.MULTILINE)
    known = [(kind.code, reason) for kind, reason in EVERY_REASON]
    assert listed == [*known, ("UNKNOWN", "UNKNOWN")]
