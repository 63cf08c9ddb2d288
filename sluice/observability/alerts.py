"""Alerts, which are appended to a file and posted to a webhook.

An alert is written to the file before it is posted, and the post is recorded afterwards. If the
process ends in between, the alert is posted again under the same key. A receiver can therefore get
an alert twice, and should skip keys that it has already received.
"""

import fcntl
import json
import logging
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO, Literal
from urllib.parse import urlsplit

from pydantic import AwareDatetime, Field, ValidationError

from sluice.base.files import make_folder
from sluice.base.home import Home
from sluice.base.settings import Record

WEBHOOK_VARIABLE = "SLUICE_ALERT_WEBHOOK"
"""Environment variable with the URL of the webhook."""
KEY_HEADER = "Idempotency-Key"
"""HTTP header with the key of an alert."""
MAX_WAIT_S = 4.0
"""Maximum time that a caller waits for posts [s]."""

_MAX_ATTEMPTS = 3
"""Maximum number of attempts to post an alert."""
_ATTEMPT_TIMEOUT_S = 1.5
_FIRST_PAUSE_S = 0.2
"""Pause between the first two attempts [s]; each further pause is four times as long."""
_LOCK_TIMEOUT_S = 1.0
_MAX_AGE = timedelta(days=1)
"""Maximum age of a pending alert that is posted together with a new alert. Older alerts are only in
the file."""

_LOG = logging.getLogger("sluice.alerts")

AlertKind = Literal["rolled_back", "rollout_paused", "drift", "run_failed"]
Severity = Literal["info", "warning", "critical"]


class Alert(Record):
    """A notification for operators: what happened, the cause, and what to do."""

    key: str = Field(
        pattern=r"^[!-~]{1,200}$",
        description="Idempotency key of the event, such as 'rollout-id/revision'.",
    )
    kind: AlertKind = Field(description="Kind of event.")
    what: str = Field(min_length=1, description="What happened, one sentence.")
    why: str = Field(description="Evidence or cause, one sentence.")
    do: str = Field(description="What the operator can do; empty if there is nothing to do.")
    severity: Severity
    model: str
    rollout: str | None = Field(None, description="Id of the affected rollout.")
    at: AwareDatetime

    @property
    def text(self) -> str:
        """The alert as one line of text."""
        message = " ".join(part for part in (self.what, self.why, self.do) if part)
        return f"[{self.severity}] {self.model}: {message}"


class AlertResult(Record):
    """Result of raising an alert. Pending earlier alerts are posted in the same call."""

    is_recorded: bool = Field(description="Whether the alert is in the file.")
    num_posted: int = Field(description="Number of alerts that the webhook accepted in this call.")
    num_pending: int = Field(
        description="Number of alerts that remain pending and are posted with the next alert."
    )
    problems: tuple[str, ...] = Field(description="Problems, one sentence each.")


def raise_alert(
    alert: Alert, *, home: Home, environ: Mapping[str, str], max_wait_s: float = MAX_WAIT_S
) -> AlertResult:
    """Append an alert to ``alerts.jsonl`` and post it to the URL in ``SLUICE_ALERT_WEBHOOK``.

    An alert whose key is in the file is not appended again. It is posted again only if the webhook
    has not accepted it yet. Disk and network errors are returned and logged instead of raised, so
    that the work of the caller continues.

    Args:
        alert: The alert.
        home: State folder with the file.
        environ: Environment variables, which may contain the http or https URL of the webhook.
        max_wait_s: Maximum time for posting [s]; remaining alerts stay pending.
    """
    file = _AlertFile(home.alerts)
    problems: list[str] = []
    is_recorded = True
    try:
        file.append(alert)
    except OSError as error:
        is_recorded = False
        problems.append(f"Cannot write {home.alerts} ({error.strerror or error}).")
    url = environ.get(WEBHOOK_VARIABLE, "")
    if not url:
        return _log_problems(
            alert,
            AlertResult(
                is_recorded=is_recorded, num_posted=0, num_pending=0, problems=(*problems,)
            ),
        )
    try:
        pending_alerts = file.alerts_to_post(alert)
    except OSError as error:
        pending_alerts = [alert]
        problems.append(f"Cannot read {home.alerts} ({error.strerror or error}).")
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        problems.append(f"{WEBHOOK_VARIABLE} is not an http or https URL.")
        return _log_problems(
            alert,
            AlertResult(
                is_recorded=is_recorded,
                num_posted=0,
                num_pending=len(pending_alerts),
                problems=(*problems,),
            ),
        )
    poster = _AlertPoster(
        url=url, alerts=pending_alerts, file=file, deadline_s=time.monotonic() + max_wait_s
    )
    # A thread posts the alerts, because the timeout of urlopen covers neither name resolution nor a
    # server that responds slowly. A daemon thread can be abandoned, and ends with the process.
    thread = threading.Thread(target=poster.run, name="alert", daemon=True)
    thread.start()
    thread.join(max_wait_s)
    if thread.is_alive():
        problems.append(f"The webhook took longer than {max_wait_s:g} s.")
    num_posted, post_problems = poster.num_posted, tuple(poster.problems)
    return _log_problems(
        alert,
        AlertResult(
            is_recorded=is_recorded,
            num_posted=num_posted,
            num_pending=len(pending_alerts) - num_posted,
            problems=(*problems, *post_problems),
        ),
    )


