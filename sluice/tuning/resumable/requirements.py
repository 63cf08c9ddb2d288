"""Requirements of a report for a resumable study."""

import math
from collections.abc import Mapping
from numbers import Number
from typing import Any

from sluice.base.errors import SettingsError


def require_result(trial: Any, result: Mapping[str, Any], metric: str, time_attr: str) -> None:
    """Refuse a report without numeric values for the metric and the time.

    Raises:
        SettingsError: A value is missing or is not a number.
    """
    for what, key in (("time_attr", time_attr), ("metric", metric)):
        if isinstance(result.get(key), Number):
            continue
        found = repr(result[key]) if key in result else f"only {sorted(result)}"
        raise SettingsError(
            f"Every report must contain a number {key!r} ({what}), {trial} reported {found}.",
            fix=f"Report {key!r} with tune.report, or set another {what}.",
        )


def require_checkpoint(
    trial: Any, checkpoint: str, result: Mapping[str, Any], metric: str, time_attr: str
) -> None:
    """Refuse a report without a checkpoint, unless it ends the trial as failed.

    Raises:
        SettingsError: The checkpoint is missing.
    """
    if not checkpoint and math.isfinite(result[metric]):
        raise SettingsError(
            f"Every report must have a checkpoint, {trial} reported {time_attr} "
            f"{result[time_attr]} without one.",
            fix="Call tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder)).",
        )
