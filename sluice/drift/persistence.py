"""An alarm only when drift stays: k of the last n windows (ROLL-3)."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from sluice.base.settings import Record
from sluice.config.drift_settings import PersistenceSettings
from sluice.drift.report import Verdict

Alarm = Literal["ALARM", "QUIET", "INCONCLUSIVE"]


class Persistence(Record):
    """What the last windows together say."""

    alarm: Alarm
    reason: str
    drifted: int = Field(description="Windows with drift among the last ones.")
    inconclusive: int = Field(description="Windows among them that decided nothing.")
    counted: int = Field(description="Windows there were, at most n.")


def persist(verdicts: Sequence[Verdict], settings: PersistenceSettings) -> Persistence:
    """Return ALARM when at least k of the last n windows drifted.

    QUIET needs evidence as well: windows that decided nothing might have drifted, so with too many
    of them the answer is INCONCLUSIVE. Windows that there were not yet count as nothing; without
    a single one the answer is INCONCLUSIVE.

    Args:
        verdicts: Of successive windows that share no row, the oldest first.
        settings: k and n.

    Assumes:
        Windows are about independent. Each is falsely called DRIFT in at most ``alpha`` of the
        cases, so 2 of 3 at 5 % are in 0.7 %.
    """
    last = verdicts[-settings.windows :]
    drifted, unsure = last.count("DRIFT"), last.count("INCONCLUSIVE")
    alarm: Alarm = "QUIET"
    if drifted >= settings.needed:
        alarm = "ALARM"
    elif not last or drifted + unsure >= settings.needed:
        alarm = "INCONCLUSIVE"
    reason = (
        f"{drifted} of the last {len(last)} windows drifted and {unsure} decided nothing; "
        f"{settings.needed} of {settings.windows} raise the alarm."
    )
    return Persistence(
        alarm=alarm, reason=reason, drifted=drifted, inconclusive=unsure, counted=len(last)
    )
