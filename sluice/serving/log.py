"""The server's log: one JSON object per line, without request data."""

import json
import logging
import traceback
from typing import Any, Protocol

import structlog

from sluice.base.redaction import redact_data

_MAX_FRAMES = 5
"""Maximum number of stack frames that are logged for an error, counted from the innermost frame."""


class LogStream(Protocol):
    """Target of a log: a text stream, or a ``LogWriter`` in front of one."""

    def write(self, text: str, /) -> int:
        """Write a line."""

    def flush(self) -> None:
        """Ensure that all lines are written."""


def json_log(stream: LogStream) -> Any:
    """Return a logger whose methods take the name of an event, and its fields as keywords."""
    # All lines share one encoder, because creating an encoder costs as much as encoding a line.
    encode = json.JSONEncoder(default=repr).encode
    return structlog.wrap_logger(
        structlog.WriteLogger(stream),  # type: ignore[arg-type]
        processors=[
            # Secrets are redacted before level and time are added, which contain no secrets.
            lambda _logger, _method, event: redact_data(event),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            lambda _logger, _method, event: encode(event),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=True,
    ).bind()


class JsonLogHandler(logging.Handler):
    """Forwards the log records of libraries, such as uvicorn, to the JSON log."""

    def __init__(self, log: Any) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        error = record.exc_info[1] if record.exc_info else None
        fields = {} if error is None else error_site(error)
        self._log.log(record.levelno, record.getMessage(), logger=record.name, **fields)


def error_site(error: BaseException) -> dict[str, Any]:
    """Return the type and location of an error, without its message.

    The message of an error in user code may repeat request data.
    """
    frames = traceback.extract_tb(error.__traceback__)[-_MAX_FRAMES:]
    return {
        "error": type(error).__name__,
        "at": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }
