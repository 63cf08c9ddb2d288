"""URLs of sources in settings, with passwords in environment variables.

Settings are stored in the lineage of every model and shown in messages, so they must not contain
passwords. ``${NAME}`` in a URL is replaced when rows are read, and the result is never stored.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import AfterValidator, BeforeValidator

from sluice.base.errors import SourceError
from sluice.base.redaction import has_credential, redact
from sluice.data.validation import nearest_name

_VARIABLE = re.compile(r"\$\{(\w*)\}")
_LOGIN = re.compile(r"^[^:/]+://[^:/]*(?::(?P<password>[^@]*))?@")


def _mask(url: Any) -> Any:
    return redact(url) if isinstance(url, str) else url


def _refuse_credential(url: str) -> str:
    if has_credential(url):
        raise ValueError(
            "settings are stored with every model and must not contain a password: put it into "
            "an environment variable NAME and write ${NAME} in its place"
        )
    return url


# Masked before validation, because the error message repeats the rejected value.
SourceUrl = Annotated[str, AfterValidator(_refuse_credential), BeforeValidator(_mask)]


def resolve(url: str, environ: Mapping[str, str]) -> str:
    """Return ``url`` with every ``${NAME}`` replaced by its value.

    The value of a user or password is URL-encoded here; a value at any other position, or of the
    whole URL, must already be encoded.

    Raises:
        SourceError: A variable is not set or empty; the message names it.
    """
    login = _LOGIN.match(url)
    login_end = login.end() if login else 0

    def value(match: re.Match[str]) -> str:
        found = environ.get(match[1])
        if not found:
            raise _not_set(url, match[1], environ)
        return quote(found, safe="") if match.start() < login_end else found

    return _VARIABLE.sub(value, url)


def hide_secrets(text: str, url: str, environ: Mapping[str, str]) -> str:
    """Return ``text`` without credentials, with the values of ``url``'s variables replaced."""
    names = {name for name in _VARIABLE.findall(url) if environ.get(name)}
    for name in sorted(names, key=lambda name: -len(environ[name])):
        for value in (environ[name], quote(environ[name], safe="")):
            text = text.replace(value, f"${{{name}}}")
    return redact(text)


def _not_set(url: str, name: str, environ: Mapping[str, str]) -> SourceError:
    near = nearest_name(name, list(environ))
    hint = f" Did you mean '{near}'?" if near and near != name else ""
    seen = "is empty" if name in environ else "is not set"
    return SourceError(
        f"The url {url} needs the environment variable '{name}', which {seen}.{hint}",
        cause="Variables are read in the process that loads the rows: that of the asset or the "
        "command.",
        fix=f"Set {name} in that process, or correct its name in 'url'.",
    )
