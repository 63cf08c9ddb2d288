"""State of the drift monitor of one version in production: evaluated windows and alarms."""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from pydantic import AwareDatetime, Field

from sluice.base.digests import digest_json
from sluice.base.settings import Record
from sluice.config.drift_settings import AlarmDebounceSettings
from sluice.drift.alarm_debounce import AlarmState, debounce_alarm
from sluice.drift.report import DriftVerdict
from sluice.drift.windows import Waiting

Signal = Literal["rows", "requests", "predictions", "embedding", "latency", "losses"]
SIGNALS: dict[Signal, str] = {
    "rows": "new rows of the source",
    "requests": "requests",
    "predictions": "predictions",
    "embedding": "embedding of the network",
    "latency": "latency",
    "losses": "losses on labelled rows",
}
"""Monitored signals with their display names."""

MonitorVerdict = DriftVerdict | Literal["WAITING"]
"""Verdict on a signal. WAITING means that there are too few new rows or requests for a window so
far, which is not a problem."""

AlarmAction = Literal["train", "repair"]
"""Response to an alarm: retrain the model, or repair data or servers manually."""

_MAX_WINDOWS = 50
"""Maximum number of stored windows of a signal."""


class WindowResult(Record):
    """Result of one evaluated window."""

    window: str = Field(description="Digest or other identifier of the window.")
    first: str = Field(description="Label of the first row.")
    last: str = Field(description="Label of the last row; the next window starts after it.")
    num_rows: int
    at: AwareDatetime
    verdict: DriftVerdict
    reason: str
    remedy: str
    columns: tuple[str, ...] = Field(description="Drifted columns by ascending p-value.")
    action: AlarmAction = Field(
        description="Response to drift in this window: 'train', or 'repair' for faulty data or "
        "slow servers, where retraining does not help."
    )
    page: str | None = Field(None, description="URL of the report page.")


class SignalState(Record):
    """State of one monitored signal: its evaluated windows and its alarm state."""

    signal: Signal
    windows: tuple[WindowResult, ...] = Field((), description="Evaluated windows, oldest first.")
    is_new: bool = Field(description="Whether the last monitor run evaluated a window.")
    wait_reason: str = Field("", description="Reason why the last run evaluated no window.")
    is_waiting: bool = Field(
        False,
        description="Whether the last run evaluated no window only because there were too few new "
        "rows or requests.",
    )
    is_monitored: bool = Field(
        True, description="False if the signal has no source, such as latency without a server."
    )
    alarm_state: AlarmState

    @property
    def verdict(self) -> MonitorVerdict:
        """Verdict of the newest window. Without a window it is WAITING or INCONCLUSIVE.

        INCONCLUSIVE means that the signal cannot be evaluated.
        """
        if self.windows:
            return self.windows[-1].verdict
        return "WAITING" if self.is_waiting else "INCONCLUSIVE"

    @property
    def last(self) -> str | None:
        """Label of the newest evaluated row."""
        return self.windows[-1].last if self.windows else None

    @property
    def summary(self) -> str:
        """Reason of the newest verdict, and why there is no newer verdict."""
        if not self.windows:
            return self.wait_reason
        newest = self.windows[-1]
        return newest.reason if self.is_new else f"{newest.reason} Since then: {self.wait_reason}"

    @property
    def action(self) -> AlarmAction:
        """Action for the newest window with drift; "train" if no window drifted."""
        actions = [window.action for window in self.windows if window.verdict == "DRIFT"]
        return actions[-1] if actions else "train"


class Alarm(Record):
    """Alarm about persistent drift, from its start until the drift has ended."""

    id: str
    action: AlarmAction
    began_at: AwareDatetime
    signals: tuple[Signal, ...]
    columns: tuple[str, ...]
    reason: str


