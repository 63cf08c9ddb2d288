"""Derives the settings of a workload from a data frame: kinds of the columns, task and order."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.base.settings import suggest_nearest
from sluice.data.folds import FoldSettings
from sluice.workloads.repeated_inputs import are_separate_observations
from sluice.workloads.workload import WorkloadSettings

Task = Literal["auto", "regression", "classification"]
RowOrder = Literal["auto", "time", "hash"]

MISSING = "(missing)"
"""Category of a missing text."""

_MAX_CATEGORIES = 32
"""Maximum number of values of a text column, which becomes one input for each value."""
_MAX_INTEGER_CLASSES = 20
"""Maximum number of distinct integers that count as classes if the task is 'auto'."""


class FrameSettings(WorkloadSettings):
    """Settings of a workload on a data frame; ``infer_settings`` derives them from the frame."""

    seq_len: Literal[1] = Field(1, description="Each row is one example [rows].")
    table: str = Field(description="Artifact digest of the stored frame.")
    target: str = Field(description="Column to predict.")
    numbers: tuple[str, ...] = Field((), strict=False, description="Numeric input columns.")
    categories: dict[str, Annotated[tuple[str, ...], Field(strict=False)]] = Field(
        {}, description="Values of each input column of texts, by column name."
    )
    labels: tuple[str, ...] = Field(
        (), strict=False, description="Classes of the target; empty for a regression."
    )
    time_ordered: bool = Field(
        description="Whether rows are in time order. Otherwise they are independent, and ordered "
        "by a hash of their inputs."
    )
    repeated_inputs: bool = Field(
        False,
        description="Whether independent rows with equal inputs are separate observations, which "
        "are distributed over train, validation and test rows.",
    )
    horizon_rows: int = Field(
        ge=0,
        description="Number of rows from a row to the end of its target; 0 for independent rows "
        "[rows].",
    )


def infer_settings(
    frame: pd.DataFrame,
    *,
    table: str,
    target: str,
    features: Sequence[str] | None,
    task: Task,
    order: RowOrder,
    horizon_rows: int | None,
    folds: FoldSettings | None,
) -> FrameSettings:
    """Return the settings of a workload on a frame.

    Args:
        frame: The rows, with the columns that ``require_columns`` checks.
        table: Artifact digest of the stored frame.
        target: Column to predict.
        features: Input columns; None for all others.
        task: With 'auto', texts, booleans and up to 20 distinct integers are classes.
        order: With 'auto', an index of dates means time order; any other index means independent
            rows.
        horizon_rows: None for 1 in time order, and 0 for independent rows.
        folds: None for four folds in time order, and two folds of independent rows.

    Raises:
        ContractError: A column has missing values, or can be neither an input nor a target.
    """
    inputs = [name for name in frame.columns if name != target] if features is None else features
    if target in inputs or not inputs:
        raise ContractError(
            f"The inputs must be one or more columns other than the target '{target}', got "
            f"{', '.join(inputs) or 'none'}.",
            fix="Pass the input columns as 'features'.",
        )
    text_columns = [name for name in inputs if _is_text(frame[name])]
    for name in inputs:
        if name not in text_columns:
            _require_number(frame[name])
    is_time_ordered = order == "time" or (
        order == "auto" and isinstance(frame.index, pd.DatetimeIndex)
    )
    if is_time_ordered and not frame.index.is_unique:
        raise ContractError(
            "Rows in time order must have distinct index labels, got "
            f"{pluralize(int(frame.index.duplicated().sum()), 'repeated label')}, the first "
            f"{frame.index[frame.index.duplicated()][0]}.",
            cause="Several rows belong to the same time, such as several assets of one day.",
            fix="Write a workload with cluster_column, which counts them as one observation.",
        )
    return FrameSettings(
        table=table,
        target=target,
        numbers=tuple(name for name in inputs if name not in text_columns),
        categories={name: _categories(frame[name]) for name in text_columns},
        labels=_class_labels(frame[target], task),
        time_ordered=is_time_ordered,
        repeated_inputs=not is_time_ordered and are_separate_observations(frame[list(inputs)]),
        horizon_rows=(1 if is_time_ordered else 0) if horizon_rows is None else horizon_rows,
        folds=folds or (FoldSettings() if is_time_ordered else _INDEPENDENT_FOLDS),
    )


def require_columns(frame: pd.DataFrame, names: Sequence[str]) -> None:
    """Raise an error unless the frame has each of these columns once.

    Raises:
        ContractError: A column is missing (the message suggests the nearest name), or two columns
            have the same name.
    """
    column_names = list(frame.columns)
    repeated_names = sorted({name for name in column_names if column_names.count(name) > 1})
    if repeated_names:
        raise ContractError(
            "The columns of the frame must have distinct names, got "
            f"{', '.join(repeated_names)} twice.",
            fix="Rename or drop one of them.",
        )
    for name in names:
        if name not in column_names:
            raise ContractError(
                f"The frame has no column '{name}'.{suggest_nearest(name, column_names)}",
                fix=f"Use one of its columns: {', '.join(column_names) or 'none'}.",
            )


_INDEPENDENT_FOLDS = FoldSettings(num_folds=2, first_test_share=0.5, embargo_rows=0)


def as_text(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return the values of a column as texts; missing values become ``MISSING``."""
    return column.map(str).where(column.notna(), MISSING).astype("str")


