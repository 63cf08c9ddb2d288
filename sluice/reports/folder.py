"""Stores HTML reports and returns the URL at which they are served.

A report is a self-contained HTML file whose name ends with a digest of its content. A new report
therefore never replaces an older one, to which the record of an old run may link.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from pydantic import Field

from sluice.base.files import write_atomic
from sluice.base.home import Home
from sluice.base.settings import Record

URL_VARIABLE = "SLUICE_REPORTS_URL"
"""Environment variable with the URL of the report server."""
DEFAULT_PORT = 3001
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"
"""Default URL at which ``sluice dev`` serves reports. If its port is in use, the next port is
used."""

_NUM_DIGEST_CHARACTERS = 12
"""Number of characters of the digest in the name of a file."""


class SavedPage(Record):
    """A stored report: its file and URL."""

    path: Path = Field(description="Path of the file.")
    url: str = Field(description="URL of the report while 'sluice dev' runs.")


def reports_url(environ: Mapping[str, str]) -> str:
    """Return the URL of the report server without a trailing slash.

    ``sluice dev`` sets the variable for the runs that it starts. Other commands do not know the
    port of ``sluice dev``, and use the default URL.
    """
    return (environ.get(URL_VARIABLE) or DEFAULT_URL).rstrip("/")


def save_page(page: str, name: str, *, home: Home, environ: Mapping[str, str]) -> SavedPage:
    """Store a report under ``SLUICE_HOME/reports``.

    Args:
        page: The complete HTML document.
        name: Relative path without suffix, such as 'expectations/echo/features'.
        home: State folder.
        environ: Environment variables, which may contain the URL of the report server.

    Raises:
        StorageError: The folder cannot be written. No partial file is left.
    """
    content = page.encode()
    digest = hashlib.sha256(content).hexdigest()[:_NUM_DIGEST_CHARACTERS]
    file_name = f"{name}-{digest}.html"
    path = home.reports / file_name
    write_atomic(path, content)
    return SavedPage(path=path, url=f"{reports_url(environ)}/{quote(file_name)}")
