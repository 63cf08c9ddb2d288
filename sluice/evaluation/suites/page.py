"""Creates the HTML report of a candidate's regression suites: guards, counts and example rows."""

import base64
import math
from html import escape

from sluice.base.digests import short
from sluice.base.pluralize import pluralize
from sluice.evaluation.suites.hard_rows import describe_unusual_features
from sluice.evaluation.suites.plots import changes_png, rows_png
from sluice.evaluation.suites.result import (
    CHANGES,
    Change,
    RowResult,
    SuiteReport,
    SuiteResult,
)
from sluice.evaluation.suites.suite import describe_origin
from sluice.reports.page import Tone, html_page, table, tag
from sluice.verdicts.guard_outcome import GuardResult

_STYLE = """img{max-width:100%;height:auto;background:#fff;border-radius:6px}
td:first-child,.tag{white-space:nowrap}
"""
_GUARD_TONE: dict[GuardResult, Tone] = {"pass": "good", "fail": "bad", "insufficient": "unsure"}
_CHANGE_TONE: dict[Change, Tone] = {
    "fixed": "good",
    "broken": "bad",
    "still wrong": "unsure",
    "still right": "plain",
}
_MAX_LABELS = 12
"""Maximum number of row labels in a sentence."""
_MIN_PLOTTED_ROWS = 5
"""Minimum number of rows for a plot. Fewer rows are only listed in the table."""


def suites_page(report: SuiteReport, *, title: str, max_examples: int) -> str:
    """Return the HTML document.

    Args:
        report: Report of the suites.
        title: Title in plain text, such as the name of the pipeline.
        max_examples: Maximum number of rows to list for each suite.
    """
    heading = f"Regression suites of {title}"
    outcome = "no guards" if not report.guards else f"guards: {report.outcome}"
    tone = "plain" if not report.guards else _GUARD_TONE[report.outcome]
    sections = [
        f"<h1>{escape(heading)} {tag(outcome, tone)}</h1>",
        f'<p class="soft">Candidate {short(report.candidate)} against '
        f"{escape(short(report.reference))}. {escape(_describe_wrong_rows(report))}</p>",
        *(
            f'<div class="card {_GUARD_TONE[guard.outcome]}">{tag(guard.outcome, tone)} '
            f"{escape(guard.reason)} {escape(guard.remedy)}</div>"
            for guard in report.guards
            for tone in [_GUARD_TONE[guard.outcome]]
        ),
    ]
    if report.results:
        sections += [
            f'<div class="card">{_overview_table(report)}</div>',
            _image(changes_png(report.results), "shares of fixed and broken rows by suite"),
        ]
    else:
        sections.append("<p>No suites are defined.</p>")
    for result in report.results:
        sections += _suite_section(result, report, max_examples)
    return html_page(heading, "\n".join(sections), style=_STYLE)


def _describe_wrong_rows(report: SuiteReport) -> str:
    if report.threshold is None:
        return "A row is wrong if at least half of the seeds misclassify it."
    if not math.isfinite(report.threshold):
        return "Every row counts as wrong, because the reference has non-finite losses."
    return f"A row is wrong if its loss is above {report.threshold:.4g} {report.unit}."


def _overview_table(report: SuiteReport) -> str:
    rows = [
        [
            f"{escape(result.name)} v{result.version}",
            f"{len(result.rows)} of {result.num_rows}",
            *(str(result.count(change)) for change in CHANGES),
            _format_number(result.reference_loss),
            _format_number(result.candidate_loss),
            _format_number(result.baseline_loss),
            _gain_cell(result),
        ]
        for result in report.results
    ]
    losses = [f"{arm} loss" for arm in ("reference", "candidate", "baseline")]
    names = ["suite", "rows scored", *CHANGES, *losses, "gain"]
    return table(names, rows, numbers=frozenset(range(1, 9)))


def _gain_cell(result: SuiteResult) -> str:
    gain = result.gain
    tones: dict[str, Tone] = {"BETTER": "good", "WORSE": "bad", "INCONCLUSIVE": "unsure"}
    bounds = f"{gain.low:.3g} to {gain.high:.3g}" if not gain.lacking else escape(gain.lacking)
    outcome_tag = tag(gain.outcome, tones[gain.outcome])
    return f'{_format_number(gain.gain)} {outcome_tag} <span class="soft">{bounds}</span>'


