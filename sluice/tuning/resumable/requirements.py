"""Checks that a report to a resumable study contains a metric, a time and a checkpoint."""

import math
from collections.abc import Mapping
from numbers import Number
from typing import Any

from sluice.base.errors import SettingsError


def require_result(trial: Any, result: Mapping[str, Any], metric: str, time_attr: str) -> None:
    """Refuse a report in which the metric or the time is not a number.

    Raises:
        SettingsError: A value is missing or is not a number.
    """
    for argument, name in (("time_attr", time_attr), ("metric", metric)):
        if isinstance(result.get(name), Number):
            continue
        reported_text = repr(result[name]) if name in result else f"only {sorted(result)}"
        raise SettingsError(
            f"Every report must contain a number {name!r} ({argument}), but {trial} reported "
            f"{reported_text}.",
            fix=f"Report {name!r} with tune.report, or set another {argument}.",
        )


def require_checkpoint(
    trial: Any, checkpoint: str, result: Mapping[str, Any], metric: str, time_attr: str
) -> None:
    """Refuse a report without a checkpoint, unless its metric is not finite.

    A trial with a non-finite metric ends as failed, so it does not need a checkpoint.

    Raises:
        SettingsError: The checkpoint is missing.
    """
    if not checkpoint and math.isfinite(result[metric]):
        raise SettingsError(
            f"Every report must have a checkpoint, but {trial} reported {time_attr} "
            f"{result[time_attr]} without a checkpoint.",
            fix="Call tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder)).",
        )
