"""Check that the features can be computed, match their schema, vary, and exclude the target."""

from collections.abc import Iterable

import numpy as np
import pandas as pd
from torch import Tensor

from sluice.base.pluralize import pluralize
from sluice.config.poc_settings import PocSettings
from sluice.data.folds import Fold
from sluice.data.rows.protocol import (
    ModelInput,
    RowSource,
    describe_input,
    flat_input,
)
from sluice.failfast.data.constant_columns import find_constant_features, find_constant_target
from sluice.failfast.data.fold_order import find_leaking_fold
from sluice.failfast.data.missing_classes import (
    find_classes_missing_in_splits,
    find_missing_classes,
)
from sluice.failfast.data.raw_schema import check_table_schema
from sluice.failfast.data.target_copies import find_target_copies
from sluice.failfast.data.unshuffled_rows import find_unshuffled_rows
from sluice.failfast.learning.example_sampling import sample_evenly
from sluice.findings.check_outcome import CheckOutcome
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload

_MAX_READ_ROWS = 256
"""Maximum number of examples of a split that are read from a source that is not in memory."""

_CONTAINERS = (np.ndarray, pd.DataFrame, pd.Series, list, tuple)
"""Types that have the methods of a row source, but whose methods do not return tensors."""


def check_features(
    workload: Workload,
    raw: pd.DataFrame,
    frame: pd.DataFrame,
    folds: tuple[Fold, ...],
    settings: PocSettings,
) -> CheckOutcome:
    """Check that a feature frame is suitable for training.

    The outcome is the first failure of these checks: schema, index labels, number of rows, folds
    (within the table, without leaks), an example of every declared class, and the examples of the
    first fold. If all pass, the outcome is the worst of five more checks: a constant target, a
    class without train or test rows, a target among the features, constant features, and
    independent rows in a systematic order.

    Args:
        workload: Declares the schema and builds the examples.
        raw: Raw rows, whose index labels the frame must keep.
        frame: Result of ``compute_features(raw)``.
        folds: Result of ``plan_folds(frame)``.
        settings: ``min_rows``, ``wide_table_columns``, ``target_copy_correlation`` and
            ``near_target_copy_correlation``.

    Cost:
        Dominated by ``examples()`` of the first fold's train and validation rows.
    """
    failure = (
        check_table_schema(
            frame, workload.feature_schema, stage="features", fault="feature schema mismatch"
        )
        or _find_missing_columns(workload, frame)
        or _find_unknown_labels(raw, frame)
        or _find_too_few_rows(frame, settings)
        or _find_invalid_folds(frame, folds)
        or find_leaking_fold(frame, folds)
        or find_missing_classes(workload, frame)
    )
    if failure is not None:
        return failure
    train = workload.examples(frame, folds[0].train)
    val = workload.examples(frame, folds[0].val)
    num_train, num_val = len(train), len(val)
    failure = _find_unusable_form(folds[0], train, val)
    if failure is not None:
        return failure
    num_read = min(len(train), _MAX_READ_ROWS)
    note = "" if train.is_in_memory else f" {num_read:,} train examples were read."
    train, val = _read_sample(train), _read_sample(val)
    failure = _find_unusable_values(workload, frame, folds[0], train, val)
    if failure is not None:
        return failure
    train_rows = frame.iloc[folds[0].train.start : folds[0].train.stop]
    problems = [
        finding
        for finding in (
            find_constant_target(workload, train.targets),
            find_classes_missing_in_splits(workload, frame, folds),
            find_target_copies(workload, frame, train, settings),
            find_constant_features(workload, frame, train_rows, settings),
            find_unshuffled_rows(workload, frame),
        )
        if finding is not None
    ]
    for outcome in ("fail", "warn"):
        for finding in problems:
            if finding.outcome == outcome:
                return finding
    return CheckOutcome(
        outcome="pass",
        summary=f"{pluralize(len(frame), 'row')}, "
        f"{pluralize(len(workload.feature_columns), 'feature')}; fold 0 has "
        f"{num_train} train and {num_val} validation examples, x {_example_shape(train.inputs)}, "
        f"y {_example_shape(train.targets)}.{note}",
        numbers={
            "rows": len(frame),
            "features": len(workload.feature_columns),
            "train_examples": num_train,
            "val_examples": num_val,
        },
    )


