"""Page of a rehearsal: the injected fault, the rollout's reaction, and the evidence."""

import base64
import math
from collections.abc import Mapping
from html import escape

from sluice.base.home import Home
from sluice.findings.catalogue import find_fault
from sluice.rehearsal.faults import FAULT_NAMES, InjectedFault
from sluice.rehearsal.plots import evidence_png, share_png
from sluice.rehearsal.result import Rehearsal
from sluice.rehearsal.served_steps import served_steps
from sluice.reports.folder import SavedPage, save_page
from sluice.reports.page import Tone, html_page, table, tag
from sluice.rollout.guards import GUARD_LABELS, format_evidence
from sluice.rollout.state import GuardReading, TransitionOutcome

_STYLE = "img{max-width:100%;height:auto;background:#fff;border-radius:6px}.tag{white-space:nowrap}"

FAULT_DESCRIPTIONS: dict[InjectedFault, str] = {
    "none": "Nothing is wrong with the challenger.",
    "errors": "The challenger raises an error on a fifth of the inputs.",
    "latency": "The challenger takes a tenth of a second longer for each answer.",
    "nan": "The challenger predicts NaN for a fifth of the inputs.",
    "drift": "The challenger's live predictions are shifted; on held-out rows they were not.",
    "quality": "The challenger predicts worse, on held-out rows too; only labels can show it.",
    "crash": "The challenger's process crashes with a segmentation fault on some inputs.",
    "no_traffic": "No user sends a request.",
}
_OUTCOME_TONES: dict[TransitionOutcome, Tone] = {
    "advance": "good",
    "promote": "good",
    "inconclusive": "unsure",
    "pause": "unsure",
    "roll_back": "bad",
    "abort": "bad",
}


def save_rehearsal(rehearsal: Rehearsal, *, home: Home, environ: Mapping[str, str]) -> SavedPage:
    """Save the rehearsal's page with the other reports."""
    name = f"rehearsals/{rehearsal.model}/{rehearsal.fault}"
    return save_page(rehearsal_page(rehearsal), name, home=home, environ=environ)


def rehearsal_page(rehearsal: Rehearsal) -> str:
    """Return the HTML document."""
    heading = f"Rollout rehearsal of {rehearsal.model}: {rehearsal.fault}"
    tone: Tone = "good" if rehearsal.is_as_expected else "bad"
    verdict = "as expected" if rehearsal.is_as_expected else "not as expected"
    deviations = "".join(f"<p>{escape(text)}</p>" for text in rehearsal.deviations)
    remedy = f"<p>What to do: {escape(rehearsal.remedy)}</p>" if rehearsal.remedy else ""
    sections = [
        f"<h1>{escape(heading)} {tag(verdict, tone)}</h1>",
        f'<p class="soft">{rehearsal.started_at:%Y-%m-%d %H:%M:%S} UTC, seed {rehearsal.seed}; '
        f"{rehearsal.held_out_rows:,} held-out rows as live traffic to a real server. The "
        f"challenger is a clone of version {rehearsal.version}; the real registry was only read."
        "</p>",
        f'<div class="card {tone}"><p><b>{escape(rehearsal.summary)}</b></p>'
        f"<p>{escape(FAULT_DESCRIPTIONS[rehearsal.fault])}</p><p>{escape(rehearsal.reason)}</p>"
        f"{_explanation(rehearsal.fault)}"
        f"{deviations}{remedy}</div>",
        "<h2>Traffic split</h2>",
        _image(share_png(rehearsal), "share of the challenger over time"),
        f'<div class="card">{_steps(rehearsal)}</div>',
    ]
    if rehearsal.samples:
        sections += [
            "<h2>Evidence</h2>",
            _image(evidence_png(rehearsal), "evidence of each guard over time"),
        ]
    sections += [
        "<h2>Transitions</h2>",
        f'<div class="card">{_transitions(rehearsal)}</div>',
    ]
    if rehearsal.problems:
        note = "".join(f"<p>{escape(problem)}</p>" for problem in rehearsal.problems)
        sections += [
            "<h2>Problems that the server reported</h2>",
            f'<div class="card unsure">{note}</div>',
        ]
    return html_page(heading, "\n".join(sections), style=_STYLE)


def _transitions(rehearsal: Rehearsal) -> str:
    started_at = rehearsal.transitions[0].at
    rows = []
    for transition in rehearsal.transitions:
        outcome = transition.outcome.replace("_", " ")
        counts = transition.window
        requests = "" if counts is None else f"{counts.challenger.requests:,}"
        rows.append(
            [
                f"{(transition.at - started_at).total_seconds():.1f}",
                tag(outcome, _OUTCOME_TONES.get(transition.outcome, "plain")),
                f"{100 * transition.rollout.users_share:g} %",
                requests,
                escape(transition.reason),
            ]
        )
    headings = ("time [s]", "outcome", "share of users after", "challenger's requests", "reason")
    return table(headings, rows, numbers=frozenset({0, 2, 3}))


def _steps(rehearsal: Rehearsal) -> str:
    """Show the planned and the served share of each step, and its requests."""
    steps = served_steps(rehearsal.transitions)
    if not steps:
        return "<p>No step ended, because no request was counted.</p>"
    rows = [
        [
            f"{step.number}",
            f"{100 * step.share:g} %",
            f"{100 * step.served_share:.3g} %" if math.isfinite(step.served_share) else "-",
            f"{step.challenger_requests:,}",
            f"{step.production_requests:,}",
            f"{(step.until - step.since).total_seconds():.1f}",
            _describe_reading(step.strongest_reading),
            tag(step.outcome.replace("_", " "), _OUTCOME_TONES.get(step.outcome, "plain")),
        ]
        for step in steps
    ]
    headings = (
        "step",
        "planned share",
        "served share",
        "requests of the challenger",
        "requests of production",
        "duration [s]",
        "strongest evidence",
        "outcome",
    )
    note = (
        '<p class="soft">Served share: share of the users\' requests that the challenger answered. '
        "At 0 % only production answers users, at 100 % only the challenger. The other arm then "
        "gets shadow requests, which its column counts.</p>"
    )
    return table(headings, rows, numbers=frozenset(range(6))) + note


def _describe_reading(reading: GuardReading | None) -> str:
    if reading is None:
        return "-"
    evidence = f"{format_evidence(reading.evidence)} of {format_evidence(reading.limit)}"
    return f"{escape(GUARD_LABELS[reading.guard])}: {evidence}"


def _image(png: bytes, alt: str) -> str:
    content = base64.b64encode(png).decode()
    return (
        f'<div class="card"><img alt="{escape(alt)}" src="data:image/png;base64,{content}"></div>'
    )


def _explanation(fault: InjectedFault) -> str:
    """Return a line with the name of the fault and the command that explains it; "" without one."""
    if fault not in FAULT_NAMES:
        return ""
    entry = find_fault(FAULT_NAMES[fault])
    return f'<p class="soft">{escape(entry.name)}: {escape(entry.explain_command)}</p>'
