"""Checks of raw rows and features, and the receipts that the next stages require."""

import os
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pandas as pd

from sluice.assets.features import FeatureSet, require_current_features
from sluice.assets.metadata import table
from sluice.assets.receipt_subjects import features_subject, raw_subject
from sluice.assets.resources import SluiceState, utc_now
from sluice.base.errors import ContractError, SchemaError
from sluice.base.home import Home
from sluice.base.pluralize import pluralize
from sluice.base.receipts import Receipt
from sluice.checks.data_docs import expectations_page
from sluice.checks.expectations import TableValidation, validate_table
from sluice.checks.outcomes import blocking_result, blocking_spec, failing_with_messages
from sluice.checks.suite_report import ExpectationSuiteReport
from sluice.config.poc_settings import LookAheadSettings
from sluice.data.expectations import Expectation
from sluice.data.schema import Schema
from sluice.data.table import TableRecord, load_table
from sluice.data.validation import validate_schema
from sluice.failfast.data.look_ahead import find_look_ahead
from sluice.reports.folder import save_page
from sluice.workloads.workload import Workload

SCHEMA = "table_matches_schema"
EXPECTATIONS = "expectations_pass"
LOOK_AHEAD = "features_do_not_look_ahead"


def raw_data_checks(pipeline: str, workload: Workload) -> dg.AssetChecksDefinition:
    """Build the checks of ``raw_data``."""
    asset = [pipeline, "raw_data"]

    @dg.multi_asset_check(
        name=f"{pipeline}__raw_data_checks",
        specs=[
            blocking_spec(
                SCHEMA, asset, "The raw rows have the columns, index and dtypes of the schema."
            ),
            blocking_spec(EXPECTATIONS, asset, "The raw values satisfy all declared expectations."),
        ],
        ins={"raw_data": dg.AssetIn(key=asset)},
    )
    @failing_with_messages
    def raw_data_checks(
        sluice_state: dg.ResourceParam[SluiceState], raw_data: TableRecord
    ) -> Iterator[dg.AssetCheckResult]:
        frame = load_table(raw_data, sluice_state.store)
        results = [
            _check_schema(frame, workload.raw_schema, asset),
            _check_expectations(
                frame, workload.raw_expectations, asset, raw_data.digest, sluice_state.home
            ),
        ]
        _record_receipt(sluice_state, "raw_data", raw_subject(workload, raw_data.digest), results)
        yield from results

    return raw_data_checks


def features_checks(
    pipeline: str, workload: Workload, look_ahead: LookAheadSettings, *, path: str, seed: int
) -> dg.AssetChecksDefinition:
    """Build the checks of ``features``."""
    asset = [pipeline, "features"]
    raw_asset = [pipeline, "raw_data"]

    @dg.multi_asset_check(
        name=f"{pipeline}__features_checks",
        specs=[
            blocking_spec(
                SCHEMA, asset, "The feature frame has the columns, index and dtypes of the schema."
            ),
            blocking_spec(
                EXPECTATIONS, asset, "The feature values satisfy all declared expectations."
            ),
            blocking_spec(
                LOOK_AHEAD, asset, "No feature changes when later rows change.", reads=[raw_asset]
            ),
        ],
        ins={
            "raw_data": dg.AssetIn(key=raw_asset),
            "features": dg.AssetIn(key=asset),
        },
    )
    @failing_with_messages
    def features_checks(
        sluice_state: dg.ResourceParam[SluiceState], raw_data: TableRecord, features: FeatureSet
    ) -> Iterator[dg.AssetCheckResult]:
        require_current_features(features, raw_data, workload, path=path)
        frame = load_table(features.table, sluice_state.store)
        results = [
            _check_schema(frame, workload.feature_schema, asset),
            _check_expectations(
                frame,
                workload.feature_expectations,
                asset,
                features.table.digest,
                sluice_state.home,
            ),
            _check_look_ahead(
                workload,
                load_table(raw_data, sluice_state.store),
                frame,
                asset,
                settings=look_ahead,
                seed=seed,
            ),
        ]
        subject = features_subject(
            workload, features.table.digest, path=path, look_ahead=look_ahead
        )
        _record_receipt(sluice_state, "features", subject, results)
        yield from results

    return features_checks