def _log_problems(alert: Alert, result: AlertResult) -> AlertResult:
    for problem in result.problems:
        _LOG.warning("alert %s: %s (%s)", alert.key, problem, alert.text)
    return result


def read_alerts(home: Home) -> list[Alert]:
    """Return all alerts in the file, oldest first, without incomplete lines."""
    try:
        return _AlertFile(home.alerts).alerts()
    except FileNotFoundError:
        return []


class _AlertFile:
    """The file of alerts, and a second file with the keys of the posted alerts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._posted_path = path.with_suffix(".posted")

    def append(self, alert: Alert) -> None:
        """Append the alert unless its key is in the file."""
        make_folder(self._path.parent)
        with self._path.open("a+b") as file:
            _lock(file)
            file.seek(0)
            content = file.read()
            if any(earlier_alert.key == alert.key for earlier_alert in _parse_alerts(content)):
                return
            # A crash may have left an incomplete last line.
            separator = b"" if not content or content.endswith(b"\n") else b"\n"
            file.write(separator + alert.model_dump_json().encode() + b"\n")

    def alerts(self) -> list[Alert]:
        return _parse_alerts(self._path.read_bytes())

    def alerts_to_post(self, current_alert: Alert) -> list[Alert]:
        """Return the alerts to post: the current alert, then pending alerts, newest first."""
        posted_keys = set()
        if self._posted_path.exists():
            posted_keys = set(self._posted_path.read_text().split())
        alert_by_key = {alert.key: alert for alert in self.alerts()} if self._path.exists() else {}
        earlier_alerts = [
            alert
            for alert in alert_by_key.values()
            if alert.key != current_alert.key and alert.at > current_alert.at - _MAX_AGE
        ]
        return [
            alert
            for alert in (current_alert, *reversed(earlier_alerts))
            if alert.key not in posted_keys
        ]

    def record_posted(self, alert: Alert) -> None:
        with self._posted_path.open("ab") as file:
            _lock(file)
            file.write(alert.key.encode() + b"\n")


@dataclass(slots=True)
class _AlertPoster:
    """Posts alerts until a deadline and counts the posted alerts."""

    url: str
    alerts: list[Alert]
    file: _AlertFile
    deadline_s: float
    """Time at which posting ends, by the monotonic clock [s]."""

    num_posted: int = 0
    problems: list[str] = field(default_factory=list)

    def run(self) -> None:
        for alert in self.alerts:
            problem = self._post(alert)
            if problem:
                self.problems.append(problem)
                return  # the other alerts would fail in the same way
            self.num_posted += 1
            try:
                self.file.record_posted(alert)
            except OSError as error:
                self.problems.append(f"Cannot record that the alert was posted: {error}.")

    def _post(self, alert: Alert) -> str:
        """Post one alert; return why it was not accepted, or "" if it was accepted."""
        body = json.dumps(alert.model_dump(mode="json") | {"text": alert.text}).encode()
        headers = {"Content-Type": "application/json", KEY_HEADER: alert.key}
        problem = "The webhook was not called: the time limit was reached."
        for attempt in range(_MAX_ATTEMPTS):
            if attempt:
                pause_s = min(
                    _FIRST_PAUSE_S * 4 ** (attempt - 1), self.deadline_s - time.monotonic()
                )
                time.sleep(max(0.0, pause_s))
            remaining_s = self.deadline_s - time.monotonic()
            if remaining_s <= 0:
                return problem
            request = urllib.request.Request(self.url, data=body, headers=headers, method="POST")
            try:
                with urllib.request.urlopen(request, timeout=min(_ATTEMPT_TIMEOUT_S, remaining_s)):
                    return ""
            except urllib.error.HTTPError as error:
                error.close()
                problem = f"The webhook returned status {error.code}."
                if error.code < 500 and error.code != 429:
                    return problem
            except (OSError, ValueError) as error:
                # The problem does not contain the URL, which may contain a secret.
                reason = getattr(error, "reason", error)
                problem = f"The webhook cannot be reached ({type(reason).__name__})."
        return problem


def _lock(file: BinaryIO) -> None:
    """Lock the file, waiting for other writers for a limited time.

    Raises:
        TimeoutError: Another process holds the lock for too long.
    """
    deadline_s = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise TimeoutError("another process has locked the file") from None
            time.sleep(0.01)


def _parse_alerts(content: bytes) -> list[Alert]:
    """Return the alerts of a file; lines that are not alerts are skipped."""
    alerts = []
    for line in content.splitlines():
        try:
            alerts.append(Alert.model_validate_json(line))
        except ValidationError:
            continue
    return alerts
