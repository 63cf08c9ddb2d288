"""Reports every link within the built site whose target does not exist.

Sphinx checks only references that Sphinx resolves. This extension also checks links in raw HTML,
pictures, generated API pages, the links of the theme, and files to download. Links to other sites
are not checked.
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
    """Links of one page, and the ids of elements in the page to which links can point."""

    links: tuple[str, ...]
    ids: frozenset[str]


class _PageParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        for name in ("href", "src"):
            if value := values.get(name):
                self.links.append(value)
        for name in ("id", *(["name"] if tag == "a" else [])):
            if value := values.get(name):
                self.ids.add(value)


def read_page(path: Path) -> Page:
    """Return the links and ids of an HTML file."""
    parser = _PageParser()
    parser.feed(path.read_text())
    return Page(tuple(parser.links), frozenset(parser.ids))


def find_broken_links(site: Path) -> Iterator[tuple[str, str, str]]:
    """Yield page, link and reason of every link within a site whose target does not exist."""
    pages = {path: read_page(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for link in sorted(set(page.links)):
            url = urlsplit(link)
            if url.scheme or url.netloc or link == "#":
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if not target.is_file():
                # All versions of the site share ``versions.js``, which is in the parent folder.
                if target != site.parent / "versions.js":
                    yield path.relative_to(site).as_posix(), link, "no such file"
            elif target in pages and unquote(url.fragment) not in {"", *pages[target].ids}:
                yield path.relative_to(site).as_posix(), link, "no such section"


def _report_broken_links(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.name == "html":
        for page, link, reason in find_broken_links(Path(app.outdir).resolve()):
            logger.warning("%s: link to %s: %s", page, link, reason)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("build-finished", _report_broken_links, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
