"""A rehearsal as one page: what was planted, what the rollout did, and on what evidence."""

import base64
import math
from collections.abc import Mapping
from html import escape

from sluice.base.home import Home
from sluice.rehearsal.faults import Fault
from sluice.rehearsal.plots import evidence_png, share_png
from sluice.rehearsal.result import Rehearsal
from sluice.rehearsal.steps import served_steps
from sluice.reports.folder import SavedPage, save_page
from sluice.reports.page import Tone, html_page, table, tag
from sluice.rollout.guards import CALLED, amount
from sluice.rollout.state import GuardReading, Outcome

_STYLE = "img{max-width:100%;height:auto;background:#fff;border-radius:6px}.tag{white-space:nowrap}"

PLANTED: dict[Fault, str] = {
    "none": "Nothing is wrong with the challenger.",
    "errors": "The challenger raises an error on a fifth of the windows.",
    "latency": "The challenger takes a tenth of a second longer for each answer.",
    "nan": "The challenger answers NaN to a fifth of the windows.",
    "drift": "The challenger's live answers are shifted; on held-out rows they were not.",
    "quality": "The challenger answers worse, on held-out rows too; only labels can tell.",
    "crash": "The challenger's process crashes with a segmentation fault on some windows.",
    "silence": "No user sends a request.",
}
_TONE: dict[Outcome, Tone] = {
    "advance": "good",
    "promote": "good",
    "inconclusive": "unsure",
    "pause": "unsure",
    "roll_back": "bad",
    "abort": "bad",
}


def save_rehearsal(rehearsal: Rehearsal, *, home: Home, environ: Mapping[str, str]) -> SavedPage:
    """Keep the rehearsal's page with the other reports."""
    name = f"rehearsals/{rehearsal.model}/{rehearsal.fault}"
    return save_page(rehearsal_page(rehearsal), name, home=home, environ=environ)


def rehearsal_page(rehearsal: Rehearsal) -> str:
    """Return the whole document."""
    heading = f"Rollout rehearsal of {rehearsal.model}: {rehearsal.fault}"
    tone: Tone = "good" if rehearsal.as_expected else "bad"
    verdict = "as it should" if rehearsal.as_expected else "not as it should"
    flaws = "".join(f"<p>{escape(flaw)}</p>" for flaw in rehearsal.flaws)
    remedy = f'<p class="soft">{escape(rehearsal.remedy)}</p>' if rehearsal.remedy else ""
    parts = [
        f"<h1>{escape(heading)} {tag(verdict, tone)}</h1>",
        f'<p class="soft">{rehearsal.began_at:%Y-%m-%d %H:%M:%S} UTC, seed {rehearsal.seed}; '
        f"{rehearsal.held_out_rows:,} held-out rows as live traffic to a real server. The "
        f"challenger is a twin of version {rehearsal.version}; the real registry was only read."
        "</p>",
        f'<div class="card {tone}"><p><b>{escape(rehearsal.summary)}</b></p>'
        f"<p>{escape(PLANTED[rehearsal.fault])}</p><p>{escape(rehearsal.reason)}</p>"
        f"{remedy}{flaws}</div>",
        "<h2>Who got the traffic</h2>",
        _image(share_png(rehearsal), "share of the challenger over time"),
        f'<div class="card">{_steps(rehearsal)}</div>',
    ]
    if rehearsal.moments:
        parts += [
            "<h2>The evidence</h2>",
            _image(evidence_png(rehearsal), "evidence of each guard over time"),
        ]
    parts += [
        "<h2>What happened</h2>",
        f'<div class="card">{_story(rehearsal)}</div>',
    ]
    if rehearsal.problems:
        said = "".join(f"<p>{escape(problem)}</p>" for problem in rehearsal.problems)
        parts += ["<h2>What the server said</h2>", f'<div class="card unsure">{said}</div>']
    return html_page(heading, "\n".join(parts), style=_STYLE)


def _story(rehearsal: Rehearsal) -> str:
    began = rehearsal.transitions[0].at
    rows = []
    for transition in rehearsal.transitions:
        word = transition.outcome.replace("_", " ")
        counts = transition.window
        seen = "" if counts is None else f"{counts.challenger.requests:,}"
        rows.append(
            [
                f"{(transition.at - began).total_seconds():.1f}",
                tag(word, _TONE.get(transition.outcome, "plain")),
                f"{100 * transition.rollout.users_share:g} %",
                seen,
                escape(transition.reason),
            ]
        )
    names = ("s", "", "share after", "requests of it", "why")
    return table(names, rows, numbers=frozenset({0, 2, 3}))


def _steps(rehearsal: Rehearsal) -> str:
    """Show what share the challenger was served at each step, and on how many requests."""
    steps = served_steps(rehearsal.transitions)
    if not steps:
        return "<p>No step ended: no request was counted.</p>"
    rows = [
        [
            f"{step.number}",
            f"{100 * step.share:g} %",
            f"{100 * step.served:.3g} %" if math.isfinite(step.served) else "-",
            f"{step.challenger:,}",
            f"{step.production:,}",
            f"{(step.until - step.since).total_seconds():.1f}",
            _strongest(step.strongest),
            tag(step.outcome.replace("_", " "), _TONE.get(step.outcome, "plain")),
        ]
        for step in steps
    ]
    names = (
        "step",
        "planned",
        "served",
        "requests of the challenger",
        "of production",
        "s",
        "strongest evidence",
        "",
    )
    said = (
        '<p class="soft">Served: share of the users\' requests that the challenger answered. At '
        "0 % and at 100 % the arm that answers no user gets copies, which are counted as its "
        "requests.</p>"
    )
    return table(names, rows, numbers=frozenset(range(6))) + said


def _strongest(reading: GuardReading | None) -> str:
    if reading is None:
        return "-"
    limit = f"{amount(reading.evidence)} of {amount(reading.limit)}"
    return f"{escape(CALLED[reading.guard])}: {limit}"


def _image(png: bytes, what: str) -> str:
    content = base64.b64encode(png).decode()
    return (
        f'<div class="card"><img alt="{escape(what)}" src="data:image/png;base64,{content}"></div>'
    )
