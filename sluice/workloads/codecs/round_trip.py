"""Checks that a request for a row is decoded to the input that the training uses for this row."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.base.errors import ContractError
from sluice.data.folds import RowRange
from sluice.data.rows.protocol import (
    ModelInput,
    describe_input,
    gather,
    spread_rows,
)
from sluice.workloads.codecs.codec import Codec
from sluice.workloads.workload import Workload

_MAX_ROWS = 8
"""Maximum number of rows that are compared."""
_MAX_DEVIATION = 1e-4
"""Maximum difference of a feature, in standard deviations of the feature over the compared rows.
Features with a decaying memory differ slightly if their history is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrip:
    """Comparison of decoded requests with the examples of the same rows."""

    num_rows: int
    """Number of compared rows."""
    max_deviation: float
    """Largest difference [standard deviations]; 0 if all values are equal."""


def check_round_trip(
    workload: Workload, codec: Codec, raw: pd.DataFrame, frame: pd.DataFrame, rows: RowRange
) -> RoundTrip:
    """Decode requests for a few rows and compare the result with the examples of these rows.

    A difference reveals that the codec uses another tokenizer, image size or context than
    ``examples`` of the workload.

    Args:
        workload: Workload that returns the examples and the requests.
        codec: Codec of the workload.
        raw: Raw rows.
        frame: Feature frame.
        rows: Rows of the frame to choose from.

    Raises:
        ContractError: An input differs, a request cannot be built, or the codec refuses it.
    """
    examples = workload.examples(frame, rows)
    chosen_rows = spread_rows(len(examples), _MAX_ROWS)
    scales = _scales([gather(examples.x, row[None]) for row in chosen_rows])
    deviation = 0.0
    for row in chosen_rows:
        position = examples.rows[int(row) : int(row) + 1].astype(np.int64)
        request = codec.parse(workload.request_of(raw, frame, position))
        decoded = codec.decode_request(request)
        expected = gather(examples.x, row[None])
        label = frame.index[int(position[0])]
        deviation = max(deviation, _compare(decoded, expected, scales, label))
        _require_watched_values(
            codec.watched_values(request, decoded), workload, frame, int(position[0])
        )
    return RoundTrip(num_rows=len(chosen_rows), max_deviation=deviation)


def _tensors_by_name(x: ModelInput) -> dict[str, Tensor]:
    return {"": x} if isinstance(x, Tensor) else x


def _scales(inputs: list[ModelInput]) -> dict[str, NDArray[np.float64]]:
    """Return the standard deviation of each feature (last axis), for float tensors (B, ..., D)."""
    scales: dict[str, NDArray[np.float64]] = {}
    for name, tensor in _tensors_by_name(inputs[0]).items():
        if tensor.is_floating_point() and tensor.ndim > 1:
            values = torch.cat(
                [_tensors_by_name(x)[name].reshape(-1, tensor.shape[-1]) for x in inputs]
            )
            scales[name] = values.double().std(dim=0, correction=0).numpy()
    return scales


def _compare(
    decoded: ModelInput, expected: ModelInput, scales: dict[str, Any], label: object
) -> float:
    """Return the largest difference in standard deviations.

    Raises:
        ContractError: Names, dtypes, shapes or values differ.
    """
    decoded_tensors, expected_tensors = _tensors_by_name(decoded), _tensors_by_name(expected)
    is_same_structure = decoded_tensors.keys() == expected_tensors.keys() and all(
        tensor.shape == expected_tensors[name].shape
        and tensor.dtype == expected_tensors[name].dtype
        for name, tensor in decoded_tensors.items()
    )
    if not is_same_structure:
        raise _mismatch_error(label, describe_input(expected), describe_input(decoded))
    largest = 0.0
    for name, tensor in decoded_tensors.items():
        if torch.equal(tensor, expected_tensors[name]):
            continue
        what = f"the input '{name}'" if name else "the input"
        first_difference = (tensor != expected_tensors[name]).nonzero()[0].tolist()
        location = f"{what} at {first_difference}"
        expected_value = (
            f"{expected_tensors[name][tuple(first_difference)].item():.9g} in {location}"
        )
        found_value = f"{tensor[tuple(first_difference)].item():.9g}"
        if not tensor.is_floating_point():
            raise _mismatch_error(label, expected_value, found_value)
        deviation = (tensor.double() - expected_tensors[name].double()).abs().numpy()
        if name in scales:
            magnitude = np.maximum(np.abs(expected_tensors[name].double().numpy()), 1.0)
            deviation = deviation / np.where(scales[name] > 0, scales[name], magnitude)
        largest = max(largest, float(deviation.max()))
        if not largest <= _MAX_DEVIATION:
            raise _mismatch_error(label, expected_value, found_value)
    return largest


def _require_watched_values(
    values: tuple[float, ...], workload: Workload, frame: pd.DataFrame, position: int
) -> None:
    """Require that the values stored with sampled requests equal those of the feature columns.

    Raises:
        ContractError: Their number or a value differs.
    """
    if not values:
        return
    columns = list(workload.feature_columns)
    expected = frame[columns].iloc[position].to_numpy(np.float64)
    decoded = np.array(values, np.float64)
    if decoded.shape != expected.shape or not np.allclose(decoded, expected, rtol=1e-4, atol=1e-6):
        raise ContractError(
            f"The watched values of row {frame.index[position]} must be those of its feature "
            f"columns {columns}, {expected.tolist()}, got {decoded.tolist()}.",
            cause="The codec watches other quantities than the feature columns, so that drift "
            "detection would compare unlike values.",
            fix="Let 'watch' return the values of feature_columns, in their order.",
        )


def _mismatch_error(label: object, expected: str, decoded: str) -> ContractError:
    return ContractError(
        f"A request for row {label} must be decoded to the input of the training, {expected}, but "
        f"the codec returns {decoded}.",
        cause="The codec has other settings than the examples: another tokenizer, length, image "
        "size or normalisation; or context_rows is shorter than the history that the features use.",
        fix="Give the codec the settings of the examples; or, for raw rows, raise context_rows.",
    )
