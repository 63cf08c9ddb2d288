"""Validates a table against a workload's expectations; the only adapter to Great Expectations.

Great Expectations is called the engine here. An expectation that cannot be measured (a missing
column, text among numbers, no rows) is reported as unmeasurable, neither failed nor passed. Ranges,
sets, comparisons and standard deviations skip missing values. Each of them therefore implies a
not-null expectation for its columns, unless the suite already contains it.

Expectations apply to columns. To validate the index, pass ``frame.reset_index()``.
"""

import html
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.errors import ContractError, SluiceError
from sluice.base.imports import import_object
from sluice.base.settings import suggest_nearest
from sluice.checks.measurements import exception_text, read_result, unmeasurable
from sluice.checks.suite_report import ExpectationSuiteReport, columns_of, describe
from sluice.data.expectations import (
    Between,
    EngineExpectation,
    Expectation,
    GreaterOrEqual,
    InSet,
    NotNull,
    RowCount,
    StdBetween,
    as_expectations,
)

MAX_EXAMPLES = 5
_SUMMARY_FORMAT = {"result_format": "SUMMARY", "partial_unexpected_count": MAX_EXAMPLES}
_COMPLETE_FORMAT = {"result_format": "COMPLETE", "return_unexpected_index_query": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableValidation:
    """Validation result, with the result of the engine for its renderer."""

    report: ExpectationSuiteReport
    engine_result: Any
    """Result object of Great Expectations; None if no expectation could be measured."""


def evaluate(
    frame: pd.DataFrame, expectations: Sequence[Expectation], *, suite: str
) -> ExpectationSuiteReport:
    """Measure every expectation on ``frame``; see ``validate_table``."""
    return validate_table(frame, expectations, suite=suite).report


def validate_table(
    frame: pd.DataFrame, expectations: Sequence[Expectation], *, suite: str
) -> TableValidation:
    """Measure every expectation on ``frame``.

    Args:
        frame: Table; it is not modified.
        expectations: Declared expectations, without implied expectations.
        suite: Name of the suite, for the report.

    Raises:
        ContractError: An expectation has no bound, or a lower bound above the upper bound.

    Cost:
        The first call imports the engine, which takes 2 to 4 s. After that, 36 expectations of 13
        columns take 0.2 s on 5,000 rows and 1.2 s on 1,000,000 rows.
    """
    all_expectations, implied_expectations = with_implied(expectations)
    unmeasurable_reasons = {
        e: reason for e in all_expectations if (reason := _unmeasurable_reason(frame, e))
    }
    measurable = [e for e in all_expectations if e not in unmeasurable_reasons]
    engine_result = _validate(frame, measurable, suite, _SUMMARY_FORMAT) if measurable else None
    raw_results = _raw_results_by_expectation(engine_result, measurable) if measurable else {}
    results = []
    for expectation in all_expectations:
        if expectation in unmeasurable_reasons:
            result = unmeasurable(expectation, unmeasurable_reasons[expectation])
        else:
            result = read_result(frame, expectation, raw_results[expectation])
        results.append(result.model_copy(update={"implied": expectation in implied_expectations}))
    report = ExpectationSuiteReport(suite=suite, num_rows=len(frame), results=tuple(results))
    return TableValidation(report=report, engine_result=engine_result)


def with_implied(
    expectations: Sequence[Expectation],
) -> tuple[tuple[Expectation, ...], frozenset[Expectation]]:
    """Return declared and then implied expectations, and the set of the implied expectations.

    Raises:
        ContractError: An expectation has no bound, or a lower bound above the upper bound.
    """
    declared_expectations = tuple(dict.fromkeys(as_expectations(expectations, where="The suite")))
    for expectation in declared_expectations:
        _require_valid_bounds(expectation)
    implied_expectations = _implied_expectations(declared_expectations)
    return (*declared_expectations, *implied_expectations), frozenset(implied_expectations)


def violating_rows(
    frame: pd.DataFrame, expectations: Sequence[Expectation]
) -> dict[Expectation, NDArray[np.bool_]]:
    """Return for each expectation a mask (N,) of the rows that violate it.

    A missing value violates only a not-null expectation.

    Args:
        frame: Table with the columns of the expectations and at least one row.
        expectations: Expectations on single rows, so no row count and no standard deviation.

    Raises:
        ContractError: An expectation could not be measured.

    Cost:
        One pass of the engine.
    """
    raw_results = _raw_results_by_expectation(
        _validate(frame, expectations, "rows", _COMPLETE_FORMAT), expectations
    )
    violations = {}
    for expectation in expectations:
        if message := exception_text(raw_results[expectation]["exception_info"]):
            raise ContractError(
                f"'{describe(expectation)}' could not be measured: {message}",
                fix="Correct the column's values or the expectation.",
            )
        rows = np.zeros(len(frame), np.bool_)
        rows[raw_results[expectation]["result"]["unexpected_index_list"]] = True
        violations[expectation] = rows
    return violations


def engine_sections(engine_result: Any, columns: Sequence[str]) -> str:
    """Return the engine's Data Docs of a result as HTML sections.

    The surrounding page is omitted, because it links scripts and style sheets on other hosts. The
    overview is omitted, because it contains the time of the run: equal results must give identical
    bytes.

    Args:
        engine_result: ``TableValidation.engine_result``; it is not modified.
        columns: Column names in the order of the sections. The engine would sort them.
    """
    from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer
    from great_expectations.render.view.view import DefaultJinjaPageView

    document = ValidationResultsPageRenderer().render(engine_result)
    order = {name: position for position, name in enumerate(columns)}
    sections = sorted(
        (s for s in document.to_json_dict()["sections"] if s["section_name"] != "Overview"),
        key=lambda s: order.get(s["section_name"], -1),  # sections on the table come first
    )
    view: Any = DefaultJinjaPageView()
    return "\n".join(
        view.render(document, template="section.j2", section=section, loop=loop, section_loop=loop)
        for loop, section in (
            ({"index": i}, _escape_block(s)) for i, s in enumerate(sections, start=1)
        )
    )


def _escape_block(block: Any) -> Any:
    """Escape what the engine's templates do not escape: cell values and column headings."""
    if isinstance(block, list):
        return [_escape_block(item) for item in block]
    if not isinstance(block, dict):
        return block
    escaped_block: dict[str, Any] = {
        name: [[_escape_cell(cell) for cell in row] for row in value]
        if name == "table"
        else _escape_block(value)
        for name, value in block.items()
    }
    if block.get("content_block_type") == "header":
        heading = escaped_block["header"]["string_template"]
        # Undo the doubling of each '$' by the renderer, because the view doubles it again.
        heading["template"] = html.escape(heading["template"].replace("$$", "$"))
    return escaped_block


def _escape_cell(cell: Any) -> Any:
    if isinstance(cell, str):
        return html.escape(cell)
    if isinstance(cell, list):
        return [_escape_cell(item) for item in cell]
    return _escape_block(cell) if isinstance(cell, dict) else cell


def _implied_expectations(declared: Sequence[Expectation]) -> tuple[Expectation, ...]:
    sluice_expectations = [e for e in declared if not isinstance(e, EngineExpectation)]
    columns = dict.fromkeys(column for e in sluice_expectations for column in columns_of(e))
    return tuple(e for column in columns if (e := NotNull(column=column)) not in declared)


def _require_valid_bounds(expectation: Expectation) -> None:
    if not isinstance(expectation, Between | StdBetween):
        return
    low, high = expectation.low, expectation.high
    if (low is None and high is None) or (low is not None and high is not None and not low <= high):
        raise ContractError(
            f"The expected range of column '{expectation.column}' must have at least one bound, "
            f"and low must not exceed high, got low={low}, high={high}.",
            fix="Correct the workload's expectation.",
        )


def _unmeasurable_reason(frame: pd.DataFrame, expectation: Expectation) -> str:
    """Return why the expectation cannot be measured on this table, or an empty string."""
    column_names = [str(column) for column in frame.columns]
    tests_existence = (
        isinstance(expectation, EngineExpectation) and expectation.name == "ExpectColumnToExist"
    )
    for column in () if tests_existence else columns_of(expectation):
        if column not in column_names:
            return f"Column '{column}' is missing.{suggest_nearest(column, column_names)}"
        if column_names.count(column) > 1:
            return f"The table has {column_names.count(column)} columns named '{column}'."
    if frame.empty and not isinstance(expectation, RowCount):
        return "The table has no rows."
    if isinstance(expectation, EngineExpectation):
        try:
            _translate(expectation, {})
        except SluiceError as error:
            return error.what
    return ""


def _validate(
    frame: pd.DataFrame,
    expectations: Sequence[Expectation],
    suite: str,
    result_format: Mapping[str, object],
) -> Any:
    """Run the engine once with all expectations and return its result."""
    with warnings.catch_warnings():
        # The import loads two modules that are deprecated in Python 3.11.
        warnings.filterwarnings("ignore", r"module 'sre_\w+' is deprecated", DeprecationWarning)
        import great_expectations as gx
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    context = gx.get_context(
        mode="ephemeral",  # writes no file
        project_config=DataContextConfig(
            store_backend_defaults=InMemoryStoreBackendDefaults(init_temp_docs_sites=False),
            analytics_enabled=False,
            progress_bars=ProgressBarsConfig(globally=False),
        ),
    )
    columns = dict.fromkeys(column for e in expectations for column in columns_of(e))
    if any(isinstance(e, EngineExpectation) for e in expectations):  # these may use any column
        columns = dict.fromkeys(frame.columns)
    # Use positions as index: labels may repeat, and the index may have the name of a column.
    table = frame.loc[:, list(columns)].reset_index(drop=True)
    asset = context.data_sources.add_pandas("pandas").add_dataframe_asset("table")
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch(
        batch_parameters={"dataframe": table}
    )
    engine_result = batch.validate(
        gx.ExpectationSuite(
            name=suite,
            # ``meta`` contains the position, because the engine returns results in another order.
            expectations=[_translate(e, {"position": i}) for i, e in enumerate(expectations)],
        ),
        result_format=dict(result_format),
    )
    for result in engine_result.results:
        result.result = _to_python_numbers(result.result)
    return engine_result


def _to_python_numbers(value: Any) -> Any:
    """Convert NumPy numbers to Python numbers; the engine's renderer fails on NumPy 2 numbers."""
    if isinstance(value, Mapping):
        return {name: _to_python_numbers(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_to_python_numbers(item) for item in value)
    return value.item() if isinstance(value, np.generic) else value


def _raw_results_by_expectation(
    engine_result: Any, expectations: Sequence[Expectation]
) -> dict[Expectation, Mapping[str, Any]]:
    raw_results: dict[Expectation, Mapping[str, Any]] = {}
    for result in engine_result.results:
        raw_results[expectations[result.expectation_config.meta["position"]]] = {
            "success": result.success,
            "result": result.result,
            "exception_info": result.exception_info,
        }
    return raw_results


def _translate(expectation: Expectation, meta: dict[str, Any]) -> Any:
    import great_expectations as gx

    gxe: Any = gx.expectations
    match expectation:
        case NotNull(column=column):
            return gxe.ExpectColumnValuesToNotBeNull(column=column, meta=meta)
        case Between(column=column, low=low, high=high, mostly=mostly):
            return gxe.ExpectColumnValuesToBeBetween(
                column=column, min_value=low, max_value=high, mostly=mostly, meta=meta
            )
        case GreaterOrEqual(column=column, other=other):
            return gxe.ExpectColumnPairValuesAToBeGreaterThanB(
                column_A=column,
                column_B=other,
                or_equal=True,
                ignore_row_if="either_value_is_missing",
                meta=meta,
            )
        case InSet(column=column, values=values):
            return gxe.ExpectColumnValuesToBeInSet(column=column, value_set=list(values), meta=meta)
        case RowCount(low=low):
            return gxe.ExpectTableRowCountToBeBetween(min_value=low, meta=meta)
        case StdBetween(column=column, low=low, high=high):
            return gxe.ExpectColumnStdevToBeBetween(
                column=column, min_value=low, max_value=high, meta=meta
            )
        case EngineExpectation(expectation=path, name=name, keywords=keywords):
            cls = import_object(path, what="expectation")
            try:
                return cls(**keywords, meta=meta)
            except (TypeError, ValueError) as error:
                raise ContractError(
                    f"{name} cannot be built from {keywords}: {error}.",
                    fix="Correct the arguments of the workload's expectation.",
                ) from error
