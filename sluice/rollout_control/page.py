"""Page of a rollout: summary, share over time, transitions, and the evidence for and against it.

Nothing is read or written here: ``sluice.rollout_control.report`` reads the ledger and saves the
page.
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import cast

from sluice.base.digests import short
from sluice.reports.page import Tone, html_page, table, tag
from sluice.rollout.guards import GUARD_LABELS, format_evidence, read_guards
from sluice.rollout.observations import ArmCounts, TrafficCounts
from sluice.rollout.prediction_agreement import PredictionAgreement
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import (
    GuardReading,
    PredictionDrift,
    Rollout,
    RolloutPhase,
    Transition,
    TransitionOutcome,
)
from sluice.rollout_control.failures import FailedRows
from sluice.rollout_control.timeline import TimelineMark, format_duration, timeline_svg
from sluice.verdicts.verdict import Verdict

_PHASE: dict[RolloutPhase, tuple[str, Tone]] = {
    "rolling": ("rolling", "plain"),
    "paused": ("paused", "unsure"),
    "awaiting_promotion": ("awaiting promotion", "good"),
    "promoted": ("promoted", "good"),
    "rolled_back": ("rolled back", "bad"),
}
_CARD: dict[RolloutPhase, Tone] = {
    "rolling": "plain",
    "paused": "unsure",
    "awaiting_promotion": "good",
    "promoted": "good",
    "rolled_back": "bad",
}
_OUTCOME: dict[TransitionOutcome, Tone] = {
    "start": "plain",
    "wait": "plain",
    "advance": "good",
    "promote": "good",
    "resume": "plain",
    "pause": "unsure",
    "inconclusive": "unsure",
    "roll_back": "bad",
    "abort": "bad",
}
_VERDICT: dict[str, Tone] = {
    "PROMOTE": "good",
    "REJECT": "bad",
    "EQUIVALENT": "unsure",
    "INCONCLUSIVE": "unsure",
}
_READING: dict[str, Tone] = {"ok": "good", "warn": "unsure", "breach": "bad"}
_STYLE = (
    ".tag,.when{white-space:nowrap}"
    ".timeline{width:100%;height:auto;display:block}"
    ".timeline text{fill:var(--soft);font-size:12px}"
    ".timeline .grid{stroke:var(--line);stroke-width:1}"
    ".timeline .area{fill:var(--mark);stroke:none}"
    ".timeline .share{stroke:var(--ink);stroke-width:2;fill:none}"
    ".timeline .mark{stroke:var(--card);stroke-width:2;fill:var(--soft)}"
    ".timeline .number{fill:var(--card);font-weight:700}"
    ".timeline .good{fill:var(--good)}.timeline .bad{fill:var(--bad)}"
    ".timeline .unsure{fill:var(--unsure)}"
    ".meter{display:inline-block;width:160px;height:8px;border-radius:4px;background:var(--mark);"
    "overflow:hidden;vertical-align:middle}"
    ".meter i{display:block;height:100%;background:var(--good)}"
    ".meter i.suspect{background:var(--unsure)}.meter i.breach{background:var(--bad)}"
)


def rollout_page(
    rollout: Rollout,
    transitions: Sequence[Transition],
    *,
    window: TrafficCounts,
    agreement: PredictionAgreement | None,
    quality: Sequence[Verdict],
    failed: FailedRows | None,
    now: datetime,
) -> str:
    """Return the HTML document.

    Args:
        rollout: State at the last check.
        transitions: All transitions, oldest first; the first one is the start.
        window: Counts of the current step, or of the one it ended at.
        agreement: Distance of both models on held-out rows; None when it was not measured.
        quality: Verdicts on labelled pairs, oldest first.
        failed: Result of saving the rows it failed on; None when that was not done.
        now: Time of the page, for a rollout in progress.
    """
    word, tone = _PHASE[rollout.phase]
    heading = f"Rollout of {rollout.model} version {rollout.version}"
    end = transitions[-1].at if rollout.is_over else max(now, transitions[-1].at)
    drift = next((t.drift for t in reversed(transitions) if t.drift is not None), None)
    parts = [
        f"<h1>{escape(heading)} {tag(word, tone)}</h1>",
        f'<p class="soft">Replaces version {rollout.production_version}; '
        f"rollout {escape(short(rollout.id))}, {escape(rollout.settings.strategy)}, started "
        f"{_time(rollout.started_at)} UTC</p>",
        f'<div class="card {_CARD[rollout.phase]}">{_summary(rollout, transitions, end)}</div>',
        "<h2>Share of the users over time</h2>",
        f'<div class="card">{_timeline(transitions, end)}</div>',
        "<h2>Transitions</h2>",
        f'<div class="card">{_transitions(transitions)}</div>',
        "<h2>Guards</h2>",
        f'<div class="card">{_guards(rollout)}</div>',
        "<h2>Both arms</h2>",
        f'<div class="card">{_arms(rollout, transitions, window)}</div>',
        "<h2>Predictions on the same requests</h2>",
        f'<div class="card">{_agreement(agreement, drift)}</div>',
        "<h2>Labels</h2>",
        f'<div class="card">{_quality(rollout.settings, quality)}</div>',
        f'<h2>Rows it failed on</h2><div class="card"><p>{escape(failed.reason)}</p></div>'
        if failed is not None
        else "",
        "<h2>Settings</h2>",
        f'<div class="card">{_settings(rollout.settings)}</div>',
    ]
    return html_page(heading, "\n".join(part for part in parts if part), style=_STYLE)


def _summary(rollout: Rollout, transitions: Sequence[Transition], end: datetime) -> str:
    """Describe the rollout in words: who started it and why, its progress, and its end."""
    first, last = transitions[0], transitions[-1]
    steps = ", ".join(f"{100 * step.share:g} %" for step in rollout.settings.steps)
    begun = (
        f"{escape(first.actor)} started the rollout of version {rollout.version} to replace "
        f"version {rollout.production_version}, strategy {rollout.settings.strategy} ({steps}). "
        f"Reason: {escape(first.reason)}"
    )
    passed = sum(t.outcome == "advance" for t in transitions)
    pauses = sum(t.outcome in ("pause", "inconclusive") for t in transitions)
    progress = f"{passed} of {len(rollout.settings.steps)} steps passed"
    if pauses:
        progress += f", and it paused {'once' if pauses == 1 else f'{pauses} times'}"
    took = format_duration((end - rollout.started_at).total_seconds())
    word = _PHASE[rollout.phase][0]
    now = {
        "rolling": f"It is at {100 * rollout.share:g} % of the users since "
        f"{_time(rollout.step_since)} UTC.",
        "paused": f"It is paused at {100 * rollout.share:g} % of the users.",
        "awaiting_promotion": "Every step passed; it waits to be promoted.",
        "promoted": f"After {took} it was promoted: every step passed.",
        "rolled_back": f"After {took} it was {word} at {_share_before(transitions)} of the users, "
        f"by {escape(last.actor)}.",
    }[rollout.phase]
    why = "" if last is first or rollout.phase == "promoted" else f" {escape(last.reason)}"
    remedy = f"<p>{escape(last.remedy)}</p>" if last.remedy else ""
    return f"<p><b>{now}{why}</b></p>{remedy}<p>{begun}</p><p>{progress}.</p>"


def _share_before(transitions: Sequence[Transition]) -> str:
    return f"{100 * transitions[-2].rollout.share:g} %" if len(transitions) > 1 else "0 %"


def _timeline(transitions: Sequence[Transition], end: datetime) -> str:
    marks = [
        TimelineMark(
            at=t.at,
            share=t.rollout.users_share,
            tone=_OUTCOME[t.outcome],
            tooltip=f"{t.outcome.replace('_', ' ')}: {t.reason}",
        )
        for t in transitions
    ]
    if transitions[-1].rollout.is_over:  # so that the end is visible
        end += (end - transitions[0].at) / 25
    return timeline_svg(marks, until=end)


def _transitions(transitions: Sequence[Transition]) -> str:
    began = transitions[0].at
    rows = [
        [
            str(number),
            f'<span class="when">{_time(t.at)}</span><br>'
            f'<span class="soft">+ {format_duration((t.at - began).total_seconds())}</span>',
            tag(t.outcome.replace("_", " "), _OUTCOME[t.outcome]),
            f"{100 * t.rollout.users_share:g} %",
            escape(t.actor),
            escape(t.reason)
            + (f'<br><span class="soft">{escape(t.remedy)}</span>' if t.remedy else ""),
        ]
        for number, t in enumerate(transitions, start=1)
    ]
    names = ("", "UTC", "", "share after", "by", "why")
    return table(names, rows, numbers=frozenset({0, 3}))


def _guards(rollout: Rollout) -> str:
    readings = read_guards(rollout.evidence, rollout.settings)
    rows = [
        [
            escape(GUARD_LABELS[reading.guard]),
            tag(reading.verdict, _READING[reading.verdict]),
            _meter(reading),
            f"{_number(reading.evidence)} of {_number(reading.limit)}",
        ]
        for reading in readings
    ]
    note = (
        '<p class="soft">Evidence that the challenger is worse, over all steps, as of '
        f"{_time(rollout.checked_at)} UTC; a guard rolls back at its limit. Healthy rollouts reach "
        f"any limit in at most {100 * rollout.settings.alpha:g} % of hours. The arms are compared "
        "on each server separately; a server that never asked the challenger is left out. Bars are "
        "logarithmic.</p>"
    )
    return table(("guard", "", "", "evidence of limit"), rows, numbers=frozenset({3})) + note


def _meter(reading: GuardReading) -> str:
    full = math.log1p(reading.evidence) / math.log1p(reading.limit)
    width = 100 * min(full, 1.0) if full >= 0 else 100.0  # NaN shows as full
    return (
        f'<span class="meter"><i class="{reading.verdict}" style="width:{width:.0f}%"></i></span>'
    )


def _arms(rollout: Rollout, transitions: Sequence[Transition], window: TrafficCounts) -> str:
    """Show the counts at the end of each step and of the current one."""
    seen = {t.window.epoch: t.window for t in transitions if t.window is not None}
    if not rollout.is_over or window.epoch not in seen:
        seen[window.epoch] = window
    shares = {t.rollout.epoch: t.rollout for t in transitions if not t.rollout.is_over}
    rows = []
    for epoch, counted in sorted(seen.items()):
        at = shares.get(epoch)
        step = "" if at is None else f"{at.step + 1}: {100 * at.share:g} %"
        served = counted.served_share
        for arm, counts, part in (
            ("challenger", counted.challenger, served),
            ("production", counted.production, 1 - served),
        ):
            of_all = f"{100 * part:.3g} %" if math.isfinite(part) else "-"
            rows.append([step if arm == "challenger" else "", arm, of_all, *_counts(counts)])
    names = ("step", "arm", "served", "requests", "errors", "late", "not finite", "slower than p95")
    note = (
        '<p class="soft">Served: share of the requests that the arm answered, including shadow '
        "requests, which the arm without users gets at 0 % and at 100 %.</p>"
    )
    return table(names, rows, numbers=frozenset(range(2, 8))) + note


def _counts(counts: ArmCounts) -> list[str]:
    def part(bad: int) -> str:
        if not counts.requests:
            return f"{bad}"
        return f'{bad} <span class="soft">({100 * bad / counts.requests:.2g} %)</span>'

    bad = (counts.errors, counts.timeouts, counts.not_finite, counts.slower)
    return [f"{counts.requests:,}", *map(part, bad)]


def _agreement(agreement: PredictionAgreement | None, drift: PredictionDrift | None) -> str:
    before = (
        "<p>The distance of both models on held-out rows was not measured, so live predictions "
        "were not compared.</p>"
        if agreement is None
        else f"<p>On {agreement.rows:,} held-out rows the predictions differ by "
        f"{agreement.difference:.4g} on average; the standard deviation of production's "
        f"predictions is {agreement.spread:.4g}.</p>"
    )
    if drift is None:
        return before
    if math.isnan(drift.distance):
        live = f"Live: {drift.rows} requests answered by both arms, too few to compare."
        return f"{before}<p>{tag('unknown', 'unsure')} {live}</p>"
    near = drift.distance <= drift.limit
    word, tone = ("within the limit", "good") if near else ("too large", "bad")
    return (
        f"{before}<p>{tag(word, cast(Tone, tone))} On {drift.rows:,} live requests the "
        f"difference is {drift.distance:.3g} times as large; above {drift.limit:g} times it "
        "rolls back.</p>"
    )


def _quality(settings: RolloutSettings, quality: Sequence[Verdict]) -> str:
    needed = (
        "The last step ends only with a PROMOTE on labelled pairs."
        if settings.needs_quality
        else "A PROMOTE is not needed; a REJECT rolls back."
    )
    if not quality:
        return f"<p>No verdict: fewer than {settings.quality_rows} rows had labels. {needed}</p>"
    rows = [
        [
            tag(v.outcome, _VERDICT[v.outcome]),
            f"{v.num_rows:,}",
            _number(v.candidate_loss),
            _number(v.reference_loss),
            f"{_number(v.gain)}<br>"
            f'<span class="soft">{_number(v.lower_bound)} to {_number(v.upper_bound)}</span>',
            f"{v.alpha:.2g}",
            escape(v.reason),
        ]
        for v in quality
    ]
    names = ("", "rows", "challenger's loss", "production's", "gain", "alpha spent", "why")
    note = (
        f'<p class="soft">{needed} The gate decides after each {settings.quality_rows} new '
        f"labels; all decisions together spend alpha = {quality[-1].alpha_of_all:g}. Losses in "
        f"{escape(quality[-1].unit)}.</p>"
    )
    return table(names, rows, numbers=frozenset(range(1, 6))) + note


def _settings(settings: RolloutSettings) -> str:
    fields = type(settings).model_fields
    rows = [
        [
            f"<code>{escape(name)}</code>",
            escape(_plain(getattr(settings, name))),
            f'<span class="soft">{escape(fields[name].description or "")}</span>',
        ]
        for name in fields
    ]
    return table(("setting", "value", "what it means"), rows)


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_plain, value))
    if value is None:
        return "default of the strategy"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def _number(value: float) -> str:
    return format_evidence(value) if math.isfinite(value) else "-"
