"""Data Docs: an HTML page with the results of an expectation suite on one table.

Great Expectations renders the section of each column. The page that it would generate needs a
network connection, so this module generates the page layout, the style and the list of failed
expectations.
"""

from html import escape

from sluice.checks.expectations import TableValidation, engine_sections
from sluice.checks.suite_report import ExpectationResult, ExpectationSuiteReport, columns_of
from sluice.reports.page import Tone, html_page, table, tag

_TONES: dict[str, Tone] = {"pass": "good", "fail": "bad", "unmeasurable": "unsure"}
_OUTCOME_TEXTS = {"pass": "passed", "fail": "failed", "unmeasurable": "could not be measured"}

_STYLE = """
.card table{width:auto}
.card th,.card td{padding-right:28px}
.ge-section{background:var(--card);border:1px solid var(--line);border-radius:8px;
padding:12px 18px;margin:10px 0;overflow-x:auto}
.ge-section table{table-layout:auto}
.ge-section .table>thead>tr>th:first-child,.ge-section .table>tbody>tr>td:first-child{width:58px}
.ge-section .table>thead>tr>th:nth-child(3),.ge-section .table>tbody>tr>td:nth-child(3)
{width:220px}
.ge-section .table-bordered{width:auto;margin-top:8px;background:var(--mark);border-radius:6px}
.ge-section .table-bordered th,.ge-section .table-bordered td{padding:3px 14px}
.ge-section br+br{display:none}
.badge{background:var(--mark);border-radius:4px;padding:1px 5px;font-size:13px}
.fas{font-style:normal;font-weight:700}
.text-success{color:var(--good)}
.text-danger{color:var(--bad)}
.text-warning{color:var(--unsure)}
.fa-check-circle::before{content:"\\2713"}
.fa-times::before{content:"\\2717"}
.fa-exclamation-triangle::before{content:"?"}
"""


def expectations_page(validation: TableValidation, *, title: str, digest: str) -> str:
    """Return the HTML page. Equal tables and suites give identical bytes.

    Args:
        validation: Validation result.
        title: Title, such as 'sp500_volatility / features'.
        digest: Digest of the table's content.
    """
    report = validation.report
    columns = dict.fromkeys(c for r in report.results for c in columns_of(r.expectation))
    sections = (
        engine_sections(validation.engine_result, list(columns))
        if validation.engine_result is not None
        else '<p class="soft">No expectation could be measured.</p>'
    )
    body = "\n".join(
        [
            *_heading_section(report, title=title, digest=digest),
            *_problem_section(report),
            "<h2>All measured expectations</h2>",
            '<p class="soft">As reported by Great Expectations.</p>',
            sections,
        ]
    )
    return html_page(f"Expectations: {title}", body, style=_STYLE)


def _heading_section(report: ExpectationSuiteReport, *, title: str, digest: str) -> list[str]:
    num_passed = len(report.results) - len(report.problems)
    return [
        f"<h1>Expectations of {escape(title)}</h1>",
        f"<p>{tag(_OUTCOME_TEXTS[report.outcome], _TONES[report.outcome])} "
        f"{num_passed} of {len(report.results)} expectations pass on {report.num_rows:,} rows.</p>",
        f'<p class="soft">Suite <code>{escape(report.suite)}</code>, '
        f"table <code>{escape(digest[:12])}</code></p>",
    ]


def _problem_section(report: ExpectationSuiteReport) -> list[str]:
    if not report.problems:
        return []
    sentences_by_reason: dict[str, list[str]] = {}
    for problem in report.problems:
        if problem.outcome == "unmeasurable":
            sentences_by_reason.setdefault(problem.message, []).append(problem.sentence)
    return [
        "<h2>Expectations that did not pass</h2>",
        *(_failed_card(problem) for problem in report.problems if problem.outcome == "fail"),
        *(_unmeasured_card(reason, sentences) for reason, sentences in sentences_by_reason.items()),
    ]


def _failed_card(result: ExpectationResult) -> str:
    origin = (
        '<p class="soft">Another expectation on this column skips missing values and therefore '
        "implies this expectation.</p>"
        if result.implied
        else ""
    )
    return (
        f'<div class="card bad"><h3>{escape(result.sentence)} {tag("failed", "bad")}</h3>'
        f"<p>{_observation_html(result)}</p>{origin}{_examples_html(result)}</div>"
    )


def _unmeasured_card(reason: str, sentences: list[str]) -> str:
    """Return one card for all expectations with the same reason, such as a missing column."""
    return (
        f'<div class="card unsure"><h3>{escape(reason)} '
        f"{tag('could not be measured', 'unsure')}</h3>"
        f"<p>{'<br>'.join(map(escape, sentences))}</p></div>"
    )


def _observation_html(result: ExpectationResult) -> str:
    if not result.examples:
        return escape(result.message)
    return (
        f"{result.num_bad:,} of {result.num_rows:,} rows violate the expectation "
        f"({result.bad_rate:.2%})."
    )


def _examples_html(result: ExpectationResult) -> str:
    if not result.examples:
        return ""
    rows = [[escape(row.label), f"{row.position:,}", escape(row.value)] for row in result.examples]
    note = "" if result.num_bad <= len(rows) else f'<p class="soft">The first {len(rows)}:</p>'
    return note + table(
        ["row", "position (from 0)", " and ".join(columns_of(result.expectation))],
        rows,
        numbers=frozenset({1}),
    )
