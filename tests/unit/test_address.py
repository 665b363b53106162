"""Which addresses stay on this machine: tokens travel to them in the clear."""

from __future__ import annotations

import pytest

from forerun.address import is_local


@pytest.mark.parametrize(
    "address",
    ["localhost:1", "127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "unix:/a", "unix:///a",
     "unix-abstract:a", "localhost", "dns:///localhost:1", "dns:localhost:1",
     "ipv4:127.0.0.1:1"],
)  # fmt: skip
def test_local_addresses(address: str) -> None:
    assert is_local(address)


@pytest.mark.parametrize(
    "address",
    ["example.com:1", "10.0.0.1:1", "0.0.0.0:1", "[::]:1", "[::2]:1", "localhost.example.com:1",
     "dns:///example.com:1", "ipv4:127.0.0.1:1,10.0.0.1:1", "dns://127.0.0.1/example.com:1",
     "localhost@example.com:1"],
)  # fmt: skip
def test_other_addresses(address: str) -> None:
    assert not is_local(address)
