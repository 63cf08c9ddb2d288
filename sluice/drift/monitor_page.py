"""HTML pages of the drift monitor: one for all signals, and one for a single quantity."""

import base64
from html import escape

from sluice.drift.monitor_state import SIGNALS, Alarm, MonitorState, MonitorVerdict, SignalState
from sluice.drift.report import DriftVerdict
from sluice.reports.page import Tone, html_page, table, tag

TONE: dict[MonitorVerdict, Tone] = {
    "DRIFT": "bad",
    "STABLE": "good",
    "INCONCLUSIVE": "unsure",
    "WAITING": "plain",
}
_STYLE = ".tag{white-space:nowrap}"
_ACTION_TEXT = {
    "train": "The training job is started once for this alarm.",
    "repair": "Retraining would not help: a person must repair the data or the servers.",
}


def monitor_page(state: MonitorState) -> str:
    """Return the page of all signals."""
    heading, tone = f"Drift: {state.model} version {state.version}", TONE[state.verdict]
    parts = [
        f"<h1>{escape(heading)} {tag(state.verdict, tone)}</h1>",
        f'<p class="soft">In production; last evaluated {state.at:%Y-%m-%d %H:%M} UTC.</p>',
        f'<div class="card {tone}"><p><b>{escape(state.reason)}</b></p></div>',
        "".join(map(_alarm_card, state.alarms)),
        "<h2>Signals</h2>",
        f'<div class="card">{_signal_table(state)}</div>',
        "<h2>Windows</h2>",
        f'<div class="card">{_window_table(state)}</div>',
        "<h2>How to read this</h2>",
        f'<div class="card">{_LEGEND}</div>',
    ]
    return html_page(heading, "\n".join(part for part in parts if part), style=_STYLE)


def quantity_page(
    title: str,
    verdict: DriftVerdict,
    reason: str,
    remedy: str,
    display_values: dict[str, str],
    png: bytes,
) -> str:
    """Return the page that compares one quantity between two windows.

    Args:
        title: Title in plain text.
        verdict: Verdict on the newer window.
        reason: Reason of the verdict.
        remedy: Recommended action.
        display_values: Formatted values by name, plain text.
        png: Plot of both windows; may be empty.
    """
    tone, content = TONE[verdict], base64.b64encode(png).decode()
    picture = (
        f'<div class="card"><img style="max-width:100%;background:#fff;border-radius:6px" '
        f'alt="both windows" src="data:image/png;base64,{content}"></div>'
        if png
        else ""
    )
    rows = [[escape(name), escape(value)] for name, value in display_values.items()]
    parts = [
        f"<h1>{escape(f'Drift: {title}')} {tag(verdict, tone)}</h1>",
        f'<div class="card {tone}"><p><b>{escape(reason)}</b></p><p>{escape(remedy)}</p></div>',
        picture,
        f'<div class="card">{table(("quantity", "value"), rows, numbers=frozenset({1}))}</div>',
    ]
    return html_page(f"Drift: {title}", "\n".join(part for part in parts if part))


def _alarm_card(alarm: Alarm) -> str:
    names = ", ".join(SIGNALS[name] for name in alarm.signals)
    columns = f" Columns: {escape(', '.join(alarm.columns))}." if alarm.columns else ""
    return (
        f'<div class="card bad"><p><b>Persistent drift in {escape(names)} since '
        f"{alarm.began_at:%Y-%m-%d %H:%M} UTC.</b> {escape(_ACTION_TEXT[alarm.action])}{columns}"
        "</p></div>"
    )


def _signal_table(state: MonitorState) -> str:
    rows = [
        [
            escape(SIGNALS[signal.signal]),
            _verdict_tag(signal),
            escape(signal.summary) + _report_link(signal),
            escape(signal.alarm_state.reason if signal.is_monitored else ""),
        ]
        for signal in state.signals
    ]
    return table(("signal", "verdict", "reason", "alarm"), rows)


def _verdict_tag(signal: SignalState) -> str:
    if not signal.is_monitored:
        return tag("not monitored")
    return tag(signal.verdict, TONE[signal.verdict])


def _report_link(signal: SignalState) -> str:
    page = signal.windows[-1].page if signal.windows else None
    return f' <a href="{escape(page, quote=True)}">report</a>' if page else ""


def _window_table(state: MonitorState) -> str:
    evaluated_windows = [
        (window, state.signal) for state in state.signals for window in state.windows
    ]
    evaluated_windows.sort(key=lambda pair: pair[0].at, reverse=True)
    rows = [
        [
            f"{window.at:%Y-%m-%d %H:%M}",
            escape(SIGNALS[signal]),
            f"{escape(window.first)} to {escape(window.last)}",
            f"{window.num_rows:,}",
            tag(window.verdict, TONE[window.verdict]),
            f'<a href="{escape(window.page, quote=True)}">report</a>' if window.page else "",
        ]
        for window, signal in evaluated_windows
    ]
    if not rows:
        return "<p>No window was evaluated yet.</p>"
    names = ("evaluated at", "signal", "rows", "number of rows", "verdict", "report")
    return table(names, rows, numbers=frozenset({3}))


_LEGEND = (
    "<p>Windows do not overlap. One window with drift is a warning. An alarm requires the number "
    "of windows with drift that the setting <code>drift_alarm</code> of the pipeline defines. If "
    "retraining may help, an alarm starts a training. INCONCLUSIVE means that a window has too "
    "little evidence for a decision, or that no window can be evaluated. WAITING means that there "
    "are too few new rows or requests for a window. Neither verdict means that there is no "
    "drift.</p>"
)
