"""What a client sends: windows of feature rows, the last of which is the row to predict from.

The features, and not raw rows: a workload's ``compute_features`` drops the newest row, whose target
is not known yet, and that is the very row a client asks about. Columns go by name, in any order.

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

from sluice.base.pluralize import counted
from sluice.base.settings import Record, nearest
from sluice.serving.refusals import Malformed, TooLarge, UnknownModel, WrongInput

# Only the first error of a list is kept: a body of 4 MiB with an error in every element took 6 s
# and 2.2 GB for their descriptions.
Row = Annotated[list[FiniteFloat], Field(min_length=1, fail_fast=True)]
Window = Annotated[list[Row], Field(min_length=1, fail_fast=True)]

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""No name of a row has such a character, and PostgreSQL takes no text with the first of them."""


def _plain(key: str) -> str:
    found = _CONTROL.search(key)
    if found is not None:
        raise ValueError(f"must hold no control characters, got one at {found.start()}")
    return key


_COMPARED = 200
"""Characters of an unknown column's name that are compared with those of known ones."""
_MAX_ERRORS = 100
"""Errors of a body that are described; only unknown keys can cause more."""

LARGEST = 2.0**63
"""Largest magnitude of a value: the square of a larger one overflows single precision."""

Key = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_plain)]


class PredictRequest(BaseModel):
    """Body of ``POST /predict``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = Field(
        None, max_length=200, description="Refused when another model is served; may be left out."
    )
    user: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Whoever gets the same arm of a rollout each time. Without it every request "
        "is drawn by itself.",
    )
    columns: list[str] = Field(
        min_length=1,
        max_length=100_000,
        fail_fast=True,
        description="Names of the values of a row, in any order.",
    )
    windows: list[Window] = Field(
        min_length=1,
        max_length=100_000,
        fail_fast=True,
        description="One window for each prediction: seq_len rows, the newest last. One number for "
        "each column.",
    )
    keys: Annotated[list[Key], Field(fail_fast=True)] | None = Field(
        None,
        description="Name of each window's newest row, as in the features' index: lets predictions "
        "be judged once the rows have labels. Without control characters.",
    )


class InputContract(Record):
    """What one model takes."""

    columns: tuple[str, ...] = Field(description="Features, in the order of the network.")
    seq_len: int = Field(ge=1, description="Rows of a window.")
    bounds: tuple[tuple[float, float], ...] | None = Field(
        None,
        description="Lowest and highest value of each column that is taken; null where training "
        f"kept no scale of its columns: then magnitudes up to {LARGEST:g}.",
    )

    @functools.cached_property
    def _names(self) -> list[str]:
        return list(self.columns)

    @functools.cached_property
    def _limits(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the lowest and the highest value of each column."""
        bounds = self.bounds or ((-LARGEST, LARGEST),) * len(self.columns)
        low_D, high_D = np.array(bounds, np.float64).T
        return low_D, high_D

    def takes_same(self, other: "InputContract") -> bool:
        """Say whether both take the same requests, whatever values their training saw."""
        return (self.columns, self.seq_len) == (other.columns, other.seq_len)

    def tensor(self, request: PredictRequest) -> NDArray[np.float32]:
        """Return the windows (N, L, D) in the network's order of columns.

        Raises:
            WrongInput: A column is missing, unknown or named twice; a window or row is too long or
                too short; a value is outside of the bounds of its column.
        """
        self._require_columns(request.columns)
        if request.keys is not None and len(request.keys) != len(request.windows):
            raise WrongInput(
                f"Keys must be one for each of {len(request.windows)} windows, got "
                f"{len(request.keys)}.",
                fix="Send one for each window, or none at all.",
            )
        want = (self.seq_len, len(self.columns))
        try:
            given_NLD = np.array(request.windows, dtype=np.float64)
        except ValueError:  # rows or windows of several lengths
            raise self._other_lengths(request.windows) from None
        if given_NLD.shape[1:] != want:
            raise self._other_lengths(request.windows)
        if request.columns != self._names:
            order = [request.columns.index(name) for name in self.columns]
            given_NLD = given_NLD[:, :, order]
        self._require_bounds(given_NLD)
        return given_NLD.astype(np.float32)

    def _require_bounds(self, given_NLD: NDArray[np.float64]) -> None:
        """Refuse values on which no model says anything, before an arm could fail on them."""
        low_D, high_D = self._limits
        within_NLD = (given_NLD >= low_D) & (given_NLD <= high_D)  # NaN never is
        if within_NLD.all():
            return
        n, row, d = (int(i) for i in np.argwhere(~within_NLD)[0])
        raise WrongInput(
            f"A value of column '{self.columns[d]}' must be from {low_D[d]:.6g} to "
            f"{high_D[d]:.6g}, got {given_NLD[n, row, d]:.6g} at windows.{n}.{row}.",
            cause="It is far from everything that the model was trained on, as values in another "
            "unit are.",
            fix="Send values in the unit that training saw. GET /model lists the bounds.",
        )

    def _other_lengths(self, windows: list[Window]) -> WrongInput:
        """Return the error that names the first window of another shape; there is one."""
        want = (self.seq_len, len(self.columns))
        number, window = next(
            (number, window)
            for number, window in enumerate(windows)
            if len(window) != want[0] or any(len(row) != want[1] for row in window)
        )
        lengths = sorted({len(row) for row in window})
        return WrongInput(
            f"A window must hold {want[0]} rows of {want[1]} values, got {len(window)} "
            f"rows of {lengths[0]} to {lengths[-1]} values in windows.{number}.",
            fix="Send the last rows up to the one to predict from, one value per column.",
        )

    def _require_columns(self, given: list[str]) -> None:
        if given == self._names:
            return
        if set(given) == set(self.columns) and len(given) == len(self.columns):
            return
        known, asked = set(self.columns), set(given)
        missing = [name for name in self.columns if name not in asked]
        unknown = [name for name in dict.fromkeys(given) if name not in known]
        twice = len(given) - len(asked)
        hint = nearest(unknown[0][:_COMPARED], missing) if unknown else ""
        raise WrongInput(
            f"Columns must be exactly the {counted(len(self.columns), 'feature')}: "
            f"missing {_listed(missing)}, unknown {_listed(unknown)}, named twice {twice}.{hint}",
            fix="GET /model lists the columns.",
        )