def _find_missing_columns(workload: Workload, frame: pd.DataFrame) -> CheckOutcome | None:
    """Return a finding for missing columns, or None.

    A workload with its own ``examples`` is not checked: it may not use these columns.
    """
    if type(workload).examples is not Workload.examples:
        return None
    required_columns = (*workload.feature_columns, workload.target_column)
    missing_columns = [name for name in required_columns if name not in frame.columns]
    if not missing_columns:
        return None
    return CheckOutcome(
        outcome="fail",
        summary="feature_columns and target_column name "
        f"{', '.join(map(repr, missing_columns))}, but compute_features returned "
        f"{', '.join(sorted(map(str, frame.columns)))}.",
        numbers={"missing": len(missing_columns)},
        fault="missing columns",
        fix="Correct feature_columns and target_column, or compute these columns.",
    )


def _find_unknown_labels(raw: pd.DataFrame, frame: pd.DataFrame) -> CheckOutcome | None:
    is_unknown = ~frame.index.isin(raw.index)
    if not is_unknown.any():
        return None
    return CheckOutcome(
        outcome="fail",
        summary=f"Features must keep the index labels of the raw rows; {is_unknown.sum():,} of "
        f"{len(frame):,} are new, first {frame.index[is_unknown][0]}.",
        numbers={"rows": len(frame), "new_labels": int(is_unknown.sum())},
        fault="feature schema mismatch",
        cause="compute_features resets or replaces the index, so a feature can no longer be "
        "traced to its row.",
        fix="Drop rows in compute_features without resetting the index of the remaining rows.",
    )


def _find_too_few_rows(frame: pd.DataFrame, settings: PocSettings) -> CheckOutcome | None:
    if len(frame) >= settings.min_rows:
        return None
    return CheckOutcome(
        outcome="fail",
        summary=f"At least {settings.min_rows:,} rows of features are required, got "
        f"{len(frame):,}.",
        numbers={"rows": len(frame)},
        fault="too few rows",
        cause="Windows are longer than the history, or dropna() includes a column that is mostly "
        "empty.",
        fix="Shorten the windows, limit dropna() to the needed columns, or load more rows.",
    )


def _find_invalid_folds(frame: pd.DataFrame, folds: tuple[Fold, ...]) -> CheckOutcome | None:
    if not folds:
        return CheckOutcome(
            outcome="fail",
            summary="At least one fold is required, plan_folds() returned none for "
            f"{len(frame):,} rows.",
            numbers={"rows": len(frame), "folds": 0},
            fault="too few rows",
            cause="The history is too short for the number and size of the folds.",
            fix="Provide more rows, or plan fewer or smaller folds.",
        )
    for fold in folds:
        stop = max(fold.train.stop, fold.val.stop, fold.test.stop)
        if stop > len(frame):
            return CheckOutcome(
                outcome="fail",
                summary=f"Fold {fold.fold_id} extends to row {stop}, but there are only "
                f"{len(frame):,} rows of features.",
                numbers={"rows": len(frame), "folds": len(folds)},
                fault="too few rows",
                cause="The folds were planned for another table.",
                fix="Plan the folds from the length of the feature frame.",
            )
    return None


def _example_shape(inputs: ModelInput) -> str:
    """Return the shape of one example; for a dict, the shapes by name."""
    if isinstance(inputs, Tensor):
        return str(tuple(inputs.shape[1:]))
    return str({name: tuple(tensor.shape[1:]) for name, tensor in inputs.items()})


def _read_sample(examples: Examples) -> Examples:
    """Return all examples, or evenly spaced examples if their source is not in memory."""
    return examples if examples.is_in_memory else sample_evenly(examples, _MAX_READ_ROWS)


def _find_unusable_form(fold: Fold, train: Examples, val: Examples) -> CheckOutcome | None:
    """Return a finding for examples of a wrong type or length, or outside of their split."""
    for split, examples, rows in (("train", train, fold.train), ("val", val, fold.val)):
        problem = _describe_wrong_form(examples)
        if not problem and (examples.rows.min() < rows.start or examples.rows.max() >= rows.stop):
            problem = f"rows must be within {rows.start}:{rows.stop}, got {examples.rows.min()} to "
            problem += f"{examples.rows.max()}"
        if problem:
            return CheckOutcome(
                outcome="fail",
                summary=f"Fold {fold.fold_id}, {split}: {problem}.",
                fault="shape mismatch",
                cause="examples() returns another type, other lengths, or rows outside of the "
                "range that it was called with.",
                fix="Return Examples(x=..., y=..., rows=...) with tensors of equal length and the "
                "row positions in the feature frame.",
            )
    return None


