"""How a gate's outcome becomes a check: always ERROR when it does not hold, never WARN.

A warning never blocks in Dagster, whatever ``blocking`` says.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg


def blocking(
    name: str, asset: list[str], description: str, *, reads: Sequence[list[str]] = ()
) -> dg.AssetCheckSpec:
    """Declare a check that stops the run when it fails; ``reads`` are further assets it needs."""
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
    seen: str,
    metadata: Mapping[str, Any] | None = None,
) -> dg.AssetCheckResult:
    """Report one outcome; ``seen`` says what was seen, where, and what to do."""
    return dg.AssetCheckResult(
        asset_key=dg.AssetKey(asset),
        check_name=name,
        passed=passed,
        severity=dg.AssetCheckSeverity.ERROR,
        description=seen,
        metadata=dict(metadata or {}),
    )
