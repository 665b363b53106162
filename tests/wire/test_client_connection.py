"""Addresses, tokens and TLS of the client."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import grpc
import pytest

from forerun import errors
from forerun.client import TLS, AsyncClient, Client
from forerun.client.connection import Connection
from tests.fixtures.scripted_generate import ScriptedGenerate


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORERUN_ADDRESS", raising=False)
    monkeypatch.delenv("FORERUN_TOKEN", raising=False)


def test_a_token_never_travels_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="in the clear"):
        Client("example.com:1", token="secret")
    with pytest.raises(ValueError, match="in the clear"):
        AsyncClient("example.com:1", token="secret")
    monkeypatch.setenv("FORERUN_TOKEN", "secret")
    with pytest.raises(ValueError, match="in the clear"):
        Client("example.com:1")
    connection = Connection.resolve("example.com:1", tls=TLS())
    assert connection.metadata == (("authorization", "Bearer secret"),)


def test_options_that_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="FORERUN_ADDRESS"):
        Client()
    credentials = grpc.ssl_channel_credentials()
    with pytest.raises(ValueError, match="exclude"):
        Client("localhost:1", tls=TLS(), credentials=credentials)
    with pytest.raises(ValueError, match="belong together"):
        Client("localhost:1", tls=TLS(cert=tmp_path / "cert.pem"))
    with pytest.raises(ValueError, match=r"max_retries is 5"):
        Client("localhost:1", max_retries=5)


def test_address_and_token_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    service = ScriptedGenerate()
    server = service.serve("127.0.0.1:0")
    monkeypatch.setenv("FORERUN_ADDRESS", service.address)
    monkeypatch.setenv("FORERUN_TOKEN", "secret\n")
    with Client() as client:
        client.complete("hi")
    assert service.metadata[0]["authorization"] == "Bearer secret"
    server.stop(None).wait()


def server_credentials(pem: TLS) -> grpc.ServerCredentials:
    assert pem.cert and pem.key
    cert, key = Path(pem.cert).read_bytes(), Path(pem.key).read_bytes()
    return grpc.ssl_server_credentials([(key, cert)], cert, require_client_auth=True)


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> TLS:
    """A self-signed certificate that serves both sides and signs itself."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
         "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    return TLS(ca=folder / "cert.pem", cert=folder / "cert.pem", key=folder / "key.pem")


async def test_mutual_tls_with_a_token(pem: TLS) -> None:
    service = ScriptedGenerate()
    server = service.serve("localhost:0", server_credentials(pem))
    with Client(service.address, tls=pem, token="secret") as client:
        assert client.complete("hi").text == "aé."
    async with AsyncClient(service.address, credentials=pem.credentials()) as asynchronous:
        assert (await asynchronous.complete("hi")).text == "aé."
    assert service.metadata[0]["authorization"] == "Bearer secret"
    with Client(service.address, tls=TLS(ca=pem.ca), max_retries=0) as stranger:
        with pytest.raises(errors.Unavailable):
            stranger.complete("hi")
    server.stop(None).wait()
