"""OBS-1: an alert is recorded once, posted at least once, and never fails its caller."""

import fcntl
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sluice.base.home import Home
from sluice.observability.alerts import Alert, raise_alert, read_alerts

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def alert(key: str = "r1/3", *, at: datetime = AT) -> Alert:
    return Alert(
        key=key,
        kind="rolled_back",
        what="The rollout went back.",
        why="Errors: 9 of 100.",
        do="See: sluice rollout status m",
        severity="critical",
        model="m",
        rollout="r1",
        at=at,
    )


class Receiver:
    """Webhook with configurable responses."""

    def __init__(self) -> None:
        self.received: list[tuple[str, dict[str, Any]]] = []
        self.statuses: list[int] = []
        self.delay_s = 0.0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.received.append((self.headers["Idempotency-Key"], json.loads(body)))
                time.sleep(receiver.delay_s)
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.environ = {"SLUICE_ALERT_WEBHOOK": f"http://127.0.0.1:{self.server.server_port}/x"}

    @property
    def keys(self) -> list[str]:
        return [key for key, _ in self.received]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, args=(0.02,))
    thread.start()
    yield receiver
    receiver.server.shutdown()
    thread.join()
    receiver.server.server_close()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(root=tmp_path, registry_url="sqlite://")


def test_an_alert_is_written_once_as_one_line(home: Home) -> None:
    first = raise_alert(alert(), home=home, environ={})
    raise_alert(alert(), home=home, environ={})
    raise_alert(alert("r1/4"), home=home, environ={})

    assert (first.is_recorded, first.num_posted, first.num_pending, first.problems) == (
        True,
        0,
        0,
        (),
    )
    lines = home.alerts.read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["r1/3", "r1/4"]
    assert read_alerts(home) == [alert(), alert("r1/4")]


def test_the_webhook_receives_an_alert_once_with_its_key(home: Home, receiver: Receiver) -> None:
    raised = [raise_alert(alert(), home=home, environ=receiver.environ) for _ in range(2)]

    assert [r.num_posted for r in raised] == [1, 0]
    [(key, body)] = receiver.received
    assert key == body["key"] == "r1/3"
    assert body["text"] == (
        "[critical] m: The rollout went back. Errors: 9 of 100. See: sluice rollout status m"
    )


def test_a_temporarily_unavailable_webhook_is_retried(home: Home, receiver: Receiver) -> None:
    receiver.statuses = [503]

    raised = raise_alert(alert(), home=home, environ=receiver.environ)

    assert (raised.num_posted, raised.problems) == (1, ())
    assert receiver.keys == ["r1/3", "r1/3"]


def test_pending_alerts_are_posted_with_the_next_one(
    home: Home, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    unreachable = {"SLUICE_ALERT_WEBHOOK": "http://127.0.0.1:9/secret"}
    # The pauses between attempts take a second.
    raise_alert(
        alert("old", at=AT - timedelta(days=2)), home=home, environ=unreachable, max_wait_s=30.0
    )
    missed = raise_alert(alert("a"), home=home, environ=unreachable, max_wait_s=30.0)
    raised = raise_alert(alert("b"), home=home, environ=receiver.environ)

    assert (missed.is_recorded, missed.num_posted, missed.num_pending) == (True, 0, 1)
    assert "cannot be reached (ConnectionRefusedError)" in missed.problems[0]
    assert "secret" not in caplog.text
    assert (raised.num_posted, raised.num_pending) == (2, 0)
    assert receiver.keys == ["b", "a"]


def test_no_pause_follows_the_last_attempt(
    home: Home, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.statuses = [503, 502, 500]
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)

    raised = raise_alert(alert(), home=home, environ=receiver.environ, max_wait_s=60.0)

    assert raised.problems == ("The webhook returned status 500.",)
    assert [pause for pause in pauses if pause] == [0.2, 0.8]


def test_a_client_error_is_not_retried(home: Home, receiver: Receiver) -> None:
    receiver.statuses = [400]

    raised = raise_alert(alert(), home=home, environ=receiver.environ)

    assert (raised.num_posted, raised.num_pending) == (0, 1)
    assert raised.problems == ("The webhook returned status 400.",)
    assert len(receiver.received) == 1


def test_a_slow_webhook_does_not_block_the_caller(home: Home, receiver: Receiver) -> None:
    receiver.delay_s = 20.0
    began = time.monotonic()

    raised = raise_alert(alert(), home=home, environ=receiver.environ, max_wait_s=0.3)

    assert time.monotonic() - began < 15
    assert (raised.num_posted, raised.num_pending) == (0, 1)
    assert raised.problems


def test_an_unwritable_folder_prevents_neither_the_post_nor_the_caller(
    tmp_path: Path, receiver: Receiver
) -> None:
    (tmp_path / "file").write_text("")
    home = Home(root=tmp_path / "file" / "home", registry_url="sqlite://")

    raised = raise_alert(alert(), home=home, environ=receiver.environ)

    assert (raised.is_recorded, raised.num_posted) == (False, 1)
    assert "Cannot write" in raised.problems[0]


@pytest.mark.parametrize("url", ["file:///etc/passwd", "somewhere", "http://"])
def test_an_invalid_webhook_url_is_reported(home: Home, url: str) -> None:
    raised = raise_alert(alert(), home=home, environ={"SLUICE_ALERT_WEBHOOK": url})

    assert raised.is_recorded
    assert "is not an http or https URL" in raised.problems[0]


def test_an_incomplete_line_is_skipped(home: Home) -> None:
    raise_alert(alert("a"), home=home, environ={})
    with home.alerts.open("ab") as file:
        file.write(b'{"key": "tor')
    raise_alert(alert("b"), home=home, environ={})

    assert [a.key for a in read_alerts(home)] == ["a", "b"]


def test_a_locked_file_blocks_neither_the_post_nor_the_caller(
    home: Home, receiver: Receiver
) -> None:
    with home.alerts.open("ab") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        raised = raise_alert(alert(), home=home, environ=receiver.environ)

    assert (raised.is_recorded, raised.num_posted) == (False, 1)
    assert "another process has locked the file" in raised.problems[0]


def test_concurrent_writers_record_each_alert_completely_and_once(home: Home) -> None:
    """Each thread opens the file separately, so that file locks work as between processes."""
    barrier = threading.Barrier(4)

    def write(writer: int) -> None:
        for number in range(15):
            barrier.wait()
            raise_alert(alert(f"same/{number}"), home=home, environ={})
            raise_alert(alert(f"{writer}/{number}"), home=home, environ={})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))

    keys = [json.loads(line)["key"] for line in home.alerts.read_text().splitlines()]
    assert sorted(keys) == sorted(
        f"{writer}/{n}" for writer in (*range(4), "same") for n in range(15)
    )


@pytest.mark.parametrize("key", ["", "two words", "line\nbreak", "\u00e4"])
def test_a_key_that_is_invalid_in_a_header_is_refused(key: str) -> None:
    with pytest.raises(ValidationError, match="key"):
        alert(key)
