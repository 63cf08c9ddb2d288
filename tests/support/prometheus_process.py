"""Runs Prometheus and Alertmanager on free ports of this machine."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

HOST = "127.0.0.1"


def require(*names: str) -> str:
    """Return the path of the first of these programs that is installed; otherwise skip the test."""
    for name in names:
        path = shutil.which(name)
        if path:
            return path
    pytest.skip(f"{names[0]} is not installed. On Debian, run apt-get install {names[-1]}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def run_server(command: list[str], *, url: str, log: Path) -> Iterator[httpx.Client]:
    """Run a server; yield a client of it as soon as ``/-/ready`` returns 200."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent)
    try:
        with httpx.Client(base_url=url, timeout=10) as client:
            wait_for(lambda: is_ready(client, process, log), seconds=30)
            yield client
    finally:
        process.terminate()
        process.wait(20)


def is_ready(client: httpx.Client, process: "subprocess.Popen[bytes]", log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def wait_for(condition: Any, *, seconds: float) -> None:
    """Wait until a function returns a true value; fail after this time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition is still false after {seconds} s"
        time.sleep(0.02)


@contextlib.contextmanager
def prometheus(folder: Path) -> Iterator[httpx.Client]:
    """Run Prometheus with the ``prometheus.yml`` of a folder."""
    address = f"{HOST}:{free_port()}"
    command = [
        require("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--rules.alert.resend-delay=1s",
    ]
    with run_server(command, url=f"http://{address}", log=folder / "prometheus.log") as client:
        yield client


@contextlib.contextmanager
def alertmanager(folder: Path) -> Iterator[httpx.Client]:
    """Run Alertmanager with the ``alertmanager.yml`` of a folder."""
    address = f"{HOST}:{free_port()}"
    command = [
        require("alertmanager", "prometheus-alertmanager"),
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
    ]
    with run_server(command, url=f"http://{address}", log=folder / "alertmanager.log") as client:
        yield client


def query_series(client: httpx.Client, expression: str) -> list[Any]:
    """Return the series of an expression. A parse error fails with the message of Prometheus."""
    response = client.get("/api/v1/query", params={"query": expression}).json()
    assert response["status"] == "success", f"{expression}: {response.get('error')}"
    series: list[Any] = response["data"]["result"]
    return series
