"""POC-8: an example does not depend on which other rows its split holds."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.base.errors import ContractError
from sluice.config.poc_settings import PocSettings
from sluice.data.folds import Fold, RowRange
from sluice.findings.finding import Finding
from sluice.findings.user_code import users_code
from sluice.workloads.workload import Examples, Workload

_ROUNDING = 1e-5
"""Largest difference of one example computed twice, by blocks of another size [std]."""

_Part = tuple[str, pd.DataFrame, RowRange]


def check_examples_stand_alone(
    workload: Workload, frame: pd.DataFrame, folds: tuple[Fold, ...], settings: PocSettings
) -> Finding:
    """Ask for the same examples among other rows; they must stay what they were (POC-8).

    The train and validation rows of the first fold are asked for whole, without their last and
    without their first quarter, and with every later row of the table gone. An example that is in
    both answers must have the same x and y: an input scaled, filled or encoded with statistics of
    its split, or of the whole table, is not.

    Args:
        workload: Makes the examples.
        frame: The feature frame.
        folds: Without one the outcome is "insufficient".
        settings: ``split_rows``, how much of a split is looked at.

    Raises:
        ContractError: ``examples()`` raised on a split as it is.

    Assumes:
        The missing rows matter to the statistic: a gap filled with the last value before it shows
        only where a gap stands first after the cut.

    Cost:
        Eight calls of ``examples()`` on at most ``split_rows`` rows.
    """
    compared = 0
    for split in ("val", "train") if folds else ():
        rows = _piece(folds[0].train if split == "train" else folds[0].val, settings.split_rows)
        with users_code("examples() of the workload"):
            usual = workload.examples(frame, rows)
        for change, table, part in _parts(frame, rows, workload.horizon_rows):
            try:
                with users_code("examples() of the workload"):
                    other = workload.examples(table, part)
            except ContractError:  # too few rows for a window
                continue
            num_common, difference = _difference(usual, other)
            compared += num_common
            if difference:
                again = _difference(usual, workload.examples(frame, rows))[1]
                return _dependent(workload, split, change, difference, again)
    numbers = {"examples_compared": compared}
    if compared == 0:
        return Finding(
            outcome="insufficient",
            summary="At least one example is required in a split and in a part of it, got none.",
            numbers=numbers,
            cause="There is no fold, or its splits are hardly longer than one window.",
            fix="Give more rows, or shorten seq_len.",
        )
    return Finding(
        outcome="pass",
        summary=f"{compared} examples were the same among fewer rows of their split.",
        numbers=numbers,
    )


def _piece(rows: RowRange, most: int) -> RowRange:
    """Return the last rows of a split: the first ones of a table may lack a past."""
    return RowRange(start=max(rows.start, rows.stop - most), stop=rows.stop)


def _parts(frame: pd.DataFrame, rows: RowRange, horizon_rows: int) -> Iterator[_Part]:
    quarter = max(1, len(rows) // 4)
    if len(rows) > quarter:
        yield (
            "the last quarter of the split's rows is gone",
            frame,
            RowRange(start=rows.start, stop=rows.stop - quarter),
        )
        yield (
            "the first quarter of the split's rows is gone",
            frame,
            RowRange(start=rows.start + quarter, stop=rows.stop),
        )
    later = rows.stop + horizon_rows
    if later < len(frame):
        yield "the rows after the split are gone", frame.iloc[:later], rows


def _difference(usual: Examples, other: Examples) -> tuple[int, str]:
    """Return how many examples are in both, and the first that differs in words, or nothing."""
    common, here, there = np.intersect1d(usual.rows, other.rows, return_indices=True)
    if common.size == 0:
        return 0, ""
    for name in ("x", "y"):
        one, two = (
            getattr(examples, name)[torch.from_numpy(place)]
            for examples, place in ((usual, here), (other, there))
        )
        differs = _differing(one, two)
        if differs.any():
            first = int(differs.argmax())
            return common.size, (
                f"{name} of {differs.sum()} of {common.size} examples, first of row {common[first]}"
            )
    return common.size, ""


def _differing(one: Tensor, two: Tensor) -> NDArray[np.bool_]:
    """Return which examples (N,) differ by more than rounding."""
    if one.dtype != two.dtype or one.ndim != two.ndim:
        return np.ones(len(one), bool)
    if one.shape != two.shape:
        # Padded to the longest of the split: the shorter must be an end of the longer.
        width = min(one.shape[1], two.shape[1])
        front = _differing_alike(one[:, :width], two[:, :width])
        back = _differing_alike(one[:, -width:], two[:, -width:])
        return front if front.sum() <= back.sum() else back
    return _differing_alike(one, two)


def _differing_alike(one: Tensor, two: Tensor) -> NDArray[np.bool_]:
    if one.shape != two.shape:
        return np.ones(len(one), bool)
    if not one.is_floating_point():
        return np.asarray((one != two).reshape(len(one), -1).any(dim=1))
    flat, other = (t.reshape(len(t), -1).double() for t in (one, two))
    scale = flat.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).std(dim=0, correction=0)
    slack = _ROUNDING * scale + 1e-6 * flat.abs()
    same = (flat == other) | (flat.isnan() & other.isnan()) | ((flat - other).abs() <= slack)
    return np.asarray((~same).any(dim=1))


def _dependent(workload: Workload, split: str, change: str, difference: str, again: str) -> Finding:
    numbers = {"split": split}
    if again:
        return Finding(
            outcome="fail",
            summary=f"examples() gives others when it is called twice for the same {split} rows: "
            f"{again}.",
            numbers=numbers,
            kind="examples depend on their split",
            cause="examples() draws random numbers or keeps state, so no run can be repeated.",
            fix="Make examples() a function of frame and rows; augment in the model, while "
            "training.",
        )
    whole_table = "after the split" in change
    return Finding(
        outcome="fail",
        summary=f"Fold 0, {split}: when {change}, {type(workload).__name__}.examples() gives other "
        f"values in {difference}.",
        numbers=numbers,
        kind="examples depend on their split",
        cause="Inputs or targets are made with statistics of the whole table, test rows included."
        if whole_table
        else "",
    )
