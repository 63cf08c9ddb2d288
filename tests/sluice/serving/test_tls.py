"""The server supports TLS and warns about tokens in cleartext."""

import contextlib
import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sluice.base.errors import SettingsError, StorageError
from sluice.cli.app import run_command
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.connection_settings import ConnectionSettings
from sluice.serving.server import cleartext_warnings
from sluice.serving.tls import Tls
from sluice.serving.tokens import Tokens
from tests.sluice.serving.serving_samples import (
    SECRET,
    LinearNetwork,
    RunningServer,
    body,
    candidate,
    deployed,
    quick_settings,
    run_server,
)

TOKEN = {"authorization": f"Bearer {SECRET}"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    options = ["-nodes", "-days", "2", "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*command, *options, "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )
    key.chmod(0o600)
    return Tls.read(cert, key)


@pytest.fixture(scope="module")
def server(files: Tls) -> Iterator[RunningServer]:
    model = deployed("one", 1, LinearNetwork(1.0))
    settings = quick_settings(
        connections=ConnectionSettings(
            max_connections=8, max_per_address=8, header_timeout_s=0.4, idle_timeout_s=0.4
        )
    )
    split = TrafficSplit(epoch=1, production=candidate("one"))
    with run_server({model.candidate: model}, split, settings=settings, tls=files) as running:
        running.client.close()
        trusted = ssl.create_default_context(cafile=str(files.cert))
        running.client = httpx.Client(base_url=running.url, headers=TOKEN, verify=trusted)
        yield running


def connect(server: RunningServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=10)


def test_predictions_are_served_over_tls(server: RunningServer) -> None:
    assert server.predict(1.0).json()["outputs"] == [[2.0]]


def test_a_plain_http_request_gets_no_response(server: RunningServer) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.post(server.url.replace("https", "http") + "/predict", json=body(1.0), headers=TOKEN)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02"], ids=["silent", "half a handshake"])
def test_an_incomplete_handshake_times_out_like_a_header(
    server: RunningServer, sent: bytes
) -> None:
    with connect(server) as connection:
        connection.sendall(sent)
        with contextlib.suppress(ConnectionError):
            assert connection.recv(100) == b""


def test_incomplete_handshakes_are_evicted(server: RunningServer) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(24):
            stack.enter_context(connect(server))
        assert server.predict(1.0).status_code == 200
        assert server.metrics()["sluice_connections"] <= 8


def test_mismatched_or_missing_certificate_and_key_files_are_refused(
    files: Tls, tmp_path: Path
) -> None:
    key = tmp_path / "key.pem"
    command = ["openssl", "genpkey", "-algorithm", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    subprocess.run([*command, "-out", str(key)], check=True, capture_output=True)
    key.chmod(0o600)

    with pytest.raises(SettingsError, match="certificate and its private key in PEM format, got"):
        Tls.read(files.cert, key)
    with pytest.raises(SettingsError, match="certificate and its private key"):
        Tls.read(tmp_path / "none.pem", key)
    with pytest.raises(StorageError, match=r"TLS key file .* cannot be read"):
        Tls.read(files.cert, tmp_path / "none.pem")
    key.chmod(0o644)
    with pytest.raises(SettingsError, match="readable only by its owner"):
        Tls.read(files.cert, key)


def test_a_certificate_without_its_key_is_refused(
    files: Tls, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["serve", "sp500_volatility", "--tls-cert", str(files.cert)]) == 2
    assert "--tls-cert and --tls-key are required together" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "tokens", "warnings"),
    [
        ("127.0.0.1", Tokens.of(serve=SECRET), 0),
        ("localhost", Tokens.of(serve=SECRET), 0),
        ("0.0.0.0", Tokens.of(serve=SECRET), 1),
        ("10.0.0.5", Tokens.of(hook=SECRET), 1),
    ],
)
def test_tokens_in_cleartext_on_a_network_give_a_warning(
    host: str, tokens: Tokens, warnings: int
) -> None:
    assert len(list(cleartext_warnings(host, tokens))) == warnings


def test_the_command_logs_the_cleartext_warning(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command then fails, since there is no registry."""
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setenv("SLUICE_SERVE_TOKEN", SECRET)
    monkeypatch.delenv("SLUICE_REGISTRY_URL", raising=False)

    assert run_command(["serve", "sp500_volatility", "--host", "0.0.0.0", "--port", "0"]) == 2
    warning = json.loads(capsys.readouterr().err.splitlines()[0])
    assert (warning["event"], warning["level"]) == ("clear text", "warning")
    assert "--tls-cert" in warning["what"]
