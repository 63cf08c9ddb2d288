"""The server's log: one JSON object a line, and never what a client sent."""

import json
import logging
import traceback
from typing import Any, Protocol

import structlog

from sluice.base.redaction import redact_data

_FRAMES = 5
"""Innermost calls of an error that are logged."""


class Lines(Protocol):
    """What a log is written to: a text stream, or a ``LogWriter`` before one."""

    def write(self, text: str, /) -> int:
        """Write a line."""

    def flush(self) -> None:
        """See that it is written."""


def json_log(stream: Lines) -> Any:
    """Return a logger whose methods take an event's name and its facts as keywords."""
    encode = json.JSONEncoder(default=repr).encode  # made once: making it costs as much as a line
    return structlog.wrap_logger(
        structlog.WriteLogger(stream),  # type: ignore[arg-type]
        processors=[
            lambda _logger, _method, event: redact_data(event),  # before what holds no secret
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            lambda _logger, _method, event: encode(event),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=True,
    ).bind()


class ToJson(logging.Handler):
    """Carries what a library logs by itself, such as uvicorn, into our log."""

    def __init__(self, log: Any) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        error = record.exc_info[1] if record.exc_info else None
        facts = {} if error is None else place_of(error)
        self._log.log(record.levelno, record.getMessage(), logger=record.name, **facts)


def place_of(error: BaseException) -> dict[str, Any]:
    """Return what an error is and where it was raised, without its message.

    The message of a stranger's error may repeat what the client sent.
    """
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    return {
        "error": type(error).__name__,
        "at": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }
