"""Input contract of a model: its columns, the length of its windows, and the accepted values.

A window has consecutive feature rows; the model predicts from the last row. Clients send features
and not raw rows, because ``compute_features`` of a workload drops the newest raw row, whose target
is not known yet, and this is the row to predict from. Columns are matched by name, in any order.

Shape legend: N = windows, L = rows of a window, D = features.
"""

import functools
import json
import re
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
)

from sluice.base.pluralize import pluralize
from sluice.base.settings import Record, suggest_nearest
from sluice.serving.http_errors import BadRequest, InvalidInput, PayloadTooLarge, UnknownModel

# fail_fast: validation stops at the first error of a list. Without it, a body of 4 MiB with an
# error in every element took 6 s and 2.2 GB for the descriptions of the errors.
Row = Annotated[list[FiniteFloat], Field(min_length=1, fail_fast=True)]
WindowRows = Annotated[list[Row], Field(min_length=1, fail_fast=True)]

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Control characters are not allowed in row keys; PostgreSQL rejects text with NUL."""


def _require_printable(key: str) -> str:
    match = _CONTROL_CHARACTERS.search(key)
    if match is not None:
        raise ValueError(f"must contain no control characters, got one at {match.start()}")
    return key


_MAX_COMPARED_CHARS = 200
"""Number of characters of an unknown column name that are compared with the known names."""
_MAX_DESCRIBED_ERRORS = 100
"""Maximum number of errors of a body that are described; only unknown keys can cause more."""

MAX_MAGNITUDE = 2.0**63
"""Maximum magnitude of a value. The square of a larger value overflows single precision."""

RowKey = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_require_printable)]


class PredictRequest(BaseModel):
    """Body of ``POST /predict``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = Field(
        None,
        max_length=200,
        description="Name of the model. If given, the request is refused if the server serves "
        "another model.",
    )
    user: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="User key. During a rollout the same user always gets the same arm. Without "
        "it, the arm is drawn at random for every request.",
    )
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
    keys: Annotated[list[RowKey], Field(fail_fast=True)] | None = Field(
        None,
        description="Index label of each window's newest row, as in the features table. With it, "
        "the predictions can be evaluated once the rows have labels. Must not contain control "
        "characters.",
    )


