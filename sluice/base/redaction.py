"""Replaces credentials in text and in plain data by ``***``.

Recognized forms: the password in a URL, a token as the user of an http URL, secret parameters of a
URL or an ODBC string, ``key=value`` of libpq and of environments, quoted keys of JSON and of Python
mappings, HTTP headers, and command-line options. ``${NAME}`` refers to an environment variable, is
not a secret and is kept. Redaction is idempotent.
"""

import functools
import logging
import re
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "***"

_VARIABLE = re.compile(r"\$\{\w*\}")
_PLAIN = {"", MASK, "...", "None", "null", "True", "False", "true", "false", "TOKEN"}
"""Values that are not secrets."""

_NAME = (
    r"(?:[\w.-]*(?:password|passwd|passphrase|pwd|secret|secret[_-]key|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|account[_-]?key|signing[_-]?key|AWSAccessKeyId|access[_-]key[_-]id"
    r"|X-Amz-Signature|X-Amz-Credential)"
    r"|(?:[\w.-]*(?:access|auth|api|bearer|refresh|session|security|bot|hook)[_-]?)?token|sig"
    r"|(?-i:[A-Z][A-Z0-9_]*_TOKEN))"
)
"""Matches names of secret parameters or keys, but not 'pad_token' or 'num_tokens'."""

_DATABASE = r"(?!https?:|ftp:|git:|ssh:|file:|s3:|gs:)"
_PORT = r"(?!\d{1,5}(?:[/?#]|$))"
_TEXT = r'(?:(?!://)(?:\\.|[^\s"<>\\]))*'

_FORMS = tuple(
    re.compile(rf"(?i){form}", re.MULTILINE)
    for form in (
        # A URL with a password; for http and similar schemes, host:port/path@x has no password.
        rf"(?:(?<![a-z0-9+.-]){_DATABASE}[a-z][a-z0-9+.-]*://[^\s:/@?#\"<>]*:"
        rf"|(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://[^\s:/@?#\"<>]*:{_PORT})(?P<value>{_TEXT})@",
        r"https?://(?P<value>[^\s:/@?#\"<>]+)@",
        # Quoted key and value.
        rf"(?<!\\)(?P<q>\\*[\"']){_NAME}(?P=q)\s*[:,]\s*(?P<v>\\*[\"'])"
        r"(?P<value>(?:(?!(?P=v))(?:\\.|.))*)",
        # key='value', key="value" and key=value; the last extends to the end of the parameter.
        rf"(?<![\w.-]){_NAME}(?:=|%3D)(?P<quote>['\"])(?P<value>(?:\\.|(?!(?P=quote)).)*)",
        rf"(?<![\w.-]){_NAME}(?:=|%3D)(?P<value>(?:(?!%3B|%26)[^\s&;\"'<>])+)",
        # libpq allows spaces around the sign.
        r"(?<![\w.-])(?:ssl)?password\s+=\s*(?P<quote>')(?P<value>(?:\\.|[^'\\])*)",
        r"(?<![\w.-])(?:ssl)?password\s*=\s+(?P<value>[^\s'\"=]+)",
        # A line of YAML, and headers.
        rf"^[ \t]*(?:- )?{_NAME}:[ \t]+(?P<value>\S+)[ \t]*$",
        r"authorization[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|digest|token)\s+|(?=\S*\d))"
        r"(?P<value>[^\s\"',;]+)",
        r"(?<![\w.-])bearer\s+(?P<value>(?=\S*\d)[\w.~+/=-]{16,})",
        rf"(?<!\S)--?{_NAME}\s+(?P<value>[^\s-]\S*)",
    )
)

_SIGN = re.compile(r"[:=%\s\"']")
"""Characters of which every form contains at least one; most log messages contain none."""

_NUMBERS = (int, float, bool, type(None))

_KEY = re.compile(rf"(?i){_NAME}")
_OPTION = re.compile(rf"(?i)--?{_NAME}")


def redact(text: str) -> str:
    """Return the text with ``***`` in place of every credential in it."""
    if _SIGN.search(text) is None:
        return text
    for form in _FORMS:
        text = form.sub(_masked, text)
    return text


def has_credential(text: str) -> bool:
    """Return whether the text contains a credential, or the mask of a replaced one."""
    return any(
        _is_secret(found["value"]) or found["value"] == MASK
        for form in _FORMS
        for found in form.finditer(text)
    )


def redact_data(data: Any) -> Any:
    """Return plain data, as read from JSON, with credentials in strings and under keys masked."""
    if isinstance(data, str):
        return redact(data)
    if isinstance(data, Mapping):
        return {
            key: value if type(value) in _NUMBERS else _redact_under(key, value)
            for key, value in data.items()
        }
    if isinstance(data, list | tuple):
        return type(data)(map(redact_data, data)) if type(data) in (list, tuple) else data
    return data


def _redact_under(key: Any, value: Any) -> Any:
    if not isinstance(value, str):
        return redact_data(value)
    return MASK if _names_secret(str(key)) and _is_secret(value) else redact(value)


@functools.lru_cache(1024)
def _names_secret(key: str) -> bool:
    return _KEY.fullmatch(key) is not None


def redact_command(words: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments of a command line with credentials masked."""
    found = [redact(word) for word in words]
    for at, word in enumerate(words[:-1]):
        if _OPTION.fullmatch(word):
            found[at + 1] = MASK
    return tuple(found)


def redact_logs() -> None:
    """Redact all log messages and tracebacks of this process from now on."""
    make = logging.getLogRecordFactory()
    if getattr(make, "redacts", False):
        return

    def redacted(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        if isinstance(record.msg, str | BaseException):
            try:
                record.msg, record.args = redact(record.getMessage()), ()
            except (TypeError, ValueError):  # logging reports the error when it formats the message
                return record
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = redact("".join(traceback.format_exception(record.exc_info[1]))[:-1])
        return record

    redacted.redacts = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(redacted)


def _masked(match: re.Match[str]) -> str:
    text = match[0]
    if not _is_secret(match["value"]):
        return text
    start, end = (place - match.start() for place in match.span("value"))
    return text[:start] + MASK + text[end:]


def _is_secret(value: str) -> bool:
    return _VARIABLE.sub("", value) not in _PLAIN
