"""Invalid requests over a socket get a 4xx response that says what to do."""

import json
import re
import socket

import httpx
import pytest

from tests.sluice.serving.serving_samples import SECRET, RunningServer, body


def test_predictions_are_the_mean_of_all_networks(server: RunningServer) -> None:
    one, many = server.predict(2.0), server.predict(2.0, 3.0, 4.0)

    assert one.json()["outputs"] == [[3.0]]
    assert many.json()["outputs"] == [[3.0], [4.0], [5.0]]


def test_columns_are_matched_by_name(server: RunningServer) -> None:
    request = body(0.0)
    request["windows"][0][-1] = [8.0, 0.0]
    swapped = request | {"columns": ["b", "a"]}

    assert server.client.post("/predict", json=request).json()["outputs"] == [[13.0]]
    assert server.client.post("/predict", json=swapped).json()["outputs"] == [[-3.0]]


def window(*rows: list[object], columns: tuple[str, ...] = ("a", "b")) -> bytes:
    return json.dumps({"columns": columns, "windows": [rows]}).encode()


GOOD = ([0.0, 0.0], [0.0, 0.0], [1.0, 1.0])


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"", 400, "must be JSON"),
        (b"{", 400, "must be JSON"),
        (b"\xff\xfe{}", 400, "must be JSON"),
        (b"[]", 422, "body"),
        (b"{}", 422, "columns: Field required"),
        (b"[" * 50_000, 400, "must be JSON"),
        (window(*GOOD, columns=("a",)), 422, r"features of the model; missing: b\."),
        (window(*GOOD, columns=("a", "bb")), 422, "missing: b; unknown: bb.*Did you mean 'b'"),
        (window(*GOOD, columns=("a", "b", "a")), 422, r"; duplicates: 1\."),
        (window(*GOOD[1:]), 422, "3 rows of 2 values, got 2 rows"),
        (window(*GOOD[1:], [1.0]), 422, r"3 rows .* of 1 to 2 values in windows\.0"),
        (window(*GOOD[1:], [1.0, "x"]), 422, r"windows\.0\.2\.1: Input should be a valid number"),
        (window(*GOOD[1:], [1.0, True]), 422, r"windows\.0\.2\.1"),
        (window(*GOOD[1:], [1.0, None]), 422, r"windows\.0\.2\.1"),
        (window(*GOOD[1:], [1.0, float("nan")]), 422, r"windows\.0\.2\.1: .*finite"),
        (window(*GOOD[1:], [1.0, float("inf")]), 422, r"windows\.0\.2\.1: .*finite"),
        (
            window(*GOOD[1:], [1.0, 1e39]),
            422,
            r"column 'b' must be from -9.2.* got 1e\+39 at windows\.0\.2",
        ),
        (window(*GOOD[1:], [1.0, 10**400]), 422, "wrong|finite"),
        (
            json.dumps(body(1.0, model="other")).encode(),
            404,
            "does not serve the model .*other.*; it serves demo",
        ),
        (json.dumps(body(1.0, sers="x")).encode(), 422, "1 value of the body is wrong: sers: Ext"),
        (json.dumps(body(1.0, user="")).encode(), 422, "user"),
        (json.dumps(body(1.0, keys=["row\0"])).encode(), 422, r"keys\.0: .*no control .* at 3"),
        (json.dumps(body(1.0, 2.0, keys=["a", "\x85"])).encode(), 422, r"keys\.1: .*no control"),
        (json.dumps(body(1.0, keys=["\ud800"])).encode(), 400, "must be JSON"),
        (json.dumps(body(*[0.0] * 101)).encode(), 413, "at most 100 windows"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_an_invalid_body_is_refused_with_the_location_of_the_error(
    server: RunningServer, content: bytes, status: int, message: str
) -> None:
    response = server.client.post(
        "/predict", content=content, headers={"content-type": "application/json"}
    )
    problem = response.json()

    assert response.status_code == status
    assert re.search(message, problem["what"] + problem["do"]), problem
    assert problem["do"]
    assert problem["trace"] == response.headers["x-trace-id"]


def test_the_error_of_an_invalid_body_lists_the_fields_of_a_request(server: RunningServer) -> None:
    response = server.client.post("/predict", json={"x": [1.0, 2.0]}).json()

    assert response["why"] == (
        "A request to this model has 'columns', 'windows', and optionally 'model', 'user', 'keys'."
    )


def test_a_value_too_large_for_the_model_is_a_client_error(server: RunningServer) -> None:
    """The value is finite in float32, but the prediction would not be; no model is called."""
    response = server.predict(3e38)

    assert response.status_code == 422
    assert "must be from -9.22337e+18 to 9.22337e+18, got 3e+38" in response.json()["what"]


def test_another_content_type_is_refused(server: RunningServer) -> None:
    response = server.client.post("/predict", content=b"a=1", headers={"content-type": "text/csv"})

    assert response.status_code == 415


@pytest.mark.parametrize(
    "authorization", [None, "Bearer wrong", f"Basic {SECRET}", SECRET, "Bearer"]
)
@pytest.mark.parametrize("route", ["/predict", "/model", "/rollout", "/metrics"])
def test_a_request_without_the_token_gets_401_without_the_model_name(
    server: RunningServer, route: str, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    response = httpx.request(
        "POST" if route == "/predict" else "GET", server.url + route, headers=headers
    )

    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert "demo" not in response.text


@pytest.mark.parametrize("route", ["/healthz", "/readyz", "/openapi.json"])
def test_probes_need_no_token(server: RunningServer, route: str) -> None:
    assert httpx.get(server.url + route).status_code == 200


def test_an_unknown_route_gets_the_same_error_schema(server: RunningServer) -> None:
    missing, wrong = server.client.get("/nothing"), server.client.get("/predict")

    assert (missing.status_code, wrong.status_code) == (404, 405)
    assert missing.json()["kind"] == "unknown_route"
    assert wrong.json()["kind"] == "wrong_method"
    assert wrong.json()["what"] == "This route accepts POST, got GET."


def send_raw(server: RunningServer, header: str, *parts: bytes) -> tuple[bytes, int]:
    """Send a request; return the response and the number of body bytes sent before it."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(
            f"POST /predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {SECRET}\r\n"
            f"Content-Type: application/json\r\n{header}\r\n\r\n".encode()
        )
        num_sent = 0
        for part in parts:
            try:
                connection.sendall(part)
            except OSError:
                break
            num_sent += len(part)
        response = b""
        while True:
            try:
                part_received = connection.recv(65536)
            except ConnectionError:
                part_received = b""
            if not part_received:
                return response, num_sent
            response += part_received


def test_a_content_length_of_100_mb_is_refused_before_the_body(server: RunningServer) -> None:
    response, _ = send_raw(server, "Content-Length: 104857600")  # no body is sent

    assert response.startswith(b"HTTP/1.1 413")
    assert b"100,000 bytes" in response


def test_a_chunked_body_of_100_mb_is_cut_off(server: RunningServer) -> None:
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    _, num_sent = send_raw(server, "Transfer-Encoding: chunked", *([chunk] * 1600))

    assert num_sent < 50 * 2**20
    assert "413" in {key for key in _statuses(server)}


def _statuses(server: RunningServer) -> set[str]:
    return {
        key.split('status="')[1][:3]
        for key, value in server.metrics().items()
        if key.startswith("sluice_http_requests_total") and value
    }


def test_an_incomplete_body_times_out(server: RunningServer) -> None:
    response, _ = send_raw(server, "Content-Length: 50", b"{")

    assert response.startswith(b"HTTP/1.1 408")


def test_a_client_that_disconnects_during_its_body_causes_no_error(server: RunningServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    before = len(server.lines())
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            f"POST /predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {SECRET}\r\n"
            "Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{".encode()
        )

    server.wait_for(lambda: len(server.lines()) > before)
    assert [(x["refused"], x["level"]) for x in server.lines()[before:]] == [("malformed", "info")]


def test_the_trace_id_of_the_client_is_kept(server: RunningServer) -> None:
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}
    response = server.client.post("/predict", json=body(1.0), headers=headers)
    other = server.client.post("/predict", json=body(1.0), headers={"traceparent": "x"})

    assert response.json()["trace"] == response.headers["x-trace-id"] == trace_id
    assert len(other.json()["trace"]) == 32
    assert next(x for x in server.lines() if x.get("trace") == trace_id)["status"] == 200


def test_no_payload_user_or_path_is_logged(server: RunningServer) -> None:
    server.predict(4711.25125, user="ada@example.org")
    server.client.get("/secret-path-of-4711.25125")
    server.wait_for(lambda: '"other"' in server.log.getvalue())
    log = server.log.getvalue()

    assert "4711.25125" not in log
    assert "ada@" not in log
    assert SECRET not in log


def test_the_openapi_schema_declares_every_observed_status(server: RunningServer) -> None:
    operation = server.client.get("/openapi.json").json()["paths"]["/predict"]["post"]

    assert _statuses(server) <= set(operation["responses"]) | {"405"}
    assert operation["security"]
    assert operation["requestBody"]["content"]["application/json"]["schema"]["required"] == [
        "columns",
        "windows",
    ]


def test_labels_of_metrics_are_bounded(server: RunningServer) -> None:
    before = len(server.metrics())
    for number in range(20):
        server.client.get(f"/path-{number}")
        server.client.request(f"VERB{number}", "/predict")

    assert len(server.metrics()) - before <= 6
