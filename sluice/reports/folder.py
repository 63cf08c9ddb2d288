"""Where pages for people are kept, and the address they are served at.

A page is one HTML file that needs nothing else. Its name ends in a digest of its bytes, so a link
in an old run's record still shows what that run saw, and building it again changes nothing.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from pydantic import Field

from sluice.base.files import write_atomic
from sluice.base.home import Home
from sluice.base.settings import Record

ADDRESS_VARIABLE = "SLUICE_REPORTS_URL"
DEFAULT_PORT = 3001
DEFAULT_ADDRESS = f"http://127.0.0.1:{DEFAULT_PORT}"
"""Where ``sluice dev`` serves the pages unless the port is taken or the variable says otherwise."""

_DIGEST_CHARACTERS = 12


class SavedPage(Record):
    """One page on disk, and where a browser finds it."""

    path: Path = Field(description="The file.")
    url: str = Field(description="Its address while 'sluice dev' runs.")


def reports_address(environ: Mapping[str, str]) -> str:
    """Return the address of the report server, without a slash at its end.

    It goes into records that outlive this process. ``sluice dev`` sets the variable for the runs
    it starts; other commands cannot know its port and assume the default.
    """
    return (environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS).rstrip("/")


def save_page(page: str, name: str, *, home: Home, environ: Mapping[str, str]) -> SavedPage:
    """Keep a page under ``SLUICE_HOME/reports``.

    Args:
        page: The whole HTML document.
        name: Folders and the file's stem, such as 'expectations/echo/features'.
        home: State folder.
        environ: May say where pages are served.

    Raises:
        StorageError: The folder cannot be written; nothing half-written is left.
    """
    content = page.encode()
    digest = hashlib.sha256(content).hexdigest()[:_DIGEST_CHARACTERS]
    place = f"{name}-{digest}.html"
    path = home.reports / place
    write_atomic(path, content)
    return SavedPage(path=path, url=f"{reports_address(environ)}/{quote(place)}")