def _is_text(column: "pd.Series[Any]") -> bool:
    return not pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_datetime64_any_dtype(
        column
    )


def _require_number(column: "pd.Series[Any]") -> None:
    if pd.api.types.is_datetime64_any_dtype(column):
        raise ContractError(
            f"The input '{column.name}' must be numbers or texts, got dates.",
            fix="Convert the dates to numbers, such as the month; or leave the column out of "
            "'features'. If it orders the rows, set it as the index.",
        )
    if column.isna().any():
        raise ContractError(
            f"The input '{column.name}' must have no missing numbers, got "
            f"{int(column.isna().sum())} in {len(column)} rows.",
            fix="Fill the missing numbers, and add a column that marks them; or drop the rows.",
        )


def _categories(column: "pd.Series[Any]") -> tuple[str, ...]:
    values = sorted(set(as_text(column)))
    if len(values) > _MAX_CATEGORIES:
        raise ContractError(
            f"The input '{column.name}' must be numeric or have at most {_MAX_CATEGORIES} distinct "
            f"texts, got {len(values)}, such as {values[0][:40]!r}.",
            fix="Leave it out of 'features', or encode it as numbers.",
        )
    return tuple(values)


def _class_labels(target: "pd.Series[Any]", task: Task) -> tuple[str, ...]:
    """Return the classes of a target; () for a regression."""
    if target.isna().any():
        raise ContractError(
            f"The target '{target.name}' must have no missing values, got "
            f"{int(target.isna().sum())} in {len(target)} rows.",
            fix="Drop these rows.",
        )
    is_integer = pd.api.types.is_integer_dtype(target)
    has_few_values = target.nunique() <= _MAX_INTEGER_CLASSES
    is_class = (
        pd.api.types.is_bool_dtype(target) or _is_text(target) or (is_integer and has_few_values)
    )
    if task == "regression" or (task == "auto" and not is_class):
        if not pd.api.types.is_numeric_dtype(target):
            raise ContractError(
                f"The target '{target.name}' of a regression must be numbers, got {target.dtype}.",
                fix="Convert it to numbers, or use task='classification'.",
            )
        return ()
    values = sorted(target.unique()) if is_integer else sorted(set(as_text(target)))
    if len(values) < 2:
        raise ContractError(
            f"The target '{target.name}' must have at least two classes, got {len(values)}.",
            fix="Use another target, or add rows of other classes.",
        )
    return tuple(str(value) for value in values)
