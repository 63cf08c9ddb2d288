"""What is known of drift of one model in production, as pages: all subjects, or one quantity."""

import base64
from html import escape

from sluice.drift.report import Verdict
from sluice.drift.watch import SUBJECTS, DriftWatch, Episode, SubjectWatch, WatchVerdict
from sluice.reports.page import Tone, html_page, table, tag

TONE: dict[WatchVerdict, Tone] = {
    "DRIFT": "bad",
    "STABLE": "good",
    "INCONCLUSIVE": "unsure",
    "WAITING": "plain",
}
_STYLE = ".tag{white-space:nowrap}"
_CURE = {
    "train": "The training job is started once for it.",
    "repair": "Training again would not mend it: somebody has to look.",
}


def watch_page(watch: DriftWatch) -> str:
    """Return the page of all subjects."""
    heading, tone = f"Drift: {watch.model} version {watch.version}", TONE[watch.verdict]
    parts = [
        f"<h1>{escape(heading)} {tag(watch.verdict, tone)}</h1>",
        f'<p class="soft">In production; looked at {watch.at:%Y-%m-%d %H:%M} UTC.</p>',
        f'<div class="card {tone}"><p><b>{escape(watch.reason)}</b></p></div>',
        "".join(map(_episode, watch.episodes)),
        "<h2>What was judged</h2>",
        f'<div class="card">{_subjects(watch)}</div>',
        "<h2>Window by window</h2>",
        f'<div class="card">{_windows(watch)}</div>',
        "<h2>How to read this</h2>",
        f'<div class="card">{_LEGEND}</div>',
    ]
    return html_page(heading, "\n".join(part for part in parts if part), style=_STYLE)


def quantity_page(
    title: str, verdict: Verdict, reason: str, remedy: str, numbers: dict[str, str], png: bytes
) -> str:
    """Return the page of one quantity in two windows.

    Args:
        title: Plain text.
        verdict: On the newer window.
        reason: Why.
        remedy: What to do.
        numbers: Plain text by name.
        png: The two windows; may be empty.
    """
    tone, content = TONE[verdict], base64.b64encode(png).decode()
    picture = (
        f'<div class="card"><img style="max-width:100%;background:#fff;border-radius:6px" '
        f'alt="both windows" src="data:image/png;base64,{content}"></div>'
        if png
        else ""
    )
    rows = [[escape(name), escape(value)] for name, value in numbers.items()]
    parts = [
        f"<h1>{escape(f'Drift: {title}')} {tag(verdict, tone)}</h1>",
        f'<div class="card {tone}"><p><b>{escape(reason)}</b></p><p>{escape(remedy)}</p></div>',
        picture,
        f'<div class="card">{table(("what", "value"), rows, numbers=frozenset({1}))}</div>',
    ]
    return html_page(f"Drift: {title}", "\n".join(part for part in parts if part))


def _episode(episode: Episode) -> str:
    about = ", ".join(SUBJECTS[name] for name in episode.subjects)
    moved = f" Columns: {escape(', '.join(episode.columns))}." if episode.columns else ""
    return (
        f'<div class="card bad"><p><b>Drift stays in {escape(about)}, since '
        f"{episode.began_at:%Y-%m-%d %H:%M} UTC.</b> {escape(_CURE[episode.cure])}{moved}</p></div>"
    )


def _subjects(watch: DriftWatch) -> str:
    rows = [
        [
            escape(SUBJECTS[found.subject]),
            _tag(found),
            escape(found.said) + _link(found),
            escape(found.persistence.reason if found.is_watched else ""),
        ]
        for found in watch.subjects
    ]
    return table(("what", "", "why", "windows"), rows)


def _tag(found: SubjectWatch) -> str:
    return tag(found.verdict, TONE[found.verdict]) if found.is_watched else tag("not watched")


def _link(found: SubjectWatch) -> str:
    page = found.judgements[-1].page if found.judgements else None
    return f' <a href="{escape(page, quote=True)}">its page</a>' if page else ""


def _windows(watch: DriftWatch) -> str:
    judged = [(j, found.subject) for found in watch.subjects for j in found.judgements]
    judged.sort(key=lambda pair: pair[0].at, reverse=True)
    rows = [
        [
            f"{j.at:%Y-%m-%d %H:%M}",
            escape(SUBJECTS[subject]),
            f"{escape(j.first)} to {escape(j.last)}",
            f"{j.num_rows:,}",
            tag(j.verdict, TONE[j.verdict]),
            f'<a href="{escape(j.page, quote=True)}">page</a>' if j.page else "",
        ]
        for j, subject in judged
    ]
    if not rows:
        return "<p>No window was judged yet.</p>"
    return table(("judged at", "what", "rows", "count", "", ""), rows, numbers=frozenset({3}))


_LEGEND = (
    "<p>Windows share no row. One window with drift is a finding; as many as the pipeline's "
    "<code>drift_alarm</code> asks for among its last ones raise the alarm, and start a training "
    "where that may help. INCONCLUSIVE means that a window was judged and decides "
    "nothing, or that none can be judged. WAITING means that there are too few new rows or "
    "requests for a window yet. Neither says that all is well.</p>"
)
