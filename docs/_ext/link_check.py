"""Reports every link of the built site that leads nowhere, without the network.

Sphinx checks the references that it resolves itself. This also covers raw HTML, pictures, generated
API pages, the theme's own links, and files that a page wants its reader to download.
"""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)


class Page(NamedTuple):
    """Links and targets of one page."""

    links: tuple[str, ...]
    targets: frozenset[str]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.targets: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        for name in ("href", "src"):
            if value := values.get(name):
                self.links.append(value)
        for name in ("id", *(["name"] if tag == "a" else [])):
            if value := values.get(name):
                self.targets.add(value)


def read_page(path: Path) -> Page:
    """Return the links and targets of an HTML file."""
    reader = _Reader()
    reader.feed(path.read_text())
    return Page(tuple(reader.links), frozenset(reader.targets))


def broken_links(site: Path) -> Iterator[tuple[str, str, str]]:
    """Yield page, link and reason of every internal link that leads nowhere."""
    pages = {path: read_page(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for link in sorted(set(page.links)):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link == "#":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                # The list of versions is written beside the folder of this version.
                if target != site.parent / "versions.js":
                    yield path.relative_to(site).as_posix(), link, "no such file"
            elif target in pages and unquote(parts.fragment) not in {"", *pages[target].targets}:
                yield path.relative_to(site).as_posix(), link, "no such section"


def _finish(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.name == "html":
        for page, link, reason in broken_links(Path(app.outdir).resolve()):
            logger.warning("%s: link to %s: %s", page, link, reason)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("build-finished", _finish, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
