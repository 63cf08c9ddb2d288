"""All suites of one candidate as one page for people: guards, counts, rows to look at."""

import base64
import math
from html import escape

from sluice.base.digests import short
from sluice.evaluation.suites.hard_rows import standout_words
from sluice.evaluation.suites.plots import changes_png, rows_png
from sluice.evaluation.suites.result import (
    CHANGES,
    Change,
    RowResult,
    SuiteReport,
    SuiteResult,
)
from sluice.evaluation.suites.suite import origin_words
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
_MOST_LABELS = 12
_FEWEST_DRAWN = 5
"""Fewer rows are read faster in the table [rows]."""


def suites_page(report: SuiteReport, *, title: str, examples: int) -> str:
    """Return the whole document.

    Args:
        report: What is shown.
        title: Plain text, such as the pipeline's name.
        examples: Rows to show of each suite, at most.
    """
    heading = f"Regression suites of {title}"
    outcome = "no guard" if not report.guards else f"guards: {report.outcome}"
    tone = "plain" if not report.guards else _GUARD_TONE[report.outcome]
    parts = [
        f"<h1>{escape(heading)} {tag(outcome, tone)}</h1>",
        f'<p class="soft">Candidate {short(report.candidate)} against '
        f"{escape(short(report.reference))}. {escape(_rule(report))}</p>",
        *(
            f'<div class="card {_GUARD_TONE[guard.outcome]}">{tag(guard.outcome, tone)} '
            f"{escape(guard.reason)} {escape(guard.remedy)}</div>"
            for guard in report.guards
            for tone in [_GUARD_TONE[guard.outcome]]
        ),
    ]
    if report.results:
        parts += [
            f'<div class="card">{_overview(report)}</div>',
            _image(changes_png(report.results), "shares of fixed and broken rows by suite"),
        ]
    else:
        parts.append("<p>There is no suite yet.</p>")
    for result in report.results:
        parts += _suite(result, report, examples)
    return html_page(heading, "\n".join(parts), style=_STYLE)


def _rule(report: SuiteReport) -> str:
    if report.threshold is None:
        return "A row is wrong when at least half of the seeds make a mistake."
    return f"A row is wrong when its loss is above {report.threshold:.4g} {report.unit}."


def _overview(report: SuiteReport) -> str:
    rows = [
        [
            f"{escape(result.name)} v{result.version}",
            f"{len(result.rows)} of {result.num_rows}",
            *(str(result.count(change)) for change in CHANGES),
            _number(result.reference_loss),
            _number(result.candidate_loss),
            _number(result.baseline_loss),
            _gain(result),
        ]
        for result in report.results
    ]
    names = ["suite", "scored", *CHANGES, "reference", "candidate", "baseline", "gain"]
    return table(names, rows, numbers=frozenset(range(1, 9)))


def _gain(result: SuiteResult) -> str:
    gain = result.gain
    tones: dict[str, Tone] = {"BETTER": "good", "WORSE": "bad", "INCONCLUSIVE": "unsure"}
    bounds = f"{gain.low:.3g} to {gain.high:.3g}" if not gain.lacking else escape(gain.lacking)
    mark = tag(gain.outcome, tones[gain.outcome])
    return f'{_number(gain.gain)} {mark} <span class="soft">{bounds}</span>'


def _suite(result: SuiteResult, report: SuiteReport, examples: int) -> list[str]:
    parts = [
        f"<h2>{escape(result.name)} <span class=soft>version {result.version}, "
        f"{short(result.digest)}</span></h2>",
        f'<p class="soft">{escape(origin_words(result.origin))}</p>',
        f"<p>{escape(_suspects(result))}</p>",
        *(f'<div class="card unsure">{escape(what)}</div>' for what in result.lacking),
        *_missing(result),
    ]
    if not result.rows:
        return parts
    if len(result.rows) >= _FEWEST_DRAWN:
        drawn = rows_png(result, threshold=report.threshold, unit=report.unit)
        parts.append(_image(drawn, f"losses on the rows of {result.name}"))
    shown = result.examples(examples)
    names = ["row", "change", "suspect", "candidate", "reference", "baseline", "why"]
    lines = [_line(row) for row in shown]
    more = len(result.rows) - len(shown)
    parts.append(
        f'<div class="card">{table(names, lines, numbers=frozenset({3, 4, 5}))}'
        + (f'<p class="soft">and {more} more rows</p>' if more else "")
        + "</div>"
    )
    return parts


def _suspects(result: SuiteResult) -> str:
    model, data = result.suspects("model"), result.suspects("data")
    if not model + data:
        return "The candidate gets every scored row right." if result.rows else ""
    said = []
    if model:
        said.append(f"{model} say look at the model: something else gets them right.")
    if data:
        said.append(
            f"{data} say look at the data: no seed of either model and not the baseline gets them "
            "right. They may be measured wrongly, or be such that nothing could have known."
        )
    return f"Of {model + data} wrong rows, " + " ".join(said)


def _missing(result: SuiteResult) -> list[str]:
    told = (
        ("are not in the data any more", result.gone),
        ("are rows that the candidate was trained on, and were not scored", result.seen),
        ("are in no test window", result.unscored),
    )
    return [
        f'<p class="soft">{len(labels)} of {result.num_rows} {what}: '
        f"{escape(', '.join(_label(label) for label in labels[:_MOST_LABELS]))}"
        f"{', ...' if len(labels) > _MOST_LABELS else ''}</p>"
        for what, labels in told
        if labels
    ]


def _line(row: RowResult) -> list[str]:
    return [
        escape(_label(row.label)),
        tag(row.change, _CHANGE_TONE[row.change]),
        row.suspect if row.suspect != "none" else "",
        _number(row.candidate_loss),
        _number(row.reference_loss),
        _number(row.baseline_loss),
        escape(_why(row)),
    ]


def _why(row: RowResult) -> str:
    """Say why the row is here and what is unusual about it, once."""
    unusual = standout_words(row.standouts)
    return row.reason if unusual in row.reason else f"{row.reason}; {unusual}".removeprefix("; ")


def _label(label: str) -> str:
    """A day's midnight says nothing."""
    return label.removesuffix("T00:00:00")


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def _image(png: bytes, alt: str) -> str:
    content = base64.b64encode(png).decode()
    return f'<p><img alt="{escape(alt)}" src="data:image/png;base64,{content}"></p>'
