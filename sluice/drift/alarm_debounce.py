"""Debounces drift alarms: an alarm requires drift in at least k of the last n windows."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from sluice.base.pluralize import pluralize
from sluice.base.settings import Record
from sluice.config.drift_settings import AlarmDebounceSettings
from sluice.drift.report import DriftVerdict

AlarmStatus = Literal["ALARM", "QUIET", "INCONCLUSIVE"]


class AlarmState(Record):
    """Alarm state of a signal after the last n windows."""

    alarm: AlarmStatus
    reason: str
    drifted: int = Field(description="Number of windows with drift among the last n.")
    inconclusive: int = Field(description="Number of inconclusive windows among the last n.")
    counted: int = Field(description="Number of windows so far, at most n.")


def debounce_alarm(verdicts: Sequence[DriftVerdict], settings: AlarmDebounceSettings) -> AlarmState:
    """Return ALARM if at least k of the last n windows drifted.

    Inconclusive windows may have drifted. The state is QUIET only if there is no alarm even if all
    of them drifted; otherwise it is INCONCLUSIVE. Windows that do not exist yet are not counted.
    Without any window the state is INCONCLUSIVE.

    Args:
        verdicts: Verdicts of successive non-overlapping windows, oldest first.
        settings: k and n.

    Assumes:
        Windows are approximately independent, and a window without drift gets the verdict DRIFT
        with probability at most ``alpha``. With alpha = 5 %, 2 of 3 windows then raise a false
        alarm with probability 0.7 %.
    """
    last = verdicts[-settings.num_windows :]
    drifted, inconclusive = last.count("DRIFT"), last.count("INCONCLUSIVE")
    alarm: AlarmStatus = "QUIET"
    if drifted >= settings.min_drifted:
        alarm = "ALARM"
    elif not last or drifted + inconclusive >= settings.min_drifted:
        alarm = "INCONCLUSIVE"
    reason = (
        f"{drifted} of the last {pluralize(len(last), 'window')} drifted and {inconclusive} "
        f"{'is' if inconclusive == 1 else 'are'} inconclusive; {settings.min_drifted} of "
        f"{settings.num_windows} raise the alarm."
    )
    return AlarmState(
        alarm=alarm, reason=reason, drifted=drifted, inconclusive=inconclusive, counted=len(last)
    )
