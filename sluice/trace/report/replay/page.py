"""Renders a traced run as one HTML page: diagnoses, first abnormal tensor, and a step player."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from sluice.base.format_number import format_ms
from sluice.base.pluralize import pluralize
from sluice.reports.page import Tone, html_page, tag
from sluice.trace.diagnosis import SEVERITY_LABELS, Diagnosis
from sluice.trace.records.events import StepSequence, TraceEvent
from sluice.trace.records.trace import Trace
from sluice.trace.report.conclusion import Conclusion, conclude
from sluice.trace.report.replay.abnormal import AbnormalTensor, first_abnormal, network_name
from sluice.trace.report.replay.grid import module_grid
from sluice.trace.report.replay.series import curves
from sluice.trace.report.step_profile import (
    PHASES,
    StepProfile,
    format_peak_memory,
    profile_steps,
)

_HERE = Path(__file__).parent
_TONE_BY_SEVERITY: dict[str, Tone] = {"error": "bad", "confirm": "unsure", "warning": "unsure"}
_MAX_SEQUENCES = 64
"""Maximum number of step sequences on a page. The page shows the most frequent sequences."""

_NAME_WITHOUT_FILE = {
    "-c": "a python -c program",
    "-": "a program from standard input",
}
"""Display name of a program that Python did not read from a file, by its first argument."""


def replay_page(trace: Trace, diagnoses: Sequence[Diagnosis]) -> str:
    """Return the replay as a complete HTML document, which loads no other files.

    Args:
        trace: Trace of one process.
        diagnoses: Ranked diagnoses of the trace.
    """
    program = _command_line(trace.start.program)
    title = f"Replay of {_program_name(trace.start.program)}"
    abnormal_tensor, conclusion = first_abnormal(trace), conclude(trace)
    sections = [
        f"<h1>{escape(title)} {_outcome_tag(diagnoses, abnormal_tensor, conclusion)}</h1>",
        f'<p class="soft">{escape(_subtitle(trace, program))}</p>',
        _ending_card(conclusion),
        *(_diagnosis_card(diagnosis) for diagnosis in diagnoses),
        "" if diagnoses else _no_diagnosis_card(abnormal_tensor, conclusion),
        _abnormal_card(abnormal_tensor),
        *(f'<div class="card unsure"><p>{escape(note.text)}</p></div>' for note in trace.notes),
        (_HERE / "player.html").read_text(),
        _step_time_section(profile_steps(trace)),
        _data_script(trace, diagnoses, abnormal_tensor),
    ]
    return html_page(
        title,
        "\n".join(section for section in sections if section),
        style=(_HERE / "replay.css").read_text(),
        script=(_HERE / "replay.js").read_text(),
    )


def rename_replay(name: str, page: str) -> str:
    """Return a replay whose title names the trained model instead of the program.

    Args:
        name: Name of the model, as plain text.
        page: Document from ``replay_page``.
    """
    title = escape(f"Replay of {name}")
    return re.sub(r"(<title>|<h1>)[^<]*?(?= ?<)", lambda match: f"{match[1]}{title}", page, count=2)


def _command_line(program: Sequence[str]) -> str:
    """Return the command line as text; ``program`` begins with '-c' or '-m' if it has no file."""
    line = " ".join(program).strip()
    return f"python {line}" if line.startswith("-") else line or "a Python process"


def _program_name(program: Sequence[str]) -> str:
    """Return the file name of a program, or the folder name of a package that was run."""
    if not program or not program[0]:
        return _command_line(())
    if program[0].startswith("-"):
        return _NAME_WITHOUT_FILE.get(program[0], _command_line(program[:1]))
    path = Path(program[0])
    return path.parent.name if path.name == "__main__.py" and path.parent.name else path.name


def _outcome_tag(
    diagnoses: Sequence[Diagnosis], abnormal_tensor: AbnormalTensor | None, conclusion: Conclusion
) -> str:
    severities = [diagnosis.finding.severity for diagnosis in diagnoses]
    if "error" in severities:
        return tag(diagnoses[0].fault, "bad")
    if conclusion.ending != "ended":
        return tag(conclusion.ending, "bad" if conclusion.ending == "failed" else "unsure")
    if severities or abnormal_tensor is not None:
        return tag("needs review", "unsure")
    return tag("no problem found", "good")


def _ending_card(conclusion: Conclusion) -> str:
    if not conclusion.what:
        return ""
    tone: Tone = "bad" if conclusion.ending == "failed" else "unsure"
    return (
        f'<div class="card {tone}"><h3>{tag(conclusion.ending, tone)}</h3><dl><dt>seen</dt>'
        f"<dd>{escape(conclusion.what)}</dd><dt>do</dt><dd>{escape(conclusion.fix)}</dd></dl></div>"
    )


def _no_diagnosis_card(abnormal_tensor: AbnormalTensor | None, conclusion: Conclusion) -> str:
    has_no_problem = abnormal_tensor is None and conclusion.ending == "ended"
    text = "No problem was found." if has_no_problem else "No rule found the cause."
    lists = [("checked", conclusion.checked), ("not checked", conclusion.unchecked)]
    rows = "".join(f"<dt>{name}</dt><dd>{escape('; '.join(items))}</dd>" for name, items in lists)
    return (
        f'<div class="card {"good" if has_no_problem else "unsure"}"><p><b>{text}</b></p>'
        f"<dl>{rows}</dl></div>"
    )


def _subtitle(trace: Trace, program: str) -> str:
    start = trace.start
    rank_text = f", rank {start.rank} of {start.world_size}" if start.world_size > 1 else ""
    duration = "killed or still running" if trace.end is None else f"{trace.end.seconds:,.1f} s"
    steps = pluralize(trace.num_steps, "step")
    return f"{program}: {steps}, {duration}{rank_text}, torch {start.torch}"


def _diagnosis_card(diagnosis: Diagnosis) -> str:
    finding = diagnosis.finding
    tone = _TONE_BY_SEVERITY[finding.severity]
    rows = [
        ("seen", escape(finding.what)),
        ("why", escape(finding.cause)),
        ("do", escape(finding.fix)),
        ("false alarm if", escape(finding.contradicted_by)),
        *((f"also seen, step {f.step:,}", escape(f.what)) for f in diagnosis.findings[1:]),
        *((f"consequence, step {f.step:,}", escape(f.what)) for f in diagnosis.consequences),
    ]
    return (
        f'<div class="card {tone}"><h3>'
        f"{tag(SEVERITY_LABELS[finding.severity], tone)} {escape(diagnosis.fault)} "
        f'<span class="soft">{100 * diagnosis.confidence:.0f} % confidence</span> '
        f"{_jump_button(diagnosis.step)}</h3><dl>"
        + "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in rows)
        + "</dl></div>"
    )


def _jump_button(step: int) -> str:
    return f'<button class="jump" data-step="{step}">show step {step:,}</button>'


def _abnormal_card(abnormal_tensor: AbnormalTensor | None) -> str:
    if abnormal_tensor is None:
        return ""
    return (
        '<div class="card bad"><h3>First abnormal tensor '
        f"{_jump_button(abnormal_tensor.step)}</h3>"
        f"<p><code>{escape(abnormal_tensor.tensor)}</code> at step {abnormal_tensor.step:,}: "
        f"{escape(abnormal_tensor.what)}.</p></div>"
    )


def _step_time_section(profile: StepProfile | None) -> str:
    if profile is None:
        return ""
    bars = "".join(
        f'<i style="width:{100 * time.share:.2f}%;'
        f'background:var(--c{PHASES.index(time.phase)})"></i>'
        for time in profile.phases
    )
    legend = "".join(
        f'<span><i style="background:var(--c{PHASES.index(time.phase)})"></i>{time.phase} '
        f"<b>{100 * time.share:.0f} %</b> {format_ms(time.mean_us / 1000)}</span>"
        for time in profile.phases
    )
    memory = format_peak_memory(profile)
    return (
        '<h2>Step time</h2><div class="card">'
        f'<div class="bars" role="img" aria-label="Shares of the step time">{bars}</div>'
        f'<div class="legend">{legend}</div>'
        f"<p><b>Bottleneck: {profile.bottleneck}.</b> {escape(profile.advice)}</p>"
        f'<p class="soft">Mean step time: {format_ms(profile.step_us / 1000)}; median: '
        f"{format_ms(profile.median_us / 1000)}, over the last {profile.steps:,} recorded steps."
        f"{f' Peak memory: {memory}.' if memory else ''}</p></div>"
    )


def _data_script(
    trace: Trace, diagnoses: Sequence[Diagnosis], abnormal_tensor: AbnormalTensor | None
) -> str:
    marked_steps = tuple(d.step for d in diagnoses) + (
        () if abnormal_tensor is None else (abnormal_tensor.step,)
    )
    data: dict[str, Any] = {
        "steps": max((sequence.last_step for sequence in trace.sequences), default=0),
        "curves": curves(trace),
        "grid": module_grid(trace, required_steps=marked_steps).model_dump(),
        "findings": [
            {"step": f.step, "severity": f.severity, "fault": f.fault}
            for d in diagnoses
            for f in (d.findings[0], *d.consequences)
        ],
        "abnormal": None if abnormal_tensor is None else abnormal_tensor.model_dump(),
        "sequences": _frequent_sequences(trace),
    }
    # Escape "<", because "</script>" in the data would close the script element.
    text = json.dumps(_to_json_values(data), separators=(",", ":"), allow_nan=False).replace(
        "<", "\\u003c"
    )
    return f'<script type="application/json" id="run">{text}</script>'


def _to_json_values(value: Any) -> Any:
    """Return a value with floats rounded to five digits, and non-finite floats as strings."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _to_json_values(item) for key, item in value.items()}
    return [_to_json_values(item) for item in value] if isinstance(value, list | tuple) else value


def _frequent_sequences(trace: Trace) -> list[dict[str, Any]]:
    """Return the most frequent step sequences as JSON values, sorted by their first step."""
    frequent_sequences = sorted(trace.sequences, key=lambda sequence: -sequence.count)
    frequent_sequences = frequent_sequences[:_MAX_SEQUENCES]
    return [
        {
            "first": sequence.first_step,
            "last": sequence.last_step,
            "count": sequence.count,
            "is_open": sequence.is_open,
            "events": list(_event_labels(trace, sequence)),
        }
        for sequence in sorted(frequent_sequences, key=lambda sequence: sequence.first_step)
    ]


def _event_labels(trace: Trace, sequence: StepSequence) -> Iterable[str]:
    for event in sequence.events:
        yield _event_label(trace, event) + (
            f" (end of a repeated block of {pluralize(event.repeat_length, 'event')})"
            if event.repeat_length
            else ""
        )


def _event_label(trace: Trace, event: TraceEvent) -> str:
    flags = f": {', '.join(event.flags)}" if event.flags else ""
    if event.kind in ("forward", "mode") and event.object_id >= 0:
        return f"{event.kind} {network_name(trace.membership, event.object_id)}{flags}"
    return f"{event.kind}{flags}"
