"""HTML page of a rollout: summary, share over time, transitions, guards, counts and settings.

This module reads and writes nothing. ``sluice.rollout_control.report`` reads the ledger and saves
the page.
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import cast

from sluice.base.digests import short
from sluice.base.pluralize import pluralize
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

_PHASES: dict[RolloutPhase, tuple[str, Tone]] = {
    "rolling": ("rolling", "plain"),
    "paused": ("paused", "unsure"),
    "awaiting_promotion": ("awaiting promotion", "good"),
    "promoted": ("promoted", "good"),
    "rolled_back": ("rolled back", "bad"),
}
_OUTCOME_TONES: dict[TransitionOutcome, Tone] = {
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
_VERDICT_TONES: dict[str, Tone] = {
    "PROMOTE": "good",
    "REJECT": "bad",
    "EQUIVALENT": "unsure",
    "INCONCLUSIVE": "unsure",
}
_READING_TONES: dict[str, Tone] = {"ok": "good", "warn": "unsure", "breach": "bad"}
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
    ".meter i.warn{background:var(--unsure)}.meter i.breach{background:var(--bad)}"
)


def rollout_page(
    rollout: Rollout,
    transitions: Sequence[Transition],
    *,
    traffic: TrafficCounts,
    agreement: PredictionAgreement | None,
    quality: Sequence[Verdict],
    failed_rows: FailedRows | None,
    now: datetime,
) -> str:
    """Return the HTML document.

    Args:
        rollout: State at the last check.
        transitions: All transitions, oldest first; the first one is the start.
        traffic: Counts of the current step, or of the last step if the rollout has ended.
        agreement: Distance between the predictions of both models on held-out rows; None if it was
            not measured.
        quality: Verdicts of the promotion gate on labelled requests that both arms answered, oldest
            first.
        failed_rows: Result of saving the rows that the challenger failed on; None if they were not
            saved.
        now: Current time, which ends the time axis of a rollout in progress.
    """
    phase_name, tone = _PHASES[rollout.phase]
    heading = f"Rollout of {rollout.model} version {rollout.version}"
    end_time = transitions[-1].at if rollout.is_over else max(now, transitions[-1].at)
    drift = next((t.drift for t in reversed(transitions) if t.drift is not None), None)
    sections = [
        f"<h1>{escape(heading)} {tag(phase_name, tone)}</h1>",
        f'<p class="soft">Replaces version {rollout.production_version}; '
        f"rollout {escape(short(rollout.id))}, {escape(rollout.settings.strategy)}, started "
        f"{_format_time(rollout.started_at)} UTC</p>",
        f'<div class="card {tone}">{_summary(rollout, transitions, end_time)}</div>',
        "<h2>Share of the users over time</h2>",
        f'<div class="card">{_timeline(transitions, end_time)}</div>',
        "<h2>Transitions</h2>",
        f'<div class="card">{_transitions(transitions)}</div>',
        "<h2>Guards</h2>",
        f'<div class="card">{_guards(rollout)}</div>',
        "<h2>Both arms</h2>",
        f'<div class="card">{_arms(rollout, transitions, traffic)}</div>',
        "<h2>Predictions on the same requests</h2>",
        f'<div class="card">{_agreement(agreement, drift)}</div>',
        "<h2>Labels</h2>",
        f'<div class="card">{_quality(rollout.settings, quality)}</div>',
        "<h2>Rows on which the challenger failed</h2>"
        f'<div class="card"><p>{escape(failed_rows.reason)}</p></div>'
        if failed_rows is not None
        else "",
        "<h2>Settings</h2>",
        f'<div class="card">{_settings(rollout.settings)}</div>',
    ]
    return html_page(heading, "\n".join(section for section in sections if section), style=_STYLE)


def _summary(rollout: Rollout, transitions: Sequence[Transition], end_time: datetime) -> str:
    """Describe the rollout in words: who started it and why, its progress, and its end."""
    first_transition, last_transition = transitions[0], transitions[-1]
    steps = ", ".join(f"{100 * step.share:g} %" for step in rollout.settings.steps)
    start_text = (
        f"{escape(first_transition.actor)} started the rollout of version {rollout.version} to "
        f"replace version {rollout.production_version}, strategy {rollout.settings.strategy} "
        f"({steps}). Reason: {escape(first_transition.reason)}"
    )
    num_passed = sum(t.outcome == "advance" for t in transitions)
    num_pauses = sum(t.outcome in ("pause", "inconclusive") for t in transitions)
    progress = f"{num_passed} of {len(rollout.settings.steps)} steps passed"
    if num_pauses:
        times = "once" if num_pauses == 1 else f"{num_pauses} times"
        progress += f", and the rollout paused {times}"
    duration = format_duration((end_time - rollout.started_at).total_seconds())
    state_text = {
        "rolling": f"The challenger answers {100 * rollout.share:g} % of the users since "
        f"{_format_time(rollout.step_since)} UTC.",
        "paused": f"The rollout is paused at {100 * rollout.share:g} % of the users.",
        "awaiting_promotion": "Every step passed. The challenger waits to be promoted.",
        "promoted": f"The challenger was promoted after {duration}: every step passed.",
        "rolled_back": f"The challenger was rolled back after {duration} at "
        f"{_users_share_before_end(transitions)} of the users, by {escape(last_transition.actor)}.",
    }[rollout.phase]
    reason = (
        ""
        if last_transition is first_transition or rollout.phase == "promoted"
        else f" {escape(last_transition.reason)}"
    )
    remedy = f"<p>{escape(last_transition.remedy)}</p>" if last_transition.remedy else ""
    return f"<p><b>{state_text}{reason}</b></p>{remedy}<p>{start_text}</p><p>{progress}.</p>"


def _users_share_before_end(transitions: Sequence[Transition]) -> str:
    return f"{100 * transitions[-2].rollout.share:g} %" if len(transitions) > 1 else "0 %"


def _timeline(transitions: Sequence[Transition], end_time: datetime) -> str:
    marks = [
        TimelineMark(
            time=t.at,
            share=t.rollout.users_share,
            tone=_OUTCOME_TONES[t.outcome],
            tooltip=f"{t.outcome.replace('_', ' ')}: {t.reason}",
        )
        for t in transitions
    ]
    if transitions[-1].rollout.is_over:  # extend the time axis, so that the last mark is visible
        end_time += (end_time - transitions[0].at) / 25
    return timeline_svg(marks, until=end_time)


def _transitions(transitions: Sequence[Transition]) -> str:
    start_time = transitions[0].at
    rows = [
        [
            str(number),
            f'<span class="when">{_format_time(t.at)}</span><br>'
            f'<span class="soft">+ {format_duration((t.at - start_time).total_seconds())}</span>',
            tag(t.outcome.replace("_", " "), _OUTCOME_TONES[t.outcome]),
            f"{100 * t.rollout.users_share:g} %",
            escape(t.actor),
            escape(t.reason)
            + (f'<br><span class="soft">{escape(t.remedy)}</span>' if t.remedy else ""),
        ]
        for number, t in enumerate(transitions, start=1)
    ]
    headings = ("number", "time [UTC]", "transition", "share of users after", "actor", "reason")
    return table(headings, rows, numbers=frozenset({0, 3}))


def _guards(rollout: Rollout) -> str:
    readings = read_guards(rollout.evidence, rollout.settings)
    rows = [
        [
            escape(GUARD_LABELS[reading.guard]),
            tag(reading.verdict, _READING_TONES[reading.verdict]),
            _meter(reading),
            f"{_format_number(reading.evidence)} of {_format_number(reading.limit)}",
        ]
        for reading in readings
    ]
    note = (
        '<p class="soft">Evidence that the challenger is worse, over all steps, as of '
        f"{_format_time(rollout.checked_at)} UTC. When the evidence of a guard reaches its limit, "
        "the rollout is rolled back. All guards together roll back a healthy rollout with a "
        f"probability of at most {100 * rollout.settings.alpha:g} % per hour. The arms are "
        "compared on each server separately; servers without requests to the challenger are "
        "excluded. Bars are logarithmic.</p>"
    )
    headings = ("guard", "verdict", "evidence", "evidence / limit")
    return table(headings, rows, numbers=frozenset({3})) + note


def _meter(reading: GuardReading) -> str:
    fraction = math.log1p(reading.evidence) / math.log1p(reading.limit)
    width = 100 * min(fraction, 1.0) if fraction >= 0 else 100.0  # NaN is shown as a full bar
    return (
        f'<span class="meter"><i class="{reading.verdict}" style="width:{width:.0f}%"></i></span>'
    )


def _arms(rollout: Rollout, transitions: Sequence[Transition], traffic: TrafficCounts) -> str:
    """Return a table of the counts at the end of each step, and of the current step."""
    traffic_by_epoch = {t.window.epoch: t.window for t in transitions if t.window is not None}
    if not rollout.is_over or traffic.epoch not in traffic_by_epoch:
        traffic_by_epoch[traffic.epoch] = traffic
    rollout_by_epoch = {t.rollout.epoch: t.rollout for t in transitions if not t.rollout.is_over}
    rows = []
    for epoch, step_traffic in sorted(traffic_by_epoch.items()):
        step_rollout = rollout_by_epoch.get(epoch)
        step = (
            ""
            if step_rollout is None
            else f"{step_rollout.step + 1}: {100 * step_rollout.share:g} %"
        )
        challenger_share = step_traffic.served_share
        for arm, counts, share in (
            ("challenger", step_traffic.challenger, challenger_share),
            ("production", step_traffic.production, 1 - challenger_share),
        ):
            served_text = f"{100 * share:.3g} %" if math.isfinite(share) else "-"
            rows.append([step if arm == "challenger" else "", arm, served_text, *_counts(counts)])
    headings = (
        "step",
        "arm",
        "served share",
        "requests",
        "errors",
        "timeouts",
        "not finite",
        "above latency limit",
    )
    note = (
        '<p class="soft">Served share: share of the requests that the arm got. An arm without '
        "users (the challenger at 0 %, production at 100 %) gets shadow requests, which count, "
        "too.</p>"
    )
    return table(headings, rows, numbers=frozenset(range(2, 8))) + note


def _counts(counts: ArmCounts) -> list[str]:
    def with_percentage(num_faults: int) -> str:
        if not counts.requests:
            return f"{num_faults}"
        percentage = 100 * num_faults / counts.requests
        return f'{num_faults} <span class="soft">({percentage:.2g} %)</span>'

    faults = (counts.errors, counts.timeouts, counts.not_finite, counts.slower)
    return [f"{counts.requests:,}", *map(with_percentage, faults)]


def _agreement(agreement: PredictionAgreement | None, drift: PredictionDrift | None) -> str:
    held_out_text = (
        "<p>The distance between the predictions of both models on held-out rows was not "
        "measured, so live predictions were not compared.</p>"
        if agreement is None
        else f"<p>On {agreement.rows:,} held-out rows the predictions differ by "
        f"{agreement.difference:.4g} on average; the standard deviation of production's "
        f"predictions is {agreement.spread:.4g}.</p>"
    )
    if drift is None:
        return held_out_text
    if math.isnan(drift.distance):
        requests = pluralize(drift.rows, "live request")
        live_text = f"Both arms answered {requests}, too few for a comparison."
        return f"{held_out_text}<p>{tag('unknown', 'unsure')} {live_text}</p>"
    is_within = drift.distance <= drift.limit
    label, tone = ("within the limit", "good") if is_within else ("too large", "bad")
    return (
        f"{held_out_text}<p>{tag(label, cast(Tone, tone))} On {drift.rows:,} live requests, the "
        f"difference is {drift.distance:.3g} times as large as on held-out rows. Above "
        f"{drift.limit:g} times, the rollout is rolled back.</p>"
    )


def _quality(settings: RolloutSettings, quality: Sequence[Verdict]) -> str:
    requirement = (
        "The last step ends only with the verdict PROMOTE on labelled requests that both arms "
        "answered."
        if settings.needs_quality
        else "The verdict PROMOTE is not required, but REJECT rolls back."
    )
    if not quality:
        return (
            "<p>No verdict yet: the first verdict requires labels of "
            f"{settings.quality_rows} requests that both arms answered. {requirement}</p>"
        )
    rows = [
        [
            tag(v.outcome, _VERDICT_TONES[v.outcome]),
            f"{v.num_rows:,}",
            _format_number(v.candidate_loss),
            _format_number(v.reference_loss),
            f"{_format_number(v.gain)}<br>"
            f'<span class="soft">{_format_number(v.lower_bound)} to '
            f"{_format_number(v.upper_bound)}</span>",
            f"{v.alpha:.2g}",
            escape(v.reason),
        ]
        for v in quality
    ]
    headings = (
        *("verdict", "rows", "challenger's loss", "production's loss", "gain", "alpha spent"),
        "reason",
    )
    note = (
        f'<p class="soft">{requirement} The promotion gate decides after each '
        f"{settings.quality_rows} new labels. All decisions together spend alpha = "
        f"{quality[-1].alpha_of_all:g}. Losses are in {escape(quality[-1].unit)}.</p>"
    )
    return table(headings, rows, numbers=frozenset(range(1, 6))) + note


def _settings(settings: RolloutSettings) -> str:
    fields = type(settings).model_fields
    rows = [
        [
            f"<code>{escape(name)}</code>",
            escape(_format_value(getattr(settings, name))),
            f'<span class="soft">{escape(fields[name].description or "")}</span>',
        ]
        for name in fields
    ]
    return table(("setting", "value", "meaning"), rows)


def _format_value(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_format_value, value))
    if value is None:
        return "default of the strategy"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _format_time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def _format_number(value: float) -> str:
    return format_evidence(value) if math.isfinite(value) else "-"
