"""Blocking asset checks: a failure always has the severity ERROR.

A failure with the severity WARN does not block in Dagster, even if ``blocking`` is set.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg


def blocking(
    name: str, asset: list[str], description: str, *, reads: Sequence[list[str]] = ()
) -> dg.AssetCheckSpec:
    """Declare a check that stops the run when it fails; ``reads`` lists its other input assets."""
    return dg.AssetCheckSpec(
        name=name,
        asset=dg.AssetKey(asset),
        blocking=True,
        description=description,
        additional_deps=[dg.AssetKey(key) for key in reads],
    )


def result(
    name: str,
    asset: list[str],
    *,
    passed: bool,
    message: str,
    metadata: Mapping[str, Any] | None = None,
) -> dg.AssetCheckResult:
    """Return a check result; ``message`` says what was found, where, and what to do."""
    return dg.AssetCheckResult(
        asset_key=dg.AssetKey(asset),
        check_name=name,
        passed=passed,
        severity=dg.AssetCheckSeverity.ERROR,
        description=message,
        metadata=dict(metadata or {}),
    )
