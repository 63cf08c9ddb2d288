"""A traced run as one page that plays it back: what went wrong, since when, where (TRACE-15)."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from sluice.reports.page import Tone, html_page, tag
from sluice.trace.conclusion import Conclusion, conclude
from sluice.trace.diagnosis import Diagnosis
from sluice.trace.evidence.order import Mark, StepWord
from sluice.trace.evidence.trace import Trace
from sluice.trace.profile import PHASES, Profile, profile
from sluice.trace.replay.abnormal import Abnormal, first_abnormal, network_name
from sluice.trace.replay.grid import module_grid
from sluice.trace.replay.series import curves

_HERE = Path(__file__).parent
_TONE: dict[str, Tone] = {"error": "bad", "confirm": "unsure", "warning": "unsure"}
_WORD = {"error": "error", "confirm": "needs confirmation", "warning": "warning"}
_MOST_WORDS = 64
"""Orders of events on a page; the most frequent ones."""


def replay_page(trace: Trace, diagnoses: Sequence[Diagnosis]) -> str:
    """Return the whole document; it fetches nothing.

    Args:
        trace: Of one process.
        diagnoses: What is wrong with it, ranked.
    """
    program = _command(trace.start.program)
    title = f"Replay of {_name(trace.start.program)}"
    first, end = first_abnormal(trace), conclude(trace)
    parts = [
        f"<h1>{escape(title)} {_outcome(diagnoses, first, end)}</h1>",
        f'<p class="soft">{escape(_about(trace, program))}</p>',
        _death(end),
        *(_card(diagnosis) for diagnosis in diagnoses),
        _nothing(diagnoses, first, end),
        _abnormal(first),
        *(f'<div class="card unsure"><p>{escape(note.text)}</p></div>' for note in trace.notes),
        (_HERE / "player.html").read_text(),
        _time(profile(trace)),
        _data(trace, diagnoses, first),
    ]
    return html_page(
        title,
        "\n".join(part for part in parts if part),
        style=(_HERE / "replay.css").read_text(),
        script=(_HERE / "replay.js").read_text(),
    )


def replay_of(name: str, page: str) -> str:
    """Return a replay under the name of what was trained, where its process tells nothing.

    Args:
        name: Plain text.
        page: As ``replay_page`` made it.
    """
    title = escape(f"Replay of {name}")
    return re.sub(r"(<title>|<h1>)[^<]*?(?= ?<)", lambda found: f"{found[1]}{title}", page, count=2)


def _command(program: Sequence[str]) -> str:
    """Return the command line; Python itself puts '-c' and '-m' in the place of a program."""
    told = " ".join(program)
    return f"python {told}" if told.startswith("-") else told or "a Python process"


def _name(program: Sequence[str]) -> str:
    if not program or program[0].startswith("-"):
        return _command(program[:1])
    path = Path(program[0])
    return path.parent.name if path.name == "__main__.py" and path.parent.name else path.name


def _outcome(diagnoses: Sequence[Diagnosis], first: Abnormal | None, end: Conclusion) -> str:
    severities = [diagnosis.finding.severity for diagnosis in diagnoses]
    if "error" in severities:
        return tag(diagnoses[0].fault, "bad")
    if end.ending != "ended":
        return tag(end.ending, "bad" if end.ending == "died" else "unsure")
    if severities or first is not None:
        return tag("worth a look", "unsure")
    return tag("nothing wrong", "good")


def _death(end: Conclusion) -> str:
    if not end.what:
        return ""
    tone: Tone = "bad" if end.ending == "died" else "unsure"
    return (
        f'<div class="card {tone}"><h3>{tag(end.ending, tone)}</h3><dl><dt>seen</dt>'
        f"<dd>{escape(end.what)}</dd><dt>do</dt><dd>{escape(end.fix)}</dd></dl></div>"
    )


def _nothing(diagnoses: Sequence[Diagnosis], first: Abnormal | None, end: Conclusion) -> str:
    if diagnoses:
        return ""
    is_sound = first is None and end.ending == "ended"
    said = "Nothing wrong was found." if is_sound else "No rule names a cause."
    lists = [("checked", end.checked), ("not checked", end.unchecked)]
    rows = "".join(f"<dt>{name}</dt><dd>{escape('; '.join(told))}</dd>" for name, told in lists)
    return (
        f'<div class="card {"good" if is_sound else "unsure"}"><p><b>{said}</b></p>'
        f"<dl>{rows}</dl></div>"
    )


def _about(trace: Trace, program: str) -> str:
    ranks = f", rank {trace.start.rank} of {trace.start.world_size}"
    end = "killed, or running still" if trace.end is None else f"{trace.end.seconds:,.1f} s"
    return (
        f"{program}: {trace.num_steps:,} steps, {end}"
        f"{ranks if trace.start.world_size > 1 else ''}, torch {trace.start.torch}"
    )


def _card(diagnosis: Diagnosis) -> str:
    finding = diagnosis.finding
    also = [*diagnosis.findings[1:], *diagnosis.explains]
    rows = [
        ("seen", escape(finding.what)),
        ("why", escape(finding.cause)),
        ("do", escape(finding.fix)),
        ("not so if", escape(finding.contradicted_by)),
        *((f"so also, {f.step:,}", escape(f.what)) for f in also),
    ]
    return (
        f'<div class="card {_TONE[finding.severity]}"><h3>'
        f"{tag(_WORD[finding.severity], _TONE[finding.severity])} {escape(diagnosis.fault)} "
        f'<span class="soft">{100 * diagnosis.confidence:.0f} %</span> {_jump(diagnosis.step)}'
        "</h3><dl>"
        + "".join(f"<dt>{name}</dt><dd>{told}</dd>" for name, told in rows)
        + "</dl></div>"
    )


def _jump(step: int) -> str:
    return f'<button class="jump" data-step="{step}">show step {step:,}</button>'


def _abnormal(first: Abnormal | None) -> str:
    if first is None:
        return ""
    return (
        '<div class="card bad"><h3>First abnormal tensor '
        f"{_jump(first.step)}</h3><p><code>{escape(first.tensor)}</code> at step "
        f"{first.step:,}: {escape(first.what)}.</p></div>"
    )


def _time(told: Profile | None) -> str:
    if told is None:
        return ""
    bars = "".join(
        f'<i style="width:{100 * one.share:.2f}%;background:var(--c{PHASES.index(one.phase)})"></i>'
        for one in told.phases
    )
    legend = "".join(
        f'<span><i style="background:var(--c{PHASES.index(one.phase)})"></i>{one.phase} '
        f"<b>{100 * one.share:.0f} %</b> {one.mean_us / 1000:.3g} ms</span>"
        for one in told.phases
    )
    memory = f"; at most {told.peak_host_bytes / 2**20:,.0f} MiB" if told.peak_host_bytes else ""
    if told.peak_device_bytes:
        memory += f", {told.peak_device_bytes / 2**20:,.0f} MiB on the GPU"
    return (
        '<h2>Where the time goes</h2><div class="card">'
        f'<div class="bars" role="img" aria-label="Shares of a step">{bars}</div>'
        f'<div class="legend">{legend}</div>'
        f"<p><b>{told.bottleneck} first.</b> {escape(told.advice)}</p>"
        f'<p class="soft">{told.step_us / 1000:.3g} ms a step on average, half of them under '
        f"{told.median_us / 1000:.3g} ms, over the last {told.steps:,} that were kept{memory}."
        "</p></div>"
    )


def _data(trace: Trace, diagnoses: Sequence[Diagnosis], first: Abnormal | None) -> str:
    marked = tuple(d.step for d in diagnoses) + (() if first is None else (first.step,))
    told: dict[str, Any] = {
        "steps": max((word.last_step for word in trace.words), default=0),
        "curves": curves(trace),
        "grid": module_grid(trace, must_have=marked).model_dump(),
        "findings": [
            {"step": f.step, "severity": f.severity, "fault": f.fault}
            for d in diagnoses
            for f in (d.findings[0], *d.explains)
        ],
        "abnormal": None if first is None else first.model_dump(),
        "words": _words(trace),
    }
    # A text that closes the element would end the data.
    text = json.dumps(_plain(told), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="run">{text}</script>'


def _plain(value: Any) -> Any:
    """Return numbers of five digits, and what is not finite as a word."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _words(trace: Trace) -> list[dict[str, Any]]:
    most = sorted(trace.words, key=lambda word: -word.count)[:_MOST_WORDS]
    return [
        {
            "first": word.first_step,
            "last": word.last_step,
            "count": word.count,
            "marks": list(_marks(trace, word)),
        }
        for word in sorted(most, key=lambda word: word.first_step)
    ]


def _marks(trace: Trace, word: StepWord) -> Iterable[str]:
    for mark in word.marks:
        yield _said(trace, mark) + (f" (last {mark.block} repeated)" if mark.block else "")


def _said(trace: Trace, mark: Mark) -> str:
    flags = f": {', '.join(mark.flags)}" if mark.flags else ""
    if mark.kind in ("forward", "mode") and mark.subject >= 0:
        return f"{mark.kind} {network_name(trace.membership, mark.subject)}{flags}"
    return f"{mark.kind}{flags}"
