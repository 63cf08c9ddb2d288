"""``sluice dev`` on a port that is in use."""

import os
import socket
from pathlib import Path

import pytest

from sluice.cli.app import run_command


def test_port_in_use_is_reported_before_anything_starts(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("the UI was started"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert run_command(["dev", "--port", str(port)]) == 2

    printed = capfd.readouterr().err
    assert f"cannot listen on port {port} of 127.0.0.1: Address already in use" in printed
    assert "choose another --port" in printed
    assert "Sluice starts" not in printed
    assert not (tmp_path / "home").exists()
