"""The first page of the reports: every page in the folder, newest first."""

import html
import re
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from pydantic import Field

from sluice.base.settings import Record
from sluice.reports.page import Tone, first_tag, html_page, table, tag

_MOST = 500
_HEAD_WITHIN = 16_384
"""Bytes at a page's start in which its title and its outcome are looked for."""


class Listed(Record):
    """One page of the folder."""

    place: str = Field(description="Path inside the folder, with '/'.")
    title: str = Field(description="What its <title> says, or the place.")
    outcome: str = Field("", description="Its first tag before any section, such as 'all hold'.")
    tone: Tone = "plain"
    written: float = Field(description="When it was last written [s since 1970].")


def list_pages(folder: Path) -> list[Listed]:
    """Return every page, newest first; a folder with an ``index.html`` is one page."""
    return sorted(_walk(folder, folder), key=lambda page: (-page.written, page.place))


def index_page(folder: Path) -> str:
    """Return the list as a page; beyond 500 the oldest are only counted."""
    pages = list_pages(folder)
    shown = pages[:_MOST]
    rows = [
        [
            f"{datetime.fromtimestamp(page.written):%Y-%m-%d&nbsp;%H:%M:%S}".replace(
                "-", "&#8209;"
            ),
            f'<a href="/{quote(page.place)}">{html.escape(page.title)}</a>',
            tag(page.outcome, page.tone) if page.outcome else "",
            f'<span class="soft">{html.escape(page.place)}</span>',
        ]
        for page in shown
    ]
    more = len(pages) - len(shown)
    body = [
        "<h1>Reports</h1>",
        f'<p class="soft">Newest first, in {html.escape(str(folder))}</p>',
        f'<div class="card">{table(["written", "report", "outcome", "file"], rows)}</div>'
        if rows
        else "<p>None yet. 'sluice run' and the asset checks of the Dagster UI write them.</p>",
        f'<p class="soft">and {more:,} older ones</p>' if more else "",
    ]
    return html_page("Reports", "\n".join(body))


def _walk(folder: Path, top: Path) -> list[Listed]:
    try:
        entries = [e for e in folder.iterdir() if not e.name.startswith(".")]
    except OSError:  # not there yet, or not ours to read
        return []
    index = folder / "index.html"
    if folder != top and index in entries:
        return _listed(index, f"{folder.relative_to(top).as_posix()}/")
    found = []
    for entry in entries:
        if entry.is_symlink():
            continue
        if entry.is_dir():
            found += _walk(entry, top)
        elif entry.suffix == ".html":
            found += _listed(entry, entry.relative_to(top).as_posix())
    return found


def _listed(path: Path, place: str) -> list[Listed]:
    try:
        with path.open("rb") as file:
            start = file.read(_HEAD_WITHIN).decode(errors="replace")
        written = path.stat().st_mtime
    except OSError:  # removed since the folder was read
        return []
    title = re.search(r"<title[^>]*>(.*?)</title>", start, re.DOTALL | re.IGNORECASE)
    text = " ".join(html.unescape(title[1]).split()) if title else ""
    outcome, tone = first_tag(start)
    return [Listed(place=place, title=text or place, outcome=outcome, tone=tone, written=written)]