def _suite_section(result: SuiteResult, report: SuiteReport, max_examples: int) -> list[str]:
    sections = [
        f"<h2>{escape(result.name)} <span class=soft>version {result.version}, "
        f"{short(result.digest)}</span></h2>",
        f'<p class="soft">{escape(describe_origin(result.origin))}</p>',
        f"<p>{escape(_describe_suspects(result))}</p>",
        *(f'<div class="card unsure">{escape(reason)}</div>' for reason in result.lacking),
        *_unscored_paragraphs(result),
    ]
    if not result.rows:
        return sections
    if len(result.rows) >= _MIN_PLOTTED_ROWS:
        png = rows_png(result, threshold=report.threshold, unit=report.unit)
        sections.append(_image(png, f"losses on the rows of {result.name}"))
    example_rows = result.examples(max_examples)
    # The example is in the last column, where a long text does not move the columns of numbers.
    example_column = ["example"] if any(row.description for row in example_rows) else []
    names = [
        "row",
        "change",
        "suspect",
        "candidate loss",
        "reference loss",
        "baseline loss",
        "reason",
        *example_column,
    ]
    table_rows = [
        [*_table_row(row), *([escape(row.description)] if example_column else [])]
        for row in example_rows
    ]
    num_omitted = len(result.rows) - len(example_rows)
    sections.append(
        f'<div class="card">{table(names, table_rows, numbers=frozenset({3, 4, 5}))}'
        + (f'<p class="soft">and {pluralize(num_omitted, "more row")}</p>' if num_omitted else "")
        + "</div>"
    )
    return sections


def _describe_suspects(result: SuiteResult) -> str:
    num_model, num_data = result.count_suspects("model"), result.count_suspects("data")
    if not num_model + num_data:
        return "The candidate is right on all scored rows." if result.rows else ""
    sentences = [f"The candidate is wrong on {pluralize(num_model + num_data, 'row')}."]
    if num_model:
        sentences.append(
            f"The model is suspected on {num_model} of these rows, because the baseline or a seed "
            "of either model is right on them."
        )
    if num_data:
        sentences.append(
            f"The data are suspected on {num_data} of these rows, because "
            f"{_describe_arms(result)} are wrong on them with all seeds. The rows may be measured "
            "incorrectly, be unpredictable, or require a model that is larger or trained for "
            "longer. If the training curves still improve, train for more epochs before you "
            "change the data."
        )
    return " ".join(sentences)


def _describe_arms(result: SuiteResult) -> str:
    """Return the names of the compared arms; without the reference if it is the baseline."""
    if all(row.reference_loss == row.baseline_loss for row in result.rows):
        return "the candidate and the baseline"
    return "the candidate, the reference and the baseline"


def _unscored_paragraphs(result: SuiteResult) -> list[str]:
    groups = (
        ("are no longer in the data", result.gone),
        ("are not scored, because the candidate was trained on them", result.seen),
        ("are not in a test window", result.unscored),
    )
    return [
        f'<p class="soft">{len(labels)} of {result.num_rows} rows {status}: '
        f"{escape(', '.join(_format_label(label) for label in labels[:_MAX_LABELS]))}"
        f"{', ...' if len(labels) > _MAX_LABELS else ''}</p>"
        for status, labels in groups
        if labels
    ]


def _table_row(row: RowResult) -> list[str]:
    return [
        escape(_format_label(row.label)),
        tag(row.change, _CHANGE_TONE[row.change]),
        row.suspect if row.suspect != "none" else "",
        _format_number(row.candidate_loss),
        _format_number(row.reference_loss),
        _format_number(row.baseline_loss),
        escape(_complete_reason(row)),
    ]


def _complete_reason(row: RowResult) -> str:
    """Return why a row is in the suite; append its unusual features if the text omits them."""
    unusual = describe_unusual_features(row.standouts)
    return row.reason if unusual in row.reason else f"{row.reason}; {unusual}".removeprefix("; ")


def _format_label(label: str) -> str:
    """Return a row label, without the time of day if it is midnight."""
    return label.removesuffix("T00:00:00")


def _format_number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def _image(png: bytes, alt: str) -> str:
    content = base64.b64encode(png).decode()
    return f'<p><img alt="{escape(alt)}" src="data:image/png;base64,{content}"></p>'
