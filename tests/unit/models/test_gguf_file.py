"""The GGUF header reader against the gguf package's own, and against damaged files."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forerun.models import ModelError
from forerun.models.gguf_file import GgufFile
from tests.fixtures.gguf_writer import write_gguf
from tests.fixtures.tiny import shared_checkpoint


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    extra: dict[str, str | int | float | bool] = {"forerun.text": "é▁", "forerun.pi": 3.25}
    return write_gguf(shared_checkpoint("qwen2"), output, "Q8_0", extra_metadata=extra)


def opened(path: Path) -> GgufFile:
    file = GgufFile(path)
    file.close()
    return file


def test_reads_what_the_gguf_package_reads(path: Path) -> None:
    reader = gguf.GGUFReader(path)
    file = opened(path)
    fields = {k: v.contents() for k, v in reader.fields.items() if not k.startswith("GGUF.")}
    assert file.metadata == fields
    assert set(file.tensors) == {tensor.name for tensor in reader.tensors}
    for theirs in reader.tensors:
        ours = file.tensors[theirs.name]
        assert ours.shape == tuple(reversed(theirs.shape.tolist()))
        assert (ours.type, ours.offset) == (theirs.tensor_type, theirs.data_offset)
        assert ours.shape[0] * ours.row_bytes == theirs.n_bytes


def test_reads_the_stored_bytes(path: Path) -> None:
    theirs = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.1.ffn_up.weight")
    file = GgufFile(path)
    rows = file.read_rows(file.tensors["blk.1.ffn_up.weight"], 3, 9)
    file.close()
    assert (rows == theirs.data[3:9]).all()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(cut=st.floats(0, 0.999))
def test_a_file_cut_short_anywhere_is_refused(path: Path, tmp_path: Path, cut: float) -> None:
    content = path.read_bytes()
    short = tmp_path / "short.gguf"
    short.write_bytes(content[: int(len(content) * cut)])
    with pytest.raises(ModelError, match=r"short\.gguf"):
        opened(short)


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def tensor(name: bytes, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    return (
        string(name)
        + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        + struct.pack("<IQ", kind, offset)
    )


def file_bytes(tensors: list[bytes], metadata: list[bytes] = [], version: int = 3) -> bytes:  # noqa: B006
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    body = head + b"".join(metadata) + b"".join(tensors)
    return body + b"\0" * (-len(body) % 32) + b"\0" * 4096


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"PK\x03\x04" + b"\0" * 64, "does not begin with 'GGUF'"),
        (file_bytes([], version=1), "version 1"),
        (file_bytes([], version=0x03000000), "version 50331648"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "length of 1152921504606846976"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63), "length of 9223372036854775808"),
        (file_bytes([], [struct.pack("<Q", 2**62) + b"k"]), "length of"),
        (file_bytes([], [string(b"k") + struct.pack("<I", 99)]), "unknown type 99"),
        (file_bytes([], [string(b"k") + struct.pack("<IIQ", 9, 5, 2**61)]), "length of"),
        (file_bytes([], [string(b"k") + struct.pack("<IIQ", 9, 9, 1)]), "array of type 9"),
        (file_bytes([], [string(b"k") + struct.pack("<II", 4, 1)] * 2), "k appears twice"),
        (
            file_bytes([], [string(b"general.alignment") + struct.pack("<II", 4, 3)]),
            "general.alignment 3",
        ),
        (file_bytes([tensor(b"t", (32, 2), 0, 2**40)]), "tensor t lies at"),
        (file_bytes([tensor(b"t", (2**31, 2**31), 0, 0)]), "tensor t lies at"),
        (
            file_bytes([tensor(b"t", (32, 2), 0, 0), tensor(b"u", (32, 2), 0, 128)]),
            "tensor u lies at",
        ),
        (
            file_bytes([tensor(b"t", (32, 2), 0, 0), tensor(b"t", (32, 2), 0, 256)]),
            "tensor t appears twice",
        ),
        (file_bytes([tensor(b"t", (), 0, 0)]), "tensor t has 0 dimensions"),
        (file_bytes([tensor(b"t", (2,) * 5, 0, 0)]), "tensor t has 5 dimensions"),
        (file_bytes([tensor(b"t", (0, 2), 0, 0)]), "tensor t is empty"),
        (file_bytes([tensor(b"t", (33, 2), 8, 0)]), "tensor t of shape"),
        (file_bytes([tensor(b"t", (64,), 8, 0)]), "tensor t of shape"),
        (file_bytes([tensor(b"t", (256, 2), 10, 0)]), "tensor t is of type Q2_K"),
        (file_bytes([tensor(b"t", (256, 2), 999, 0)]), "tensor t is of type id 999"),
    ],
)
def test_hostile_headers_are_refused_by_name(tmp_path: Path, content: bytes, named: str) -> None:
    hostile = tmp_path / "hostile.gguf"
    hostile.write_bytes(content)
    with pytest.raises(ModelError, match=named.replace("(", r"\(")):
        opened(hostile)
