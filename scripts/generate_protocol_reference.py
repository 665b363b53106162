"""Generates docs/protocol-reference.md (checked in) from proto/: every call, message, field and
enum with the comments that stand there.

    python scripts/generate_protocol_reference.py [OUTPUT_FILE]

What is said of a field is said in its .proto file alone; how the messages are used is told by
docs/protocol.md.
"""

from __future__ import annotations

import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

from generate_stubs import REPOSITORY, proto_files, protoc
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

OUTPUT = REPOSITORY / "docs/protocol-reference.md"
PACKAGE = ".forerun.v1."
HEADING = """\
# Protocol reference

Generated from `proto/forerun/v1` by `make stubs`: what each call, message and field means, with its
unit and range. [The protocol](protocol.md) tells how they are used.
"""
# What SourceCodeInfo calls the parts of a file: numbers of fields in descriptor.proto.
SERVICES, MESSAGES, ENUMS = (
    FileDescriptorProto.DESCRIPTOR.fields_by_name[name].number
    for name in ("service", "message_type", "enum_type")
)
METHODS = ServiceDescriptorProto.DESCRIPTOR.fields_by_name["method"].number
FIELDS = DescriptorProto.DESCRIPTOR.fields_by_name["field"].number
VALUES = EnumDescriptorProto.DESCRIPTOR.fields_by_name["value"].number

Comments = dict[tuple[int, ...], str]


def described_files() -> list[FileDescriptorProto]:
    """The files of proto/ as protoc reads them, comments included."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "described.binpb")
        protoc([f"--descriptor_set_out={output}", "--include_source_info"], proto_files())
        return list(FileDescriptorSet.FromString(output.read_bytes()).file)


def reference() -> str:
    """The whole page."""
    return "\n".join([HEADING, *(line for file in described_files() for line in page_of(file))])


def page_of(file: FileDescriptorProto) -> Iterator[str]:
    """The lines of one file: its services first, then its messages and enums."""
    comments: Comments = {
        tuple(location.path): location.leading_comments
        for location in file.source_code_info.location
    }
    yield f"## {file.name}\n"
    for index, service in enumerate(file.service):
        yield from _heading(service.name, comments[SERVICES, index])
        yield from _table("call", "takes", "gives", "effect")
        for number, method in enumerate(service.method):
            takes = _stream(method.client_streaming) + _link(method.input_type)
            gives = _stream(method.server_streaming) + _link(method.output_type)
            effect = comments[SERVICES, index, METHODS, number]
            yield _row(f"`{method.name}`", takes, gives, effect)
        yield ""
    for index, message in enumerate(file.message_type):
        yield from _heading(message.name, comments[MESSAGES, index])
        if message.field:
            yield from _table("no.", "field", "type", "meaning")
        for number, field in enumerate(message.field):
            meaning = comments[MESSAGES, index, FIELDS, number]
            yield _row(str(field.number), f"`{field.name}`", _type(field, message), meaning)
        yield ""
    for index, enum in enumerate(file.enum_type):
        yield from _heading(enum.name, comments[ENUMS, index])
        yield from _table("no.", "value", "meaning")
        for number, value in enumerate(enum.value):
            yield _row(str(value.number), f"`{value.name}`", comments[ENUMS, index, VALUES, number])
        yield ""


def _heading(name: str, comment: str) -> Iterator[str]:
    yield f"### {name}\n"
    for paragraph in textwrap.dedent(comment).split("\n\n"):
        yield textwrap.fill(paragraph, width=100) + "\n"


def _table(*titles: str) -> Iterator[str]:
    yield _row(*titles)
    yield "|" + "---|" * len(titles)


def _row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", r"\|") for cell in cells) + " |"


def _stream(streams: bool) -> str:
    return "stream of " if streams else ""


def _type(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    entry = next((n for n in message.nested_type if field.type_name.endswith("." + n.name)), None)
    if entry is not None:  # as a map is described
        key, value = (_type(part, entry) for part in entry.field)
        return f"map of {key} to {value}"
    kind = (
        _link(field.type_name)
        if field.type_name
        else FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    )
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {kind}"
    if field.proto3_optional:
        return f"optional {kind}"
    if field.HasField("oneof_index"):
        return f"{kind}, one of `{message.oneof_decl[field.oneof_index].name}`"
    return kind


def _link(type_name: str) -> str:
    """A link to a type of ours, or the full name of one of others."""
    name = type_name.removeprefix(PACKAGE)
    return type_name.removeprefix(".") if name == type_name else f"[{name}](#{name.lower()})"


if __name__ == "__main__":
    output = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else OUTPUT
    output.write_text(reference(), encoding="utf-8")
