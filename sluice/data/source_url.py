"""URLs of sources, in which environment variables take the place of passwords.

Settings are stored in the lineage of every model and shown in messages, so they must not contain
passwords. Instead, a URL may contain ``${NAME}``, which is replaced when rows are read. The
replaced URL is never stored.
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
"""Matches a variable in a URL."""
_LOGIN = re.compile(r"^[^:/]+://[^:/]*(?::(?P<password>[^@]*))?@")


def _mask_credentials(url: Any) -> Any:
    return redact(url) if isinstance(url, str) else url


def _refuse_credential(url: str) -> str:
    if has_credential(url):
        raise ValueError(
            "settings are stored with every model and must not contain a password: put it into "
            "an environment variable NAME and write ${NAME} in its place"
        )
    return url


SourceUrl = Annotated[str, AfterValidator(_refuse_credential), BeforeValidator(_mask_credentials)]
"""URL without credentials. Credentials are masked before validation, because the error message
contains the rejected value."""


def resolve(url: str, environ: Mapping[str, str]) -> str:
    """Return ``url`` with every ``${NAME}`` replaced by the environment variable.

    The value of a user or password is URL-encoded by this function. A value at any other position,
    or of the whole URL, must already be encoded.

    Raises:
        SourceError: A variable is not set or empty; the message names it.
    """
    login = _LOGIN.match(url)
    login_end = login.end() if login else 0

    def replace_variable(match: re.Match[str]) -> str:
        value = environ.get(match[1])
        if not value:
            raise _missing_variable_error(url, match[1], environ)
        return quote(value, safe="") if match.start() < login_end else value

    return _VARIABLE.sub(replace_variable, url)


def hide_secrets(text: str, url: str, environ: Mapping[str, str]) -> str:
    """Return ``text`` without credentials and without the values of the variables in ``url``."""
    names = {name for name in _VARIABLE.findall(url) if environ.get(name)}
    for name in sorted(names, key=lambda name: -len(environ[name])):
        for value in (environ[name], quote(environ[name], safe="")):
            text = text.replace(value, f"${{{name}}}")
    return redact(text)


def _missing_variable_error(url: str, name: str, environ: Mapping[str, str]) -> SourceError:
    nearest = nearest_name(name, list(environ))
    hint = f" Did you mean '{nearest}'?" if nearest and nearest != name else ""
    state = "is empty" if name in environ else "is not set"
    return SourceError(
        f"The url {url} needs the environment variable '{name}', which {state}.{hint}",
        cause="Variables are read in the process that loads the rows: the process of the asset or "
        "of the command.",
        fix=f"Set {name} in that process, or correct its name in 'url'.",
    )
