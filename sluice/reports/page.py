"""HTML building blocks of all reports. A report is self-contained and makes no requests."""

import base64
import hashlib
import re
from collections.abc import Sequence
from html import escape, unescape
from typing import Literal, cast

Tone = Literal["good", "bad", "unsure", "plain"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Content security policy of a report: it allows no requests, and no script except its own."""

_STYLE = """
:root{--ink:#1c2430;--soft:#5b6675;--line:#dde2e9;--page:#f6f7f9;--card:#fff;--mark:#eef1f5;
--good:#1a7f4b;--good-soft:#e3f4ea;--bad:#b3261e;--bad-soft:#fbe9e7;--unsure:#8a5a00;
--unsure-soft:#fdf1da;color-scheme:light dark}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#9aa5b4;--line:#333c48;
--page:#12161c;--card:#1a2029;--mark:#252d38;--good:#5fd396;--good-soft:#173325;--bad:#ff8a80;
--bad-soft:#3a1f1e;--unsure:#f2c063;--unsure-soft:#3a2e14}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,
"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1080px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:24px;line-height:1.25;margin:0 0 4px}
h2{font-size:18px;margin:34px 0 10px}
h3,h5,h6{font-size:15px;margin:0 0 6px}
p{margin:6px 0}
.soft{color:var(--soft)}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:14px 18px;
margin:10px 0;overflow-x:auto}
.card.bad{border-left:4px solid var(--bad)}
.card.unsure{border-left:4px solid var(--unsure)}
.card.good{border-left:4px solid var(--good)}
.tag{display:inline-block;border-radius:999px;padding:1px 10px;font-size:13px;font-weight:600;
white-space:nowrap;background:var(--mark);color:var(--soft)}
.tag.good{background:var(--good-soft);color:var(--good)}
.tag.bad{background:var(--bad-soft);color:var(--bad)}
.tag.unsure{background:var(--unsure-soft);color:var(--unsure)}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:6px 14px 6px 0;border-bottom:1px solid var(--line)}
th{font-size:13px;color:var(--soft);font-weight:600}
tr:last-child>td{border-bottom:0}
td.number,th.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
code{background:var(--mark);border-radius:4px;padding:1px 5px;font-size:13px}
a{color:inherit}
@media(max-width:699px){main{padding:20px 12px 40px}.card{padding:10px 12px}
th,td{padding-right:8px;font-size:14px}
table.wide thead{display:none}
table.wide,table.wide tbody,table.wide tr,table.wide td,table.wide td.number{display:block;
text-align:left}
table.wide tr{padding:6px 0;border-bottom:1px solid var(--line)}
table.wide tr:last-child{border-bottom:0}
table.wide td{padding:1px 0;border-bottom:0}
table.wide td:empty{display:none}
table.wide td[data-name]::before{content:attr(data-name) ": ";color:var(--soft)}}
"""

_MAX_PHONE_COLUMNS = 4
"""Maximum number of columns of a table that is shown as a table on a phone. A wider table is shown
with one line per cell."""


def html_page(title: str, body: str, *, style: str = "", script: str = "") -> str:
    """Return a complete HTML document.

    Args:
        title: Title as plain text, shown in the index of reports.
        body: HTML with escaped values.
        style: Additional CSS rules of the page.
        script: Script that runs at the end of the page. It must not contain untrusted text.
    """
    policy = _POLICY
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
        body += f"\n<script>{script}</script>"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n"
        f"<body><main>\n{body}\n</main></body>\n</html>\n"
    )


def tag(text: str, tone: Tone = "plain") -> str:
    """Return a short text in a colored pill."""
    return f'<span class="tag {tone}">{escape(text)}</span>'


def first_tag(page: str) -> tuple[str, Tone]:
    """Return text and tone of the first tag before any section, which is the outcome of a page.

    Without such a tag, the text is empty and the tone is "plain".

    Args:
        page: The HTML document, or its beginning.
    """
    head = re.split(r"<h2|<div|<table", page.partition("<main>")[2], maxsplit=1)[0]
    match = re.search(r'<span class="tag (good|bad|unsure|plain)">(.*?)</span>', head)
    return (unescape(match[2]), cast(Tone, match[1])) if match else ("", "plain")


def table(
    names: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: frozenset[int] = frozenset()
) -> str:
    """Return an HTML table. On a phone, a table with many columns has one line per cell.

    Args:
        names: Column names as plain text.
        rows: Cells of each row, as HTML with escaped values.
        numbers: Indices of the numeric columns, from 0.
    """
    is_wide = len(names) > _MAX_PHONE_COLUMNS

    def render_attributes(tag_name: str, index: int) -> str:
        number_class = " class=number" if index in numbers else ""
        has_name = is_wide and tag_name == "td" and names[index]
        return number_class + (f' data-name="{escape(names[index])}"' if has_name else "")

    def render_cells(tag_name: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag_name}{render_attributes(tag_name, index)}>{cell}</{tag_name}>"
            for index, cell in enumerate(row)
        )

    lines = [f"<tr>{render_cells('td', row)}</tr>" for row in rows]
    head = render_cells("th", [escape(name) for name in names])
    start = "<table class=wide>" if is_wide else "<table>"
    return f"{start}<thead><tr>{head}</tr></thead><tbody>\n{''.join(lines)}\n</tbody></table>"
