"""Check that an example does not depend on the other rows of its split."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.config.poc_settings import PocSettings
from sluice.data.folds import Fold, RowRange
from sluice.data.rows.protocol import ModelInput, input_length, input_parts, spread_rows
from sluice.findings.check_outcome import CheckOutcome
from sluice.findings.user_code import wrap_user_errors
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload

_MAX_ROUNDING_ERROR = 1e-5
"""Maximum difference by rounding if an example is computed in blocks of another size [standard
deviations of the split's values]."""

_MAX_READ_ROWS = 64
"""Maximum number of examples that are compared if their source is not in memory."""

_ReducedSplit = tuple[str, pd.DataFrame, RowRange]
"""Description of the removed rows, the table, and the remaining rows of the split."""


def check_split_independence(
    workload: Workload, frame: pd.DataFrame, folds: tuple[Fold, ...], settings: PocSettings
) -> CheckOutcome:
    """Compute examples again from fewer rows and compare them with the original examples.

    This is done for the train and the validation split of the first fold. The examples are computed
    from all rows of the split, and again in three ways: without the last quarter of the split,
    without the first quarter, and without the rows of the table after the split. Common examples
    must have equal x and y. They differ if values are scaled, filled or encoded with statistics of
    the split or of the whole table.

    Args:
        workload: Builds the examples.
        frame: The feature frame.
        folds: Planned folds; without a fold the outcome is "insufficient".
        settings: ``split_rows``. Of a longer split, only this number of last rows is used.

    Raises:
        ContractError: ``examples()`` raised on an unchanged split.

    Assumes:
        The removed rows affect the examples. For example, a forward fill is detected only if a gap
        directly follows the removed first quarter.

    Cost:
        Eight calls of ``examples()`` on at most ``split_rows`` rows.
    """
    num_compared = 0
    for split in ("val", "train") if folds else ():
        rows = _last_rows(folds[0].train if split == "train" else folds[0].val, settings.split_rows)
        with wrap_user_errors("examples() of the workload"):
            original_examples = workload.examples(frame, rows)
        for change, table, remaining_rows in _reduce_split(frame, rows, workload.horizon_rows):
            try:
                with wrap_user_errors("examples() of the workload"):
                    partial_examples = workload.examples(table, remaining_rows)
            except ContractError:  # too few rows for a window
                continue
            num_common, difference = _compare_examples(original_examples, partial_examples)
            num_compared += num_common
            if difference:
                repeated_examples = workload.examples(frame, rows)
                _, repeat_difference = _compare_examples(original_examples, repeated_examples)
                return _dependence_finding(workload, split, change, difference, repeat_difference)
    numbers = {"examples_compared": num_compared}
    if num_compared == 0:
        return CheckOutcome(
            outcome="insufficient",
            summary="No example could be computed from all rows of a split and from fewer rows.",
            numbers=numbers,
            cause="The workload has no fold, or the splits are hardly longer than one window.",
            fix="Provide more rows, or shorten seq_len.",
        )
    return CheckOutcome(
        outcome="pass",
        summary=f"{pluralize(num_compared, 'comparison')} of examples from all rows of a split "
        "with the same examples from fewer rows found no difference.",
        numbers=numbers,
    )


def _last_rows(rows: RowRange, max_rows: int) -> RowRange:
    """Return the last rows of a split; the first rows may lack the history for an example."""
    return RowRange(start=max(rows.start, rows.stop - max_rows), stop=rows.stop)


def _reduce_split(
    frame: pd.DataFrame, rows: RowRange, horizon_rows: int
) -> Iterator[_ReducedSplit]:
    quarter = max(1, len(rows) // 4)
    if len(rows) > quarter:
        yield (
            "the last quarter of the split's rows is removed",
            frame,
            RowRange(start=rows.start, stop=rows.stop - quarter),
        )
        yield (
            "the first quarter of the split's rows is removed",
            frame,
            RowRange(start=rows.start + quarter, stop=rows.stop),
        )
    stop = rows.stop + horizon_rows
    if stop < len(frame):
        yield "the rows after the split are removed", frame.iloc[:stop], rows


def _compare_examples(original: Examples, partial: Examples) -> tuple[int, str]:
    """Return the number of compared examples, and a description of the first difference or ""."""
    common_rows, original_indices, partial_indices = np.intersect1d(
        original.rows, partial.rows, return_indices=True
    )
    if common_rows.size == 0:
        return 0, ""
    if not (original.is_in_memory and partial.is_in_memory):
        positions = spread_rows(common_rows.size, _MAX_READ_ROWS).numpy()
        common_rows, original_indices, partial_indices = (
            common_rows[positions],
            original_indices[positions],
            partial_indices[positions],
        )
    one, two = original.take(original_indices), partial.take(partial_indices)
    pairs = {"x": (one.inputs, two.inputs), "y": (one.targets, two.targets)}
    for name, (value, other_value) in pairs.items():
        is_different = _is_input_different(value, other_value)
        if is_different.any():
            first = int(is_different.argmax())
            return common_rows.size, (
                f"{name} of {is_different.sum():,} of {common_rows.size:,} examples, first in row "
                f"{common_rows[first]}"
            )
    return common_rows.size, ""


def _is_input_different(one: ModelInput, two: ModelInput) -> NDArray[np.bool_]:
    """Return a mask (N,) of the examples that differ in any of their tensors."""
    tensor_pairs = tuple(zip(input_parts(one), input_parts(two), strict=False))
    same_names = isinstance(one, Tensor) == isinstance(two, Tensor) and (
        isinstance(one, Tensor) or isinstance(two, Tensor) or one.keys() == two.keys()
    )
    if not same_names:
        return np.ones(input_length(one), bool)
    return np.asarray(np.logical_or.reduce([_is_different(*pair) for pair in tensor_pairs]))


def _is_different(one: Tensor, two: Tensor) -> NDArray[np.bool_]:
    """Return a mask (N,) of the examples that differ by more than rounding errors."""
    if one.dtype != two.dtype or one.ndim != two.ndim:
        return np.ones(len(one), bool)
    if one.shape != two.shape:
        # examples() may pad sequences to the longest sequence of the split, at the end or at the
        # start. So the shorter tensor may equal the start or the end of the longer tensor.
        width = min(one.shape[1], two.shape[1])
        front = _is_different_equal_shape(one[:, :width], two[:, :width])
        back = _is_different_equal_shape(one[:, -width:], two[:, -width:])
        return front if front.sum() <= back.sum() else back
    return _is_different_equal_shape(one, two)


def _is_different_equal_shape(one: Tensor, two: Tensor) -> NDArray[np.bool_]:
    if one.shape != two.shape:
        return np.ones(len(one), bool)
    if not one.is_floating_point():
        return np.asarray((one != two).reshape(len(one), -1).any(dim=1))
    flat_one, flat_two = (t.reshape(len(t), -1).double() for t in (one, two))
    scale = flat_one.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).std(dim=0, correction=0)
    max_difference = _MAX_ROUNDING_ERROR * scale + 1e-6 * flat_one.abs()
    is_same = (
        (flat_one == flat_two)
        | (flat_one.isnan() & flat_two.isnan())
        | ((flat_one - flat_two).abs() <= max_difference)
    )
    return np.asarray((~is_same).any(dim=1))


def _dependence_finding(
    workload: Workload, split: str, change: str, difference: str, repeat_difference: str
) -> CheckOutcome:
    numbers = {"split": split}
    if repeat_difference:
        return CheckOutcome(
            outcome="fail",
            summary=f"examples() returns different values when it is called twice for the same "
            f"{split} rows: {repeat_difference}.",
            numbers=numbers,
            fault="split dependence",
            cause="examples() draws random numbers or keeps state, so no run is reproducible.",
            fix="Compute the examples only from frame and rows; apply augmentation in the model, "
            "in training mode.",
        )
    uses_later_rows = "after the split" in change
    return CheckOutcome(
        outcome="fail",
        summary=f"Fold 0, {split}: when {change}, {type(workload).__name__}.examples() returns "
        f"different values in {difference}.",
        numbers=numbers,
        fault="split dependence",
        cause="Inputs or targets use statistics of the whole table, including test rows."
        if uses_later_rows
        else "",
    )