class MonitorState(Record):
    """State of the drift monitor for one version in production."""

    model: str
    version: int
    candidate: str
    at: AwareDatetime
    signals: tuple[SignalState, ...]
    latencies: tuple[float, ...] = Field(
        (),
        description="Latencies of the first requests to this version, with which the latencies of "
        "later requests are compared [s].",
    )
    latencies_until: str = Field("", description="Time of the last request in latencies.")
    training: Alarm | None = Field(None, description="Active alarm that starts a training.")
    repair: Alarm | None = Field(None, description="Active alarm that needs a manual repair.")

    def signal(self, name: Signal) -> SignalState | None:
        """Return the state of one signal; None before its first monitor run."""
        return next((state for state in self.signals if state.signal == name), None)

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """All active alarms."""
        return tuple(alarm for alarm in (self.training, self.repair) if alarm is not None)

    @property
    def verdict(self) -> MonitorVerdict:
        """DRIFT if any monitored signal drifted; STABLE only if all of them are stable."""
        verdicts = {state.verdict for state in self.signals if state.is_monitored}
        order: tuple[MonitorVerdict, ...] = ("DRIFT", "INCONCLUSIVE", "WAITING", "STABLE")
        return next((verdict for verdict in order if verdict in verdicts), "WAITING")

    @property
    def reason(self) -> str:
        """Explanation of the verdict in one paragraph."""
        verdict = self.verdict
        deciding_signals = [s for s in self.signals if s.is_monitored and s.verdict == verdict]
        stable_signals = [s for s in self.signals if s.is_monitored and s.verdict == "STABLE"]
        stable_names = ", ".join(SIGNALS[s.signal] for s in stable_signals)
        stable_text = f"No drift in the newest window of {stable_names}." if stable_names else ""
        if verdict == "STABLE":
            return stable_text
        # If no signal is monitored, the reasons of all signals are shown.
        lines = [
            f"{SIGNALS[s.signal].capitalize()}: {s.summary}"
            for s in deciding_signals or self.signals
        ]
        return " ".join([*([stable_text] if stable_text and verdict == "WAITING" else []), *lines])

    @property
    def is_new(self) -> bool:
        """Whether the last monitor run evaluated any window."""
        return any(state.is_new for state in self.signals)


def update_signal(
    previous: SignalState | None,
    signal: Signal,
    result: WindowResult | Waiting | str,
    settings: AlarmDebounceSettings,
    *,
    is_monitored: bool = True,
) -> SignalState:
    """Return the state of a signal after one more monitor run.

    Args:
        previous: Previous state; None in the first run for a version.
        signal: The signal.
        result: Result of a window; ``Waiting`` if there is too little new data; otherwise a text
            that says why no window can be evaluated. A repeated window is not added again.
        settings: Number of windows that must drift.
        is_monitored: Whether the signal has a source.
    """
    windows = previous.windows if previous else ()
    if not isinstance(result, WindowResult):
        wait_reason = result.reason if isinstance(result, Waiting) else result
    elif windows and windows[-1].window == result.window:
        wait_reason = "The newest window was already evaluated."
    else:
        wait_reason = ""
        windows = (*windows, result)[-_MAX_WINDOWS:]
    return SignalState(
        signal=signal,
        windows=windows,
        is_new=not wait_reason,
        wait_reason=wait_reason,
        is_waiting=isinstance(result, Waiting),
        is_monitored=is_monitored or bool(windows),
        alarm_state=debounce_alarm([window.verdict for window in windows], settings),
    )


def update_alarm(
    previous: Alarm | None,
    signals: Iterable[SignalState],
    action: AlarmAction,
    *,
    candidate: str,
    now: datetime,
) -> Alarm | None:
    """Return the active alarm with this action, continued or new; None without an alarm.

    An alarm starts when enough windows of a signal drifted. It ends when no signal with this action
    is in alarm any more, and none of the alarm's signals is inconclusive. If further signals drift,
    they do not start a second alarm.
    """
    all_signals = tuple(signals)
    signals_in_alarm = [
        s for s in all_signals if s.action == action and s.alarm_state.alarm == "ALARM"
    ]
    if previous is not None:
        previous_signals = [s for s in all_signals if s.signal in previous.signals]
        if signals_in_alarm or any(s.alarm_state.alarm == "INCONCLUSIVE" for s in previous_signals):
            return previous
        return None
    if not signals_in_alarm:
        return None
    newest_windows = {s.signal: _newest_drift(s) for s in signals_in_alarm}
    columns = dict.fromkeys(name for window in newest_windows.values() for name in window.columns)
    window_ids = {signal: window.window for signal, window in newest_windows.items()}
    return Alarm(
        id=digest_json([candidate, action, window_ids])[:12],
        action=action,
        began_at=now,
        signals=tuple(newest_windows),
        columns=tuple(columns),
        reason=" ".join(
            f"{SIGNALS[s.signal].capitalize()}: {s.alarm_state.reason} "
            f"{newest_windows[s.signal].reason}"
            for s in signals_in_alarm
        ),
    )


def _newest_drift(signal: SignalState) -> WindowResult:
    """Return the newest window with drift; the signal must have one."""
    drifted_windows = [window for window in signal.windows if window.verdict == "DRIFT"]
    return drifted_windows[-1]
