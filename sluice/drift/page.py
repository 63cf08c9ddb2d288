"""HTML page of a drift report: drifted columns, distances, and columns that were not tested."""

import base64
import math
from html import escape

from sluice.base.digests import short
from sluice.base.pluralize import pluralize
from sluice.drift.plots import column_png, overview_png
from sluice.drift.reference import DriftReference
from sluice.drift.report import ColumnResult, DriftReport, DriftVerdict
from sluice.reports.page import Tone, html_page, table, tag

_TONE: dict[DriftVerdict, Tone] = {"DRIFT": "bad", "STABLE": "good", "INCONCLUSIVE": "unsure"}
_STYLE = (
    "img{max-width:100%;height:auto;background:#fff;border-radius:6px}"
    ".pair{display:grid;grid-template-columns:repeat(auto-fill,minmax(440px,1fr));gap:0 14px}"
)
_MAX_PLOTS = 8
"""Maximum number of columns with a plot."""
_STATISTIC_NAMES = {
    "psi": "PSI",
    "ks": "KS",
    "wasserstein": "Wasserstein",
    "chi_square": "chi-square",
    "missing": "missing",
}


def drift_page(report: DriftReport, reference: DriftReference, *, title: str) -> str:
    """Return the HTML document.

    Args:
        report: Drift report of a window.
        reference: Reference of the report.
        title: Title in plain text, such as the names of the two files.
    """
    heading, tone = f"Drift: {title}", _TONE[report.verdict]
    parts = [
        f"<h1>{escape(heading)} {tag(report.verdict, tone)}</h1>",
        f'<p class="soft">Window {escape(short(report.window))} of {report.num_rows:,} rows '
        f"compared with a reference of {report.reference_rows:,} rows. False alarm rate of all "
        f"tests together: at most {100 * report.alpha:.3g} % of windows.</p>",
        f'<div class="card {tone}"><p><b>{escape(report.reason)}</b></p>'
        f"<p>{escape(report.remedy)}</p></div>",
        "<h2>Drifted columns</h2>",
        _image(overview_png(report), "largest distance of each column"),
        _plots(report, reference),
        "<h2>All columns</h2>",
        f'<div class="card">{_column_table(report)}</div>',
        "<h2>Joint test of all columns</h2>",
        f'<div class="card">{_joint_paragraph(report)}</div>',
        _extra_columns(report),
        _excluded_columns_card(report),
        "<h2>How to read this</h2>",
        f'<div class="card">{_legend(report)}</div>',
    ]
    return html_page(heading, "\n".join(part for part in parts if part), style=_STYLE)


def _plots(report: DriftReport, reference: DriftReference) -> str:
    column_references = {column.name: column for column in reference.columns}
    # ``share`` has the share of each bin. It is empty if the column was not compared.
    plotted_columns = [
        result
        for result in report.drifted_columns
        if result.share and result.finding != "missing_values"
    ]
    if not plotted_columns:
        return ""
    images = [
        _image(column_png(result, column_references[result.column]), f"drift of {result.column}")
        for result in plotted_columns[:_MAX_PLOTS]
    ]
    num_hidden = len(plotted_columns) - len(images)
    note = f"The table contains {pluralize(num_hidden, 'more drifted column')}."
    note_html = f'<p class="soft">{note}</p>' if num_hidden else ""
    plots = f'<div class="pair">{"".join(images)}</div>'
    return f"<h2>Changes of the distributions</h2>\n{plots}{note_html}"


def _column_table(report: DriftReport) -> str:
    order: dict[DriftVerdict, int] = {"DRIFT": 0, "INCONCLUSIVE": 1, "STABLE": 2}
    ranked_results = sorted(
        report.columns,
        key=lambda c: (order[c.verdict], c.p_value if c.p_value >= 0 else -1.0),
    )
    names = (
        *("column", "verdict", "reason", "distances (threshold)", "adjusted p", "effect"),
        "missing values",
    )
    rows = [
        [
            escape(result.column),
            tag(result.verdict, _TONE[result.verdict]),
            escape(result.reason) + _new_categories(result),
            "<br>".join(
                f"{_STATISTIC_NAMES[s.name]} {_format_number(s.distance)} "
                f"({_format_number(s.threshold)})"
                for s in result.statistics
                if s.name != "mmd"
            ),
            _format_number(result.adjusted_p),
            _format_number(result.effect),
            f"{_format_rate(result.missing_rate)}<br>was "
            f"{_format_rate(result.reference_missing_rate)}",
        ]
        for result in ranked_results
    ]
    return table(names, rows, numbers=frozenset({3, 4, 5, 6}))


def _new_categories(result: ColumnResult) -> str:
    if not result.new_categories:
        return ""
    names = ", ".join(f"{name} ({rows})" for name, rows in result.new_categories.items())
    return f'<br><span class="soft">New categories (rows): {escape(names)}</span>'


def _joint_paragraph(report: DriftReport) -> str:
    joint = report.joint
    if joint is None:
        return "<p>The reference has one column.</p>"
    return f"<p>{tag(joint.verdict, _TONE[joint.verdict])} {escape(joint.reason)}</p>"


def _extra_columns(report: DriftReport) -> str:
    if not report.extra_columns:
        return ""
    names = ", ".join(report.extra_columns)
    return f'<p class="soft">Not in the reference and not tested: {escape(names)}.</p>'


def _excluded_columns_card(report: DriftReport) -> str:
    if not report.left_out:
        return ""
    return (
        f'<div class="card unsure"><p><b>{escape(report.left_out)}</b> Drift in the '
        "excluded columns is not detected. Raise drift.max_columns to compare more columns. Time "
        "and memory grow with the square of their number.</p></div>"
    )


def _legend(report: DriftReport) -> str:
    return (
        f"<p>Without drift, a single distance exceeds its threshold in {100 * report.alpha:.3g} % "
        "of windows of this size. Thresholds come from a block bootstrap of the reference, which "
        "preserves the dependence between rows. A column has one p-value, based on the smallest "
        "p-value of its distances. It is adjusted by Benjamini-Hochberg for the number of tests, "
        "and then determines the verdict.</p><p>Effect: Wasserstein distance in standard "
        "deviations of the reference, or Cohen's w for categories (0.1 small, 0.3 medium, 0.5 "
        "large).</p>"
    )


def _format_number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "-"


def _format_rate(value: float) -> str:
    return f"{100 * value:.3g} %" if math.isfinite(value) else "-"


def _image(png: bytes, what: str) -> str:
    content = base64.b64encode(png).decode()
    return (
        f'<div class="card"><img alt="{escape(what)}" src="data:image/png;base64,{content}"></div>'
    )
