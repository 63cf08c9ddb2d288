"""Alerts out of Sluice itself: a line in a file, and a post to whoever wants to hear (OBS-1).

The line is written before anything is posted, and what was posted is noted afterwards. Whoever dies
in between posts again under the same key, so a receiver hears of every alert at least once and can
pass over keys it knows.
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

WEBHOOK = "SLUICE_ALERT_WEBHOOK"
KEY_HEADER = "Idempotency-Key"
PATIENCE_S = 4.0
"""Longest that a caller waits."""

_ATTEMPTS = 3
_ATTEMPT_S = 1.5
_PAUSE_S = 0.2
_LOCK_S = 1.0
_STILL_NEWS = timedelta(days=1)
"""An older alert that nobody took is left to the file."""

_LOG = logging.getLogger("sluice.alerts")

Kind = Literal["rolled_back", "rollout_paused", "drift", "work_failed"]
Severity = Literal["info", "warning", "critical"]


class Alert(Record):
    """Something a person should know: what, why and what to do."""

    key: str = Field(
        pattern=r"^[!-~]{1,200}$",
        description="The same for the same event, told once or twice: 'rollout-id/revision'.",
    )
    kind: Kind = Field(description="rollout_paused: it cannot go on by itself.")
    what: str = Field(min_length=1, description="What happened, one sentence.")
    why: str = Field(description="The evidence or cause, one sentence.")
    do: str = Field(description="What a person can do; empty when nothing is to be done.")
    severity: Severity
    model: str
    rollout: str | None = Field(None, description="Id of the rollout it is about.")
    at: AwareDatetime

    @property
    def text(self) -> str:
        """The alert as one line for people."""
        story = " ".join(part for part in (self.what, self.why, self.do) if part)
        return f"[{self.severity}] {self.model}: {story}"


class Raised(Record):
    """What became of an alert, and of those that waited."""

    recorded: bool = Field(description="Its line is in the file, from now or from before.")
    posted: int = Field(description="Alerts the webhook took now.")
    waiting: int = Field(description="Alerts that are posted with the next one.")
    problems: tuple[str, ...] = Field(description="What went wrong, in sentences.")


def raise_alert(
    alert: Alert, *, home: Home, environ: Mapping[str, str], patience_s: float = PATIENCE_S
) -> Raised:
    """Append an alert to ``alerts.jsonl``, and post it where ``SLUICE_ALERT_WEBHOOK`` says.

    An alert whose key is in the file already is not appended again, nor posted again once it was
    taken. It never raises for a disk or a network: the work that raised the alert goes on, and the
    answer and the log say what went wrong.

    Args:
        alert: What to tell.
        home: Where the file is.
        environ: Holds the webhook's address, an http or https URL, or does not.
        patience_s: Longest time for posting [s]; what is left then waits for the next alert.
    """
    book = _Book(home.alerts)
    problems: list[str] = []
    recorded = True
    try:
        book.append(alert)
    except OSError as error:
        recorded = False
        problems.append(f"Cannot write {home.alerts} ({error.strerror or error}).")
    url = environ.get(WEBHOOK, "")
    if not url:
        return _told(alert, Raised(recorded=recorded, posted=0, waiting=0, problems=(*problems,)))
    try:
        waiting = book.waiting(alert)
    except OSError as error:
        waiting = [alert]
        problems.append(f"Cannot read {home.alerts} ({error.strerror or error}).")
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        problems.append(f"{WEBHOOK} must be an http or https URL, and it is not.")
        return _told(
            alert,
            Raised(recorded=recorded, posted=0, waiting=len(waiting), problems=(*problems,)),
        )
    post = _Post(url=url, alerts=waiting, book=book, until=time.monotonic() + patience_s)
    # A name that does not resolve and a server that dribbles know no time limit; a thread left
    # behind does, and it ends with the process.
    thread = threading.Thread(target=post.run, name="alert", daemon=True)
    thread.start()
    thread.join(patience_s)
    if thread.is_alive():
        problems.append(f"The webhook took longer than {patience_s:g} s.")
    posted, said = post.posted, tuple(post.problems)
    return _told(
        alert,
        Raised(
            recorded=recorded,
            posted=posted,
            waiting=len(waiting) - posted,
            problems=(*problems, *said),
        ),
    )


def _told(alert: Alert, raised: Raised) -> Raised:
    for problem in raised.problems:
        _LOG.warning("alert %s: %s (%s)", alert.key, problem, alert.text)
    return raised


def read_alerts(home: Home) -> list[Alert]:
    """Return every alert of the file, oldest first; a torn line is passed over."""
    try:
        return _Book(home.alerts).alerts()
    except FileNotFoundError:
        return []


class _Book:
    """The file of the alerts, and beside it the keys of those that were posted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._posted = path.with_suffix(".posted")

    def append(self, alert: Alert) -> None:
        """Write the alert's line, unless its key is there."""
        make_folder(self._path.parent)
        with self._path.open("a+b") as file:
            _lock(file)
            file.seek(0)
            content = file.read()
            if any(known.key == alert.key for known in _parsed(content)):
                return
            # After a line that a crash tore, the next one must begin on its own.
            torn = b"" if not content or content.endswith(b"\n") else b"\n"
            file.write(torn + alert.model_dump_json().encode() + b"\n")

    def alerts(self) -> list[Alert]:
        return _parsed(self._path.read_bytes())

    def waiting(self, now: Alert) -> list[Alert]:
        """Return what was not posted: the alert of now first, then the others, newest first."""
        posted = set()
        if self._posted.exists():
            posted = set(self._posted.read_text().split())
        known = {alert.key: alert for alert in self.alerts()} if self._path.exists() else {}
        others = [a for a in known.values() if a.key != now.key and a.at > now.at - _STILL_NEWS]
        return [a for a in (now, *reversed(others)) if a.key not in posted]

    def note_posted(self, alert: Alert) -> None:
        with self._posted.open("ab") as file:
            _lock(file)
            file.write(alert.key.encode() + b"\n")


