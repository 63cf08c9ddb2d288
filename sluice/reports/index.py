"""Index page of the reports: lists every report in the folder, newest first."""

import html
import re
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from pydantic import Field

from sluice.base.pluralize import pluralize
from sluice.base.settings import Record
from sluice.reports.page import Tone, first_tag, html_page, table, tag

_STYLE = """.part{white-space:nowrap}
@media(min-width:700px){td:first-child{white-space:nowrap}}
@media(max-width:699px){th:nth-child(4),td:nth-child(4){display:none}
.tag{white-space:normal;padding:1px 7px;font-size:12px}}
"""
_MAX_PAGES = 500
"""Maximum number of reports that the index lists."""
_MAX_HEAD_BYTES = 16_384
"""Length of the beginning of a page that is searched for title and outcome [bytes]."""


class ReportEntry(Record):
    """One report in the folder."""

    path: str = Field(description="Path inside the folder, with '/'.")
    title: str = Field(description="Content of <title>, or the path.")
    outcome: str = Field(
        "",
        description="Text of the first tag (coloured label) before any section, such as "
        "'all passed'.",
    )
    tone: Tone = "plain"
    modified_at: float = Field(description="Time of the last modification [s since 1970].")


def list_pages(folder: Path) -> list[ReportEntry]:
    """Return all reports, newest first; a folder with an ``index.html`` is one report."""
    return sorted(_find_reports(folder, folder), key=lambda page: (-page.modified_at, page.path))


def index_page(folder: Path) -> str:
    """Return the HTML index. It lists the newest 500 reports, and the number of older reports."""
    pages = list_pages(folder)
    newest_pages = pages[:_MAX_PAGES]
    rows = [
        [
            _format_time(page.modified_at),
            f'<a href="/{quote(page.path)}">{html.escape(page.title)}</a>',
            tag(page.outcome, page.tone) if page.outcome else "",
            f'<span class="soft">{html.escape(page.path)}</span>',
        ]
        for page in newest_pages
    ]
    num_older = len(pages) - len(newest_pages)
    body = [
        "<h1>Reports</h1>",
        f'<p class="soft">Newest first, in {html.escape(str(folder))}</p>',
        f'<div class="card">{table(["written [UTC]", "report", "outcome", "file"], rows)}</div>'
        if rows
        else "<p>There are no reports yet. 'sluice run' and the asset checks of the Dagster UI "
        "write them.</p>",
        f'<p class="soft">and {pluralize(num_older, "older report")}</p>' if num_older else "",
    ]
    return html_page("Reports", "\n".join(body), style=_STYLE)


def _format_time(seconds: float) -> str:
    """Return a time in UTC as HTML; a line may break only between date and time of day."""
    date, time_of_day = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}".split()
    return f'<span class="part">{date}</span> <span class="part">{time_of_day}</span>'


def _find_reports(folder: Path, root: Path) -> list[ReportEntry]:
    """Return the entries of the reports in a folder and its subfolders."""
    try:
        entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    except OSError:  # missing or not readable
        return []
    index_file = folder / "index.html"
    if folder != root and index_file in entries:
        return _read_entry(index_file, f"{folder.relative_to(root).as_posix()}/")
    reports = []
    for entry in entries:
        if entry.is_symlink():
            continue
        if entry.is_dir():
            reports += _find_reports(entry, root)
        elif entry.suffix == ".html":
            reports += _read_entry(entry, entry.relative_to(root).as_posix())
    return reports


def _read_entry(path: Path, link: str) -> list[ReportEntry]:
    """Return a list with the entry of one report; an empty list if the file cannot be read."""
    try:
        with path.open("rb") as file:
            page_start = file.read(_MAX_HEAD_BYTES).decode(errors="replace")
        modified_at = path.stat().st_mtime
    except OSError:  # removed after the folder was listed
        return []
    title = re.search(r"<title[^>]*>(.*?)</title>", page_start, re.DOTALL | re.IGNORECASE)
    text = " ".join(html.unescape(title[1]).split()) if title else ""
    outcome, tone = first_tag(page_start)
    return [
        ReportEntry(
            path=link, title=text or link, outcome=outcome, tone=tone, modified_at=modified_at
        )
    ]
