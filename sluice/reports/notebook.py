"""HTML fragments that a notebook shows for a result, and whole pages inside a notebook.

A fragment inherits text color and background from the notebook, so it is readable in light and
dark themes. The colors that a fragment sets itself have enough contrast in both themes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from sluice.base.files import write_atomic
from sluice.reports.page import Tone

_STYLE = """
.sluice-result{font:14px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;
max-width:960px;overflow-x:auto}
.sluice-result p{margin:4px 0}
.sluice-result .soft{opacity:.7}
.sluice-result .pill{display:inline-block;border-radius:999px;padding:1px 10px;font-size:12px;
font-weight:600;color:#fff;background:#5b6675}
.sluice-result .pill.good{background:#1a7f4b}
.sluice-result .pill.bad{background:#b3261e}
.sluice-result .pill.unsure{background:#8a5a00}
.sluice-result .card{border:1px solid rgba(128,128,128,.35);border-left-width:4px;
border-radius:6px;padding:6px 12px;margin:8px 0}
.sluice-result .card.good{border-left-color:#1a7f4b}
.sluice-result .card.bad{border-left-color:#d0453b}
.sluice-result .card.unsure{border-left-color:#b7791f}
.sluice-result table{border-collapse:collapse;margin:6px 0;font-size:13px;border:0}
.sluice-result th,.sluice-result td{text-align:left;vertical-align:top;padding:3px 16px 3px 0;
border:0;border-bottom:1px solid rgba(128,128,128,.25);background:transparent;max-width:none;
white-space:normal}
.sluice-result th{opacity:.7;font-weight:600}
.sluice-result .number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.sluice-result summary{cursor:pointer;margin:6px 0}
"""


@dataclass(frozen=True, slots=True)
class HtmlPage:
    """Complete HTML document, which a notebook shows in a frame."""

    html: str
    height: int = 720
    """Height of the frame in a notebook [pixels]."""

    def save(self, path: Path | str) -> Path:
        """Write the document to a file, and return its path.

        Raises:
            StorageError: The file cannot be written.
        """
        file = Path(path)
        write_atomic(file, self.html.encode())
        return file

    def _repr_html_(self) -> str:
        # Scripts of the page run in a sandbox, without access to the notebook.
        return (
            f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts" '
            f'style="width:100%;height:{self.height}px;border:1px solid rgba(128,128,128,.35);'
            'border-radius:6px"></iframe>'
        )


def fragment(*parts: str) -> str:
    """Return the HTML of one result.

    Args:
        parts: HTML with escaped values; empty parts are omitted.
    """
    body = "\n".join(part for part in parts if part)
    return f'<div class="sluice-result"><style>{_STYLE}</style>\n{body}\n</div>'


def heading(text: str, outcome: str, tone: Tone) -> str:
    """Return the first line of a result: its name in bold, and its outcome in a pill."""
    return f"<p><b>{escape(text)}</b> {pill(outcome, tone)}</p>"


def pill(text: str, tone: Tone) -> str:
    """Return a short text in a colored pill."""
    return f'<span class="pill {tone}">{escape(text)}</span>'


def paragraph(text: str, *, soft: bool = False) -> str:
    """Return a paragraph of plain text; an empty text gives an empty string."""
    return f"<p{' class=soft' if soft else ''}>{escape(text)}</p>" if text else ""


def card(title: str, tone: Tone, lines: Sequence[tuple[str, str]]) -> str:
    """Return a box with a title and labelled lines, all in plain text; empty lines are omitted."""
    body = "".join(
        f'<p><span class="soft">{escape(label)}</span> {escape(text)}</p>'
        for label, text in lines
        if text
    )
    return f'<div class="card {tone}"><p><b>{escape(title)}</b></p>{body}</div>'


def details(summary: str, body: str) -> str:
    """Return a section that the reader can expand; an empty body gives an empty string."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>" if body else ""


def text_table(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: frozenset[int] = frozenset(),
) -> str:
    """Return a table of plain texts; an empty string if there are no rows.

    Args:
        names: Column names; all empty for a table without a head.
        rows: Cells of each row.
        numbers: Indices of the numeric columns, from 0.
    """
    if not rows:
        return ""

    def render_cells(tag_name: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag_name}{' class=number' if index in numbers else ''}>{escape(cell)}</{tag_name}>"
            for index, cell in enumerate(row)
        )

    head = f"<thead><tr>{render_cells('th', names)}</tr></thead>" if any(names) else ""
    body = "".join(f"<tr>{render_cells('td', row)}</tr>" for row in rows)
    return f"<table>{head}<tbody>{body}</tbody></table>"