@dataclass(slots=True)
class _Post:
    """Posts alerts until a moment, and keeps count for whoever waits."""

    url: str
    alerts: list[Alert]
    book: _Book
    until: float
    posted: int = 0
    problems: list[str] = field(default_factory=list)

    def run(self) -> None:
        for alert in self.alerts:
            problem = self._post(alert)
            if problem:
                self.problems.append(problem)
                return  # the others would meet the same
            self.posted += 1
            try:
                self.book.note_posted(alert)
            except OSError as error:
                self.problems.append(f"Cannot note that it was posted: {error}.")

    def _post(self, alert: Alert) -> str:
        """Post one alert; return why it was not taken, or an empty string."""
        body = json.dumps(alert.model_dump(mode="json") | {"text": alert.text}).encode()
        headers = {"Content-Type": "application/json", KEY_HEADER: alert.key}
        problem = "The webhook was not asked, the time was up."
        for attempt in range(_ATTEMPTS):
            left_s = self.until - time.monotonic()
            if left_s <= 0:
                return problem
            request = urllib.request.Request(self.url, data=body, headers=headers, method="POST")
            try:
                with urllib.request.urlopen(request, timeout=min(_ATTEMPT_S, left_s)):
                    return ""
            except urllib.error.HTTPError as error:
                error.close()
                problem = f"The webhook answered {error.code}."
                if error.code < 500 and error.code != 429:
                    return problem
            except (OSError, ValueError) as error:  # never its address: it may hold a secret
                reason = getattr(error, "reason", error)
                problem = f"The webhook cannot be reached ({type(reason).__name__})."
            time.sleep(max(0.0, min(_PAUSE_S * 4**attempt, self.until - time.monotonic())))
        return problem


def _lock(file: BinaryIO) -> None:
    """Wait for other writers, but not for one that hangs.

    Raises:
        TimeoutError: Somebody has held the file for too long.
    """
    until = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise TimeoutError("another process holds the file") from None
            time.sleep(0.01)


def _parsed(content: bytes) -> list[Alert]:
    alerts = []
    for line in content.splitlines():
        try:
            alerts.append(Alert.model_validate_json(line))
        except ValidationError:
            continue
    return alerts
