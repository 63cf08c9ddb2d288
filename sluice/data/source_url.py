"""The URL of a source in settings: its password stands in an environment variable.

Settings are stored in the lineage of every model and shown in messages, so they never hold a
password. ``${NAME}`` in a URL is replaced when rows are read, and nowhere kept.
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
            "settings are stored with every model, so no password may stand in them: put it into "
            "an environment variable NAME and write ${NAME} in its place"
        )
    return url


# Masked before it is refused, because the error repeats the value that was refused.
SourceUrl = Annotated[str, AfterValidator(_refuse_credential), BeforeValidator(_mask)]


def resolve(url: str, environ: Mapping[str, str]) -> str:
    """Return ``url`` with the value of every ``${NAME}`` in it.

    A value in the place of the user or the password is taken as it is and encoded here; one that
    stands anywhere else, or is the whole URL, must be written as in a URL.

    Raises:
        SourceError: A variable is not set, or is empty; names it.
    """
    login = _LOGIN.match(url)
    login_end = login.end() if login else 0

    def value(match: re.Match[str]) -> str:
        found = environ.get(match[1])
        if not found:
            raise _not_set(url, match[1], environ)
        return quote(found, safe="") if match.start() < login_end else found

    return _VARIABLE.sub(value, url)


def hide(text: str, url: str, environ: Mapping[str, str]) -> str:
    """Return ``text`` without credentials, and with ``url``'s variables in place of values."""
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
        cause="It is read where the rows are read: in the process of the asset or the command.",
        fix=f"Set {name} there, or correct its name in 'url'.",
    )
