"""Requests with windows of feature rows, and their conversion to arrays.

Servers import this module without torch.

Shape legend: N = windows, L = rows of a window, D = features.
"""

import functools
from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from sluice.base.errors import PayloadError
from sluice.base.format_range import format_range
from sluice.base.pluralize import pluralize
from sluice.base.settings import suggest_nearest
from sluice.workloads.codecs.request import CodecRequest

# fail_fast: validation stops at the first error of a list. Without it, a body of 4 MiB with an
# error in every element took 6 s and 2.2 GB for the descriptions of the errors.
FeatureRow = Annotated[list[FiniteFloat], Field(min_length=1, fail_fast=True)]
WindowRows = Annotated[list[FeatureRow], Field(min_length=1, fail_fast=True)]

_MAX_COMPARED_CHARS = 200
"""Number of characters of an unknown column name that are compared with the required names."""

MAX_MAGNITUDE = 2.0**63
"""Maximum magnitude of a value. Squares of accepted values, up to 2^126, do not overflow single
precision."""


class PredictRequest(CodecRequest):
    """Body of ``POST /predict``."""

    elements_field: ClassVar[str] = "windows"

    columns: list[str] = Field(
        min_length=1,
        max_length=100_000,
        fail_fast=True,
        description="Name of each value of a row. The columns may have any order.",
    )
    windows: list[WindowRows] = Field(
        min_length=1,
        max_length=100_000,
        fail_fast=True,
        description="One window for each prediction. A window has seq_len rows, the newest last. "
        "A row has one number for each column.",
    )


class WindowReader:
    """Converts the windows of a request to an array, and describes what is wrong with them.

    Args:
        columns: Feature columns, in the order of the network.
        seq_len: Number of rows of a window (L).
        bounds: Lowest and highest accepted value of each column; None accepts every magnitude up to
            2^63.
    """

    def __init__(
        self,
        columns: Sequence[str],
        seq_len: int,
        *,
        bounds: Sequence[tuple[float, float]] | None = None,
    ) -> None:
        self.columns, self.seq_len = tuple(columns), seq_len
        self._bounds = bounds

    @functools.cached_property
    def _names(self) -> list[str]:
        return list(self.columns)

    @functools.cached_property
    def _limits(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the lowest and the highest accepted value of each column."""
        bounds = self._bounds or ((-MAX_MAGNITUDE, MAX_MAGNITUDE),) * len(self.columns)
        low_D, high_D = np.array(bounds, np.float64).T
        return low_D, high_D

    def read_windows(self, request: PredictRequest) -> NDArray[np.float32]:
        """Return the windows (N, L, D) in the network's column order.

        Raises:
            PayloadError: A column is missing, unknown or duplicated; a window or row has the
                wrong length; a value is outside the bounds of its column.
        """
        self._require_columns(request.columns)
        try:
            windows_NLD = np.array(request.windows, dtype=np.float64)
        except ValueError:  # rows or windows of different lengths
            raise self._shape_error(request.windows) from None
        if windows_NLD.shape[1:] != (self.seq_len, len(self.columns)):
            raise self._shape_error(request.windows)
        if request.columns != self._names:
            order = [request.columns.index(name) for name in self.columns]
            windows_NLD = windows_NLD[:, :, order]
        self._require_bounds(windows_NLD)
        return windows_NLD.astype(np.float32)

    def _require_bounds(self, windows_NLD: NDArray[np.float64]) -> None:
        """Refuse values far outside the training data, so that no arm fails on them."""
        low_D, high_D = self._limits
        is_within_NLD = (windows_NLD >= low_D) & (windows_NLD <= high_D)  # False for NaN
        if is_within_NLD.all():
            return
        n, row, d = (int(i) for i in np.argwhere(~is_within_NLD)[0])
        raise PayloadError(
            f"A value of column '{self.columns[d]}' must be from {low_D[d]:.6g} to "
            f"{high_D[d]:.6g}, got {windows_NLD[n, row, d]:.6g} at windows.{n}.{row}.",
            cause="The value is far outside the training data, for example because of another "
            "unit.",
            fix="Send values in the unit of the training data. GET /model lists the bounds.",
        )

    def _shape_error(self, windows: list[WindowRows]) -> PayloadError:
        """Return the error for the first window that has the wrong shape."""
        num_columns = len(self.columns)
        number, window = next(
            (number, window)
            for number, window in enumerate(windows)
            if len(window) != self.seq_len or any(len(row) != num_columns for row in window)
        )
        lengths = [len(row) for row in window]
        return PayloadError(
            f"A window must have {pluralize(self.seq_len, 'row')} of "
            f"{pluralize(num_columns, 'value')}, got {pluralize(len(window), 'row')} of "
            f"{format_range(min(lengths), max(lengths))} values in windows.{number}.",
            fix=f"Send the newest {pluralize(self.seq_len, 'row')}, the row of the prediction "
            "last, with one value per column.",
        )

    def _require_columns(self, columns: list[str]) -> None:
        if columns == self._names:
            return
        require_columns(columns, self.columns, what="feature")


def require_columns(columns: list[str], expected: Sequence[str], *, what: str) -> None:
    """Require exactly the expected columns, in any order.

    Args:
        columns: Columns of a request.
        expected: Columns that are required.
        what: Noun for a column, for the message.

    Raises:
        PayloadError: A column is missing, unknown or duplicated.
    """
    known_names, requested_names = set(expected), set(columns)
    if requested_names == known_names and len(columns) == len(expected):
        return
    missing_names = [name for name in expected if name not in requested_names]
    unknown_names = [name for name in dict.fromkeys(columns) if name not in known_names]
    num_duplicates = len(columns) - len(requested_names)
    problems = {
        "missing": _format_names(missing_names),
        "unknown": _format_names(unknown_names),
        "duplicates": f"{num_duplicates:,}" if num_duplicates else "",
    }
    problem_text = "; ".join(f"{problem}: {names}" for problem, names in problems.items() if names)
    hint = (
        suggest_nearest(unknown_names[0][:_MAX_COMPARED_CHARS], missing_names)
        if unknown_names
        else ""
    )
    raise PayloadError(
        f"Columns must be exactly the {pluralize(len(expected), what)} of the model; "
        f"{problem_text}.{hint}",
        fix="GET /model lists the columns.",
    )


def _format_names(names: list[str]) -> str:
    """Return at most eight names, each cut to 60 characters, because clients choose the names."""
    short_names = [name[:60] for name in names[:8]]
    return ", ".join(short_names) + (", ..." if len(names) > len(short_names) else "")