def _find_unusable_values(
    workload: Workload, frame: pd.DataFrame, fold: Fold, train: Examples, val: Examples
) -> CheckOutcome | None:
    """Return a finding for non-finite values or different dtypes or shapes of splits, or None."""
    for split, examples in (("train", train), ("val", val)):
        for name, values, must_be_finite in (
            ("x", examples.inputs, workload.scale_inputs),
            ("y", examples.targets, workload.scale_target),
        ):
            if must_be_finite and (index := _first_non_finite(flat_input(values))) is not None:
                label = frame.index[examples.rows[index]]
                return CheckOutcome(
                    outcome="fail",
                    summary=f"Fold {fold.fold_id}, {split}: {name} must be finite, and is not in "
                    f"the example of row {examples.rows[index]} (label {label}).",
                    fault="feature schema mismatch",
                    cause="A feature or target has missing values or overflows. It is not declared "
                    "in feature_schema; the check of a declared column reports such values.",
                    fix="Fill or drop these rows in compute_features, and declare every feature "
                    "in feature_schema.",
                )
    return _find_split_mismatch(train, val, fold)


def _describe_wrong_form(examples: Examples) -> str:
    """Describe a wrong type or length of the examples; "" if type and lengths are right."""
    if not isinstance(examples, Examples):
        return f"examples() must return Examples, got {type(examples).__name__}"
    for name in ("x", "y"):
        source = getattr(examples, name)
        if isinstance(source, dict):
            return f"{name} must be a tensor or a row source, got a dict; wrap it in DictRows"
        if isinstance(source, Iterable) and not hasattr(source, "__getitem__"):
            return (
                f"{name} must be a tensor or a row source, got the stream {type(source).__name__}, "
                "whose rows cannot be read in another order; write it once with 'sluice pack "
                "SOURCE DIR', and return ShardRows(DIR, ...)"
            )
        if isinstance(source, _CONTAINERS) or not isinstance(source, Tensor | RowSource):
            return f"{name} must be a tensor or a row source, got {type(source).__name__}"
    lengths = (len(examples.x), len(examples.y), len(examples.rows))
    if len(set(lengths)) > 1 or 0 in lengths:
        return "x, y and rows must have the same length and not be empty, got {}, {} and {}".format(
            *lengths
        )
    return ""


def _first_non_finite(tensor: Tensor) -> int | None:
    if not tensor.is_floating_point():
        return None
    is_nonfinite = ~tensor.isfinite()
    return (
        int(is_nonfinite.reshape(len(is_nonfinite), -1).any(dim=1).int().argmax())
        if is_nonfinite.any()
        else None
    )


def _find_split_mismatch(train: Examples, val: Examples, fold: Fold) -> CheckOutcome | None:
    """Return a finding if the dtype or shape of an example differs between splits, or None.

    The length of sequences may differ.
    """
    pairs = {"x": (train.inputs, val.inputs), "y": (train.targets, val.targets)}
    for name, (train_values, val_values) in pairs.items():
        if not _have_same_form(train_values, val_values):
            return CheckOutcome(
                outcome="fail",
                summary=f"Fold {fold.fold_id}: {name} is {describe_input(train_values)} in train "
                f"and {describe_input(val_values)} in val.",
                fault="shape mismatch",
                cause="examples() encodes each split separately.",
                fix="Use the same columns, categories and dtype for every split.",
            )
    return None


def _have_same_form(one: ModelInput, two: ModelInput) -> bool:
    """Return whether names, dtypes and numbers of axes are equal, and the axes of single tensors.

    The second axis may be the length of a sequence. It may differ in tensors of three or more axes,
    and in two-dimensional tensors of integers.
    """
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        has_same_axes = (
            one.shape[2:] == two.shape[2:] if one.ndim > 2 else _have_same_width(one, two)
        )
        return one.dtype == two.dtype and one.ndim == two.ndim and has_same_axes
    if isinstance(one, Tensor) or isinstance(two, Tensor):
        return False
    return one.keys() == two.keys() and all(
        tensor.dtype == two[name].dtype and tensor.ndim == two[name].ndim
        for name, tensor in one.items()
    )


def _have_same_width(one: Tensor, two: Tensor) -> bool:
    return one.shape[1:] == two.shape[1:] or not one.is_floating_point()