def read_request(body: bytes, *, model: str, max_windows: int) -> PredictRequest:
    """Return the request in a body.

    Args:
        body: As it arrived.
        model: Name of the model that is served.
        max_windows: Largest number of windows.

    Raises:
        Malformed: It is no JSON.
        WrongInput: It lacks a key, has an unknown one, or a value is of the wrong kind; the places
            are named, the values are not repeated.
        UnknownModel: It asks for another model.
        TooLarge: It holds too many windows.
    """
    try:
        request = PredictRequest.model_validate_json(body)
    except ValidationError as error:
        if error.error_count() > _MAX_ERRORS:
            raise WrongInput(
                f"The body has {error.error_count()} errors, nearly all of them unknown keys.",
                fix="See /openapi.json for the form.",
            ) from None
        found = error.errors(include_input=False, include_url=False)
        if found[0]["type"] == "json_invalid":
            raise Malformed(
                f"The body must be JSON: {found[0]['msg']}.", fix="Send one JSON object."
            ) from None
        told = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'body'}: {problem['msg']}"[:200]
            for problem in found[:5]
        )
        raise WrongInput(
            f"{len(found)} {'value' if len(found) == 1 else 'values'} of the body "
            f"{'is' if len(found) == 1 else 'are'} wrong: {told}.",
            fix="See /openapi.json for the form, and GET /model for the columns.",
        ) from None
    if request.model is not None and request.model != model:
        raise UnknownModel(
            f"The model {json.dumps(request.model)} is not served here; {model} is.",
            fix=f"Ask for {model}, or leave the model out.",
        )
    if len(request.windows) > max_windows:
        raise TooLarge(
            f"At most {max_windows} windows are taken at once, got {len(request.windows)}.",
            fix="Send several requests.",
        )
    return request


def _listed(names: list[str]) -> str:
    """Names come from the caller: a few, and no endless ones."""
    shown = [name[:60] for name in names[:8]]
    return (", ".join(shown) + (", ..." if len(names) > len(shown) else "")) or "none"
