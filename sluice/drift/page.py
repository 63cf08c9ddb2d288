"""A look for drift as one page: what moved, how far, and what could not be looked at."""

import base64
import math
from html import escape

from sluice.base.digests import short
from sluice.drift.plots import column_png, overview_png
from sluice.drift.reference import DriftReference
from sluice.drift.report import ColumnResult, DriftReport, Verdict
from sluice.reports.page import Tone, html_page, table, tag

_TONE: dict[Verdict, Tone] = {"DRIFT": "bad", "STABLE": "good", "INCONCLUSIVE": "unsure"}
_STYLE = (
    "img{max-width:100%;height:auto;background:#fff;border-radius:6px}"
    ".pair{display:grid;grid-template-columns:repeat(auto-fill,minmax(440px,1fr));gap:0 14px}"
)
_PICTURES = 8
_NAMES = {
    "psi": "PSI",
    "ks": "KS",
    "wasserstein": "Wasserstein",
    "chi_square": "chi-square",
    "missing": "missing",
}


def drift_page(report: DriftReport, reference: DriftReference, *, title: str) -> str:
    """Return the whole document.

    Args:
        report: What was found.
        reference: What the window was judged against.
        title: Plain text, such as the names of the two files.
    """
    heading, tone = f"Drift: {title}", _TONE[report.verdict]
    parts = [
        f"<h1>{escape(heading)} {tag(report.verdict, tone)}</h1>",
        f'<p class="soft">Window {escape(short(report.window))} of {report.num_rows:,} rows '
        f"against a reference of {report.reference_rows:,}; false alarms at most "
        f"{100 * report.alpha:.3g} % of windows, all tests together.</p>",
        f'<div class="card {tone}"><p><b>{escape(report.reason)}</b></p>'
        f"<p>{escape(report.remedy)}</p></div>",
        "<h2>Which columns moved</h2>",
        _image(overview_png(report), "largest distance of each column"),
        _pictures(report, reference),
        "<h2>Every column</h2>",
        f'<div class="card">{_columns(report)}</div>',
        "<h2>All columns together</h2>",
        f'<div class="card">{_together(report)}</div>',
        _extra(report),
        _left_out(report),
        "<h2>How to read this</h2>",
        f'<div class="card">{_legend(report)}</div>',
    ]
    return html_page(heading, "\n".join(part for part in parts if part), style=_STYLE)


def _pictures(report: DriftReport, reference: DriftReference) -> str:
    of = {column.name: column for column in reference.columns}
    moved = [
        result for result in report.moved if result.share and result.finding != "missing_values"
    ]
    if not moved:
        return ""
    shown = [
        _image(column_png(result, of[result.column]), f"how {result.column} moved")
        for result in moved[:_PICTURES]
    ]
    hidden = len(moved) - len(shown)
    more = f'<p class="soft">{hidden} more that moved are in the table.</p>' if hidden else ""
    return f'<h2>How they moved</h2>\n<div class="pair">{"".join(shown)}</div>{more}'


def _columns(report: DriftReport) -> str:
    order: dict[Verdict, int] = {"DRIFT": 0, "INCONCLUSIVE": 1, "STABLE": 2}
    ranked = sorted(
        report.columns,
        key=lambda c: (order[c.verdict], c.p_value if c.p_value >= 0 else -1.0),
    )
    names = ("column", "", "why", "distances (expected at most)", "adjusted p", "effect", "missing")
    rows = [
        [
            escape(result.column),
            tag(result.verdict, _TONE[result.verdict]),
            escape(result.reason) + _new(result),
            "<br>".join(
                f"{_NAMES[s.name]} {_number(s.distance)} ({_number(s.threshold)})"
                for s in result.statistics
                if s.name != "mmd"
            ),
            _number(result.adjusted_p),
            _number(result.effect),
            f"{_rate(result.missing_rate)}<br>was {_rate(result.reference_missing_rate)}",
        ]
        for result in ranked
    ]
    return table(names, rows, numbers=frozenset({3, 4, 5, 6}))


def _new(result: ColumnResult) -> str:
    if not result.new_categories:
        return ""
    told = ", ".join(f"{name} ({rows})" for name, rows in result.new_categories.items())
    return f'<br><span class="soft">New categories (rows): {escape(told)}</span>'


def _together(report: DriftReport) -> str:
    joint = report.joint
    if joint is None:
        return "<p>The reference has one column.</p>"
    return f"<p>{tag(joint.verdict, _TONE[joint.verdict])} {escape(joint.reason)}</p>"


def _extra(report: DriftReport) -> str:
    if not report.extra_columns:
        return ""
    told = ", ".join(report.extra_columns)
    return f'<p class="soft">Not in the reference, so not looked at: {escape(told)}.</p>'


def _left_out(report: DriftReport) -> str:
    if not report.left_out:
        return ""
    return (
        f'<div class="card unsure"><p><b>{escape(report.left_out)}</b> Drift in a column that is '
        "left out is not seen here. A larger drift.max_columns compares more; time and memory grow "
        "with its square.</p></div>"
    )


def _legend(report: DriftReport) -> str:
    return (
        f"<p>A distance alone passes what is expected at most in {100 * report.alpha:.3g} % of "
        "windows of this size without drift: windows were drawn from the reference in blocks, so "
        "that rows depend on each other as they really do. A column's p-value is that of its most "
        "unlikely distance, and adjusted (Benjamini-Hochberg) for the number of columns; that "
        "one decides.</p><p>Effect: how far values moved on average in standard deviations of the "
        "reference, or Cohen's w for categories (0.1 small, 0.3 medium, 0.5 large).</p>"
    )


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "-"


def _rate(value: float) -> str:
    return f"{100 * value:.3g} %" if math.isfinite(value) else "-"


def _image(png: bytes, what: str) -> str:
    content = base64.b64encode(png).decode()
    return (
        f'<div class="card"><img alt="{escape(what)}" src="data:image/png;base64,{content}"></div>'
    )
