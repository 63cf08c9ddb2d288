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
    drifted: int = Field(description="Number of windows with drift among the counted windows.")
    inconclusive: int = Field(
        description="Number of inconclusive windows among the counted windows."
    )
    counted: int = Field(
        description="Number of counted windows: the last n, or all if there are fewer."
    )


def debounce_alarm(verdicts: Sequence[DriftVerdict], settings: AlarmDebounceSettings) -> AlarmState:
    """Return ALARM if at least k of the last n windows drifted.

    Inconclusive windows may have drifted. If drift in all of them would raise the alarm, the state
    is INCONCLUSIVE, otherwise QUIET. Windows that do not exist yet are not counted. Without any
    window the state is INCONCLUSIVE.

    Args:
        verdicts: Verdicts of successive non-overlapping windows, oldest first.
        settings: k and n.

    Assumes:
        Windows are approximately independent, and a window without drift gets the verdict DRIFT
        with probability at most ``alpha``. With alpha = 5 %, 2 of 3 windows then raise a false
        alarm with probability 0.7 %.
    """
    recent = verdicts[-settings.num_windows :]
    num_drifted, num_inconclusive = recent.count("DRIFT"), recent.count("INCONCLUSIVE")
    alarm: AlarmStatus = "QUIET"
    if num_drifted >= settings.min_drifted:
        alarm = "ALARM"
    elif not recent or num_drifted + num_inconclusive >= settings.min_drifted:
        alarm = "INCONCLUSIVE"
    reason = (
        f"{num_drifted} of the last {pluralize(len(recent), 'window')} drifted and "
        f"{num_inconclusive} {'is' if num_inconclusive == 1 else 'are'} inconclusive; "
        f"{settings.min_drifted} of {settings.num_windows} raise the alarm."
    )
    return AlarmState(
        alarm=alarm,
        reason=reason,
        drifted=num_drifted,
        inconclusive=num_inconclusive,
        counted=len(recent),
    )
