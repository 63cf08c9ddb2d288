"""Blocking asset checks: a failure always has the severity ERROR.

A failure with the severity WARN does not block in Dagster, even if ``blocking`` is set.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec

import dagster as dg

P = ParamSpec("P")
Checks = Callable[P, Iterator[dg.AssetCheckResult]]


def blocking_spec(
    name: str, asset: list[str], description: str, *, reads: Sequence[list[str]] = ()
) -> dg.AssetCheckSpec:
    """Declare a check that stops the run if it fails; ``reads`` lists further input assets."""
    return dg.AssetCheckSpec(
        name=name,
        asset=dg.AssetKey(asset),
        blocking=True,
        description=description,
        additional_deps=[dg.AssetKey(key) for key in reads],
    )


def blocking_result(
    name: str,
    asset: list[str],
    *,
    passed: bool,
    message: str,
    metadata: Mapping[str, Any] | None = None,
) -> dg.AssetCheckResult:
    """Return the result of a blocking check; ``message`` says what was found and what to do."""
    return dg.AssetCheckResult(
        asset_key=dg.AssetKey(asset),
        check_name=name,
        passed=passed,
        severity=dg.AssetCheckSeverity.ERROR,
        description=message,
        metadata=dict(metadata or {}),
    )


def failing_with_messages(checks: Checks[P]) -> Checks[P]:
    """Wrap a check function so that its step fails with the messages of the failed checks.

    The step fails after all results were yielded. Without the wrapper, Dagster would raise an error
    with the names of the checks and a traceback, and show this error first on the page of the run.
    """

    @functools.wraps(checks)
    def run_all(*args: P.args, **kwargs: P.kwargs) -> Iterator[dg.AssetCheckResult]:
        messages = []
        for result in checks(*args, **kwargs):
            yield result
            if not result.passed and result.severity == dg.AssetCheckSeverity.ERROR:
                messages.append(f"{result.check_name}: {result.description}")
        if messages:
            raise dg.Failure("\n\n".join(messages), allow_retries=False)

    return run_all
