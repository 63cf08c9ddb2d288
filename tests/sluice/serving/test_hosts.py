"""Web pages of other origins cannot use a browser to send requests to the server."""

import json

import httpx
import pytest

from sluice.serving.hosts import TrustedHosts
from sluice.serving.http_errors import MisdirectedRequest
from sluice.serving.settings import ServingSettings
from tests.sluice.serving.serving_samples import SECRET, RunningServer, body

TOKEN = {"authorization": f"Bearer {SECRET}"}


def is_accepted(hosts: TrustedHosts, *values: str) -> bool:
    try:
        hosts.require(value.encode("latin-1") for value in values)
    except MisdirectedRequest:
        return False
    return True


@pytest.mark.parametrize(
    "value",
    ["127.0.0.1", "127.0.0.1:8000", "localhost", "LOCALHOST:1", "localhost.:80", "[::1]:8000"],
)
def test_loopback_names_are_trusted(value: str) -> None:
    assert is_accepted(TrustedHosts("127.0.0.1", ()), value)


@pytest.mark.parametrize(
    "value",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8000",
        "evil.example:127.0.0.1",
        "127.0.0.1@evil.example",
        "user:pw@localhost",
        "localhost/evil.example",
        "localhost, evil.example",
        "localhost:80:80",
        "localhost:",
        "localhost:999999",
        "192.168.0.7",
        "[::1",
        "[evil]",
        "\u00b2localhost",
        "",
        " localhost",
    ],
)
def test_other_host_names_are_not_trusted(value: str) -> None:
    assert not is_accepted(TrustedHosts("127.0.0.1", ()), value)


def test_one_host_header_is_required() -> None:
    hosts = TrustedHosts("127.0.0.1", ())

    for number in (0, 2):
        with pytest.raises(MisdirectedRequest, match=f"one Host header, got {number}"):
            hosts.require([b"localhost"] * number)


@pytest.mark.parametrize(
    ("host", "value", "is_trusted"),
    [
        ("10.0.0.5", "10.0.0.5:8000", True),
        ("10.0.0.5", "10.0.0.6:8000", False),
        ("model.example.org", "Model.Example.Org", True),
        ("0.0.0.0", "10.0.0.6:8000", True),
        ("::", "[2001:db8::1]:8000", True),
        ("0.0.0.0", "evil.example", False),
        ("0.0.0.0", "api.example.org", True),
        ("0.0.0.0", "a.models.example.org", True),
        ("0.0.0.0", "models.example.org", False),
        ("0.0.0.0", "evilmodels.example.org", False),
    ],
)
def test_the_listen_address_and_configured_names_are_trusted(
    host: str, value: str, *, is_trusted: bool
) -> None:
    hosts = TrustedHosts(host, ["API.example.org", "*.models.example.org"])

    assert is_accepted(hosts, value) == is_trusted


def test_wildcards_must_have_a_valid_form() -> None:
    """Invalid names, such as one that matches every host, are refused."""
    for name in ("*", "*.", "http://x", "a b", "x/y", ""):
        with pytest.raises(ValueError, match="trusted_hosts"):
            ServingSettings(trusted_hosts=(name,))


@pytest.mark.parametrize("route", ["/predict", "/healthz", "/readyz", "/openapi.json", "/nothing"])
def test_another_host_gets_421_on_every_route(server: RunningServer, route: str) -> None:
    response = httpx.request(
        "POST" if route == "/predict" else "GET",
        server.url + route,
        headers=TOKEN | {"host": "evil.example"},
        content=json.dumps(body(1.0)) if route == "/predict" else None,
    )

    assert (response.status_code, response.json()["kind"]) == (421, "misdirected_request")
    assert "got 'evil.example'" in response.json()["what"]
    assert "serving.trusted_hosts" in response.json()["do"]


@pytest.mark.parametrize(
    "declared", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_content_types_allowed_without_cors_get_415(
    server: RunningServer, declared: str | None
) -> None:
    """A web page can send them without a preflight; they would become samples of drift."""
    before = server.metrics()['sluice_arm_requests_total{arm="production"}']
    headers = TOKEN | ({} if declared is None else {"content-type": declared})
    content = json.dumps(body(1.0)).encode()
    response = httpx.post(f"{server.url}/predict", headers=headers, content=content)

    assert response.status_code == 415
    assert "declared as application/json" in response.json()["what"]
    assert server.metrics()['sluice_arm_requests_total{arm="production"}'] == before


@pytest.mark.parametrize("path", ["/healthz/", "/predict/", "/model/", "//evil.example/"])
def test_a_trailing_or_double_slash_is_not_redirected(server: RunningServer, path: str) -> None:
    """The target of a redirect would be the host that the request names."""
    response = server.client.get(server.url + path)

    assert response.status_code == 404
    assert "location" not in response.headers