class InputContract(Record):
    """Input of one model."""

    columns: tuple[str, ...] = Field(description="Feature columns, in the order of the network.")
    seq_len: int = Field(ge=1, description="Number of rows of a window.")
    bounds: tuple[tuple[float, float], ...] | None = Field(
        None,
        description="Lowest and highest accepted value of each column. Null if training stored no "
        f"scale of the columns; magnitudes up to {MAX_MAGNITUDE:g} are then accepted.",
    )

    @functools.cached_property
    def _names(self) -> list[str]:
        return list(self.columns)

    @functools.cached_property
    def _limits(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the lowest and the highest accepted value of each column."""
        bounds = self.bounds or ((-MAX_MAGNITUDE, MAX_MAGNITUDE),) * len(self.columns)
        low_D, high_D = np.array(bounds, np.float64).T
        return low_D, high_D

    def takes_same(self, other: "InputContract") -> bool:
        """Return whether both contracts have the same columns and window length.

        The accepted value ranges may differ.
        """
        return (self.columns, self.seq_len) == (other.columns, other.seq_len)

    def tensor(self, request: PredictRequest) -> NDArray[np.float32]:
        """Return the windows (N, L, D) in the network's column order.

        Raises:
            InvalidInput: A column is missing, unknown or duplicated; a window or row has the
                wrong length; a value is outside the bounds of its column.
        """
        self._require_columns(request.columns)
        if request.keys is not None and len(request.keys) != len(request.windows):
            raise InvalidInput(
                f"keys needs one entry for each of {len(request.windows)} windows, got "
                f"{len(request.keys)}.",
                fix="Send one key for each window, or leave keys out.",
            )
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
        within_NLD = (windows_NLD >= low_D) & (windows_NLD <= high_D)  # False for NaN
        if within_NLD.all():
            return
        n, row, d = (int(i) for i in np.argwhere(~within_NLD)[0])
        raise InvalidInput(
            f"A value of column '{self.columns[d]}' must be from {low_D[d]:.6g} to "
            f"{high_D[d]:.6g}, got {windows_NLD[n, row, d]:.6g} at windows.{n}.{row}.",
            cause="The value is far outside the training data, for example because of another "
            "unit.",
            fix="Send values in the unit of the training data. GET /model lists the bounds.",
        )

    def _shape_error(self, windows: list[WindowRows]) -> InvalidInput:
        """Return the error for the first window that has the wrong shape."""
        num_columns = len(self.columns)
        number, window = next(
            (number, window)
            for number, window in enumerate(windows)
            if len(window) != self.seq_len or any(len(row) != num_columns for row in window)
        )
        lengths = sorted({len(row) for row in window})
        return InvalidInput(
            f"A window must have {self.seq_len} rows of {num_columns} values, got {len(window)} "
            f"rows of {lengths[0]} to {lengths[-1]} values in windows.{number}.",
            fix="Send the rows up to the one to predict from, with one value per column.",
        )

    def _require_columns(self, columns: list[str]) -> None:
        if columns == self._names:
            return
        if set(columns) == set(self.columns) and len(columns) == len(self.columns):
            return
        expected, requested = set(self.columns), set(columns)
        missing = [name for name in self.columns if name not in requested]
        unknown = [name for name in dict.fromkeys(columns) if name not in expected]
        num_duplicates = len(columns) - len(requested)
        hint = suggest_nearest(unknown[0][:_MAX_COMPARED_CHARS], missing) if unknown else ""
        raise InvalidInput(
            f"Columns must be exactly the {pluralize(len(self.columns), 'feature')}: "
            f"missing {_listed(missing)}, unknown {_listed(unknown)}, duplicates "
            f"{num_duplicates}.{hint}",
            fix="GET /model lists the columns.",
        )


def read_request(body: bytes, *, model: str, max_windows: int) -> PredictRequest:
    """Parse the body of a request.

    Args:
        body: Bytes of the body.
        model: Name of the served model.
        max_windows: Maximum number of windows of a request.

    Raises:
        BadRequest: The body is not JSON.
        InvalidInput: A key is missing or unknown, or a value has the wrong type. The message
            names the keys and does not repeat values.
        UnknownModel: The request names another model.
        PayloadTooLarge: The request has too many windows.
    """
    try:
        request = PredictRequest.model_validate_json(body)
    except ValidationError as error:
        if error.error_count() > _MAX_DESCRIBED_ERRORS:
            raise InvalidInput(
                f"The body has {error.error_count()} errors, most of them unknown keys.",
                fix="See /openapi.json for the schema.",
            ) from None
        errors = error.errors(include_input=False, include_url=False)
        if errors[0]["type"] == "json_invalid":
            raise BadRequest(
                f"The body must be JSON: {errors[0]['msg']}.", fix="Send one JSON object."
            ) from None
        details = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'body'}: {problem['msg']}"[:200]
            for problem in errors[:5]
        )
        raise InvalidInput(
            f"{len(errors)} {'value' if len(errors) == 1 else 'values'} of the body "
            f"{'is' if len(errors) == 1 else 'are'} wrong: {details}.",
            fix="See /openapi.json for the schema, and GET /model for the columns.",
        ) from None
    if request.model is not None and request.model != model:
        raise UnknownModel(
            f"This server does not serve the model {json.dumps(request.model)}; it serves {model}.",
            fix=f"Send the request with model {model}, or without model.",
        )
    if len(request.windows) > max_windows:
        raise PayloadTooLarge(
            f"A request may have at most {max_windows} windows, got {len(request.windows)}.",
            fix="Send several requests.",
        )
    return request


def _listed(names: list[str]) -> str:
    """List names for a message. The caller chose them, so only a few are shown, shortened."""
    shown = [name[:60] for name in names[:8]]
    return (", ".join(shown) + (", ..." if len(names) > len(shown) else "")) or "none"
