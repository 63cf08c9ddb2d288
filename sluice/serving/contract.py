"""Input and output contracts of a served model, and the parser of requests.

A window has consecutive feature rows; the model predicts the target of the last row. Clients send
features and not raw rows. From raw rows, ``compute_features`` of a workload would drop the newest
row, which is the row to predict, because its target is not known yet. Columns are matched by name,
in any order. Models with another codec have a ``CodecContract``.

Shape legend: N = windows, L = rows of a window, D = features.
"""

import functools
import json
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from sluice.base.errors import PayloadError
from sluice.base.settings import Record
from sluice.serving.http_errors import BadRequest, InvalidInput, PayloadTooLarge, UnknownModel
from sluice.workloads.codecs.request import CodecRequest, describe_fields, describe_invalid
from sluice.workloads.codecs.window_requests import MAX_MAGNITUDE, PredictRequest, WindowReader

_MAX_WINDOWS = 100_000
"""Maximum number of windows of a request, equal to the maximum of the setting ``max_windows``."""

Request = TypeVar("Request", bound=CodecRequest)


class InputContract(Record):
    """Input of one model that is served with windows."""

    columns: tuple[str, ...] = Field(description="Feature columns, in the order of the network.")
    seq_len: int = Field(ge=1, description="Number of rows of a window.")
    bounds: tuple[tuple[float, float], ...] | None = Field(
        None,
        description="Minimum and maximum accepted value of each column. Null if the networks have "
        f"no input scales; magnitudes up to {MAX_MAGNITUDE:g} are then accepted.",
    )

    @functools.cached_property
    def _reader(self) -> WindowReader:
        return WindowReader(self.columns, self.seq_len, bounds=self.bounds)

    @property
    def max_elements(self) -> int:
        """Maximum number of windows of a request: the largest value of ``max_windows``."""
        return _MAX_WINDOWS

    def has_same_input(self, other: Any) -> bool:
        """Return whether both contracts have the same columns and window length.

        The accepted value ranges may differ.
        """
        return isinstance(other, InputContract) and (self.columns, self.seq_len) == (
            other.columns,
            other.seq_len,
        )

    @property
    def summary(self) -> str:
        """The input as a noun phrase."""
        return f"windows of {self.seq_len} rows of {', '.join(self.columns)}"

    def read_windows(self, request: PredictRequest) -> NDArray[np.float32]:
        """Return the windows (N, L, D) in the network's column order.

        Raises:
            InvalidInput: A column is missing, unknown or duplicated; a window or row has the
                wrong length; a value is outside the bounds of its column.
        """
        try:
            return self._reader.read_windows(request)
        except PayloadError as error:
            raise InvalidInput(error.what, cause=error.cause, fix=error.fix) from None


class CodecContract(Record):
    """Input of one model that is served with another codec than windows."""

    kind: str = Field(description="Kind of the codec, such as text.")
    digest: str = Field(description="Digest of everything that decides decoding.")
    max_elements: int = Field(ge=1, description="Maximum number of elements of a request.")
    body: dict[str, Any] = Field(description="JSON schema of the body of a request.")

    def has_same_input(self, other: Any) -> bool:
        """Return whether requests are decoded in the same way for both models."""
        return isinstance(other, CodecContract) and (self.kind, self.digest) == (
            other.kind,
            other.digest,
        )

    @property
    def summary(self) -> str:
        """The input as a noun phrase."""
        return f"the codec '{self.kind}' {self.digest[:12]}"


class OutputContract(Record):
    """Meaning of the output values of one model."""

    kind: Literal["logits", "values"] = Field(
        "values",
        description="logits: one logit for each class; their softmax gives the probabilities. "
        "values: any other output of the model, such as values in the unit of the target.",
    )
    classes: tuple[str | int, ...] = Field(
        (), description="Labels of the classes, in the order of the logits."
    )


ModelContract = InputContract | CodecContract


def read_request(
    body: bytes, request_type: type[Request], *, model: str, max_elements: int
) -> Request:
    """Parse the body of a request.

    Args:
        body: Bytes of the body.
        request_type: Class of the request.
        model: Name of the served model.
        max_elements: Maximum number of elements of a request.

    Raises:
        BadRequest: The body is not JSON.
        InvalidInput: A field is missing or unknown, or a value has the wrong type; or the number
            of row keys is wrong. The message names the fields and does not repeat values.
        UnknownModel: The request names another model.
        PayloadTooLarge: The request has too many elements.
    """
    try:
        request = request_type.model_validate_json(body)
    except ValidationError as error:
        if error.error_count() == 1:
            (problem,) = error.errors(include_input=False, include_url=False)
            if problem["type"] == "json_invalid":
                raise BadRequest(
                    f"The body must be JSON: {problem['msg']}.", fix="Send one JSON object."
                ) from None
        raise InvalidInput(
            describe_invalid(error, request_type),
            cause=describe_fields(request_type),
            fix="See /openapi.json for the schema, and GET /model for the input.",
        ) from None
    if request.model is not None and request.model != model:
        raise UnknownModel(
            f"This server does not serve the model {json.dumps(request.model)}; it serves {model}.",
            fix=f"Send the request with model {model}, or without model.",
        )
    num_elements, elements_name = len(request.elements), request.elements_field
    if num_elements > max_elements:
        raise PayloadTooLarge(
            f"A request may have at most {max_elements} {elements_name}, got {num_elements}.",
            fix="Send several requests.",
        )
    if request.keys is not None and len(request.keys) != num_elements:
        raise InvalidInput(
            f"keys must have as many entries as {elements_name} ({num_elements}), got "
            f"{len(request.keys)}.",
            fix=f"Send one key for each of the {elements_name}, or leave keys out.",
        )
    return request