def _check_schema(frame: pd.DataFrame, schema: Schema, asset: list[str]) -> dg.AssetCheckResult:
    try:
        validate_schema(frame, schema, stage=asset[-1])
    except SchemaError as error:
        return blocking_result(SCHEMA, asset, passed=False, message=str(error))
    return blocking_result(
        SCHEMA,
        asset,
        passed=True,
        message=f"All {len(schema.columns):,} declared columns are present. The frame has "
        f"{frame.shape[0]} rows and {frame.shape[1]} columns.",
    )


def _check_look_ahead(
    workload: Workload,
    raw: pd.DataFrame,
    frame: pd.DataFrame,
    asset: list[str],
    *,
    settings: LookAheadSettings,
    seed: int,
) -> dg.AssetCheckResult:
    try:
        changes = find_look_ahead(
            workload.compute_features,
            raw,
            workload.feature_columns,
            settings=settings,
            features=frame,
            seed=seed,
        )
    except ContractError as error:
        return blocking_result(LOOK_AHEAD, asset, passed=False, message=str(error))
    if changes:
        first = changes[0]
        message = (
            f"'{first.column}' at {first.row} changed by {first.change:.3g} standard deviations "
            "when only later rows changed, so the feature uses future rows. Compute the feature "
            "with shift, or with rolling and expanding windows that end at the row itself."
        )
    else:
        message = (
            f"None of {pluralize(len(workload.feature_columns), 'feature')} changed when later "
            "rows changed."
        )
    return blocking_result(
        LOOK_AHEAD,
        asset,
        passed=not changes,
        message=message,
        metadata={"findings": table([change.model_dump() for change in changes])},
    )


def _check_expectations(
    frame: pd.DataFrame,
    expectations: tuple[Expectation, ...],
    asset: list[str],
    digest: str,
    home: Home,
) -> dg.AssetCheckResult:
    validation = validate_table(frame, expectations, suite="_".join(asset))
    report = validation.report
    return blocking_result(
        EXPECTATIONS,
        asset,
        passed=report.passed,
        message=report.summary,
        metadata={
            "failed": sum(r.outcome == "fail" for r in report.results),
            "unmeasurable": sum(r.outcome == "unmeasurable" for r in report.results),
            "expectations": table(_expectation_rows(report)),
            **_data_docs(validation, asset, digest, home),
        },
    )


def _data_docs(
    validation: TableValidation, asset: list[str], digest: str, home: Home
) -> dict[str, dg.MetadataValue[Any]]:
    """Save the Data Docs page and return its link; if that fails, return the error as text."""
    try:
        page = expectations_page(validation, title=" / ".join(asset), digest=digest)
        saved_page = save_page(
            page, "/".join(["expectations", *asset]), home=home, environ=os.environ
        )
    except Exception as error:  # raised by Great Expectations or the file system
        problem = f"Not built: {type(error).__name__}: {error}"
        return {"data_docs": dg.MetadataValue.text(problem)}
    return {
        "data_docs": dg.MetadataValue.url(saved_page.url),
        "data_docs_file": dg.MetadataValue.path(saved_page.path),
    }


def _expectation_rows(report: ExpectationSuiteReport) -> list[dict[str, Any]]:
    return [
        {"expectation": r.sentence, "outcome": r.outcome, "result": r.message}
        for r in report.results
    ]


def _record_receipt(
    state: SluiceState, gate: str, subject: dict[str, str], results: list[dg.AssetCheckResult]
) -> None:
    passed = all(r.passed for r in results)
    failed_results = [r for r in results if not r.passed]
    with state.ledger() as ledger:
        ledger.record_receipt(
            Receipt(
                gate=gate,
                outcome="pass" if passed else "fail",
                passed=passed,
                subject=subject,
                evidence={str(r.check_name): bool(r.passed) for r in results},
                reason=str(failed_results[0].description)
                if failed_results
                else "All checks passed.",
                decided_at=utc_now(),
            )
        )
