"""Replaces credentials in text and in plain data by ``***``.

Recognized forms: the password in a URL, a token as the user of an http URL, secret parameters of a
URL or an ODBC string, ``key=value`` of libpq and of environments, quoted keys of JSON and of Python
mappings, HTTP headers, and command-line options. ``${NAME}`` is kept, because the name of an
environment variable is not a secret. Redaction is idempotent.
"""

import functools
import logging
import re
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "***"
"""Text that replaces a credential."""

_VARIABLE = re.compile(r"\$\{\w*\}")
"""Matches a reference to an environment variable."""
_PLACEHOLDERS = {"", MASK, "...", "None", "null", "True", "False", "true", "false", "TOKEN"}
"""Values that are used in place of a secret, and are not masked."""

_SECRET_NAME = (
    r"(?:[\w.-]*(?:password|passwd|passphrase|pwd|secret|secret[_-]key|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|account[_-]?key|signing[_-]?key|AWSAccessKeyId|access[_-]key[_-]id"
    r"|X-Amz-Signature|X-Amz-Credential)"
    r"|(?:[\w.-]*(?:access|auth|api|bearer|refresh|session|security|bot|hook)[_-]?)?token|sig"
    r"|(?-i:[A-Z][A-Z0-9_]*_TOKEN))"
)
"""Pattern of the names of secret parameters or keys, but not of 'pad_token' or 'num_tokens'."""

# Parts of the pattern of a URL. The first excludes schemes in which a number after the colon may
# be a port. The second excludes a port. The third matches a password.
_NOT_WEB_SCHEME = r"(?!https?:|ftp:|git:|ssh:|file:|s3:|gs:)"
_NOT_A_PORT = r"(?!\d{1,5}(?:[/?#]|$))"
_PASSWORD_TEXT = r'(?:(?!://)(?:\\.|[^\s"<>\\]))*'

_CREDENTIAL_FORMS = tuple(
    re.compile(rf"(?i){form}", re.MULTILINE)
    for form in (
        # A URL with a password, then an http URL with a token as the user. In http and similar
        # schemes, 'host:port/path@x' contains no password.
        rf"(?:(?<![a-z0-9+.-]){_NOT_WEB_SCHEME}[a-z][a-z0-9+.-]*://[^\s:/@?#\"<>]*:"
        rf"|(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://[^\s:/@?#\"<>]*:{_NOT_A_PORT})(?P<value>{_PASSWORD_TEXT})@",
        r"https?://(?P<value>[^\s:/@?#\"<>]+)@",
        # Quoted key and value.
        rf"(?<!\\)(?P<q>\\*[\"']){_SECRET_NAME}(?P=q)\s*[:,]\s*(?P<v>\\*[\"'])"
        r"(?P<value>(?:(?!(?P=v))(?:\\.|.))*)",
        # key='value' and key="value", then key=value, which extends to the end of the parameter.
        rf"(?<![\w.-]){_SECRET_NAME}(?:=|%3D)(?P<quote>['\"])(?P<value>(?:\\.|(?!(?P=quote)).)*)",
        rf"(?<![\w.-]){_SECRET_NAME}(?:=|%3D)(?P<value>(?:(?!%3B|%26)[^\s&;\"'<>])+)",
        # Keys of libpq, which allows spaces around the equals sign.
        r"(?<![\w.-])(?:ssl)?password\s+=\s*(?P<quote>')(?P<value>(?:\\.|[^'\\])*)",
        r"(?<![\w.-])(?:ssl)?password\s*=\s+(?P<value>[^\s'\"=]+)",
        # A line of YAML, two forms of HTTP headers, and an option of a command line.
        rf"^[ \t]*(?:- )?{_SECRET_NAME}:[ \t]+(?P<value>\S+)[ \t]*$",
        r"authorization[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|digest|token)\s+|(?=\S*\d))"
        r"(?P<value>[^\s\"',;]+)",
        r"(?<![\w.-])bearer\s+(?P<value>(?=\S*\d)[\w.~+/=-]{16,})",
        rf"(?<!\S)--?{_SECRET_NAME}\s+(?P<value>[^\s-]\S*)",
    )
)

_FORM_CHARACTER = re.compile(r"[:=%\s\"']")
"""Matches the characters of which every form of a credential contains at least one. A text without
these characters needs no slower search."""

_NON_SECRET_TYPES = (int, float, bool, type(None))
"""Types of values that cannot be secrets."""

_SECRET_KEY = re.compile(rf"(?i){_SECRET_NAME}")
_SECRET_OPTION = re.compile(rf"(?i)--?{_SECRET_NAME}")


def redact(text: str) -> str:
    """Return the text with ``***`` in place of every credential in it."""
    if _FORM_CHARACTER.search(text) is None:
        return text
    for form in _CREDENTIAL_FORMS:
        text = form.sub(_mask_value, text)
    return text


def has_credential(text: str) -> bool:
    """Return whether the text contains a credential, or the mask of a replaced credential."""
    return any(
        _is_secret(match["value"]) or match["value"] == MASK
        for form in _CREDENTIAL_FORMS
        for match in form.finditer(text)
    )


def redact_data(data: Any) -> Any:
    """Return plain data, such as parsed JSON, with masked credentials.

    Credentials are recognized in strings by their form, and in mappings by the key.
    """
    if isinstance(data, str):
        return redact(data)
    if isinstance(data, Mapping):
        return {
            key: value if type(value) in _NON_SECRET_TYPES else _redact_value(key, value)
            for key, value in data.items()
        }
    if isinstance(data, list | tuple):
        return type(data)(map(redact_data, data)) if type(data) in (list, tuple) else data
    return data


def _redact_value(key: Any, value: Any) -> Any:
    """Return the redacted value of a key; under the name of a secret, the whole text is masked."""
    if not isinstance(value, str):
        return redact_data(value)
    return MASK if _is_secret_key(str(key)) and _is_secret(value) else redact(value)


@functools.lru_cache(1024)
def _is_secret_key(key: str) -> bool:
    return _SECRET_KEY.fullmatch(key) is not None


def redact_command(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments of a command line with masked credentials."""
    redacted_arguments = [redact(argument) for argument in arguments]
    for index, argument in enumerate(arguments[:-1]):
        if _SECRET_OPTION.fullmatch(argument):
            redacted_arguments[index + 1] = MASK
    return tuple(redacted_arguments)


def redact_logs() -> None:
    """Redact all further log messages and tracebacks of this process."""
    make_record = logging.getLogRecordFactory()
    if getattr(make_record, "redacts", False):
        return

    def make_redacted_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make_record(*args, **kwargs)
        if isinstance(record.msg, str | BaseException):
            try:
                record.msg, record.args = redact(record.getMessage()), ()
            except (
                TypeError,
                ValueError,
            ):  # the logger itself reports an invalid format
                return record
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = redact("".join(traceback.format_exception(record.exc_info[1]))[:-1])
        return record

    make_redacted_record.redacts = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make_redacted_record)


def _mask_value(match: re.Match[str]) -> str:
    """Return the matched text with the mask in place of the value, unless it is a placeholder."""
    text = match[0]
    if not _is_secret(match["value"]):
        return text
    start, end = (position - match.start() for position in match.span("value"))
    return text[:start] + MASK + text[end:]


def _is_secret(value: str) -> bool:
    return _VARIABLE.sub("", value) not in _PLACEHOLDERS
