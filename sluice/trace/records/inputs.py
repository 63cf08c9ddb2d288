"""Records of network inputs: statistics of columns and tokens, row fingerprints, targets."""

import math
from typing import Literal

from pydantic import Field

from sluice.base.settings import Record


class ColumnRecord(Record):
    """Statistics of one input column, over its finite values."""

    column: int = Field(
        description="Index of the column: the position in the flattened row; the index in the last "
        "dimension if rows are wide; or the index of the channel."
    )
    mean: float
    std: float
    smallest: float
    largest: float
    step: float = Field(
        math.nan,
        description="Root mean square of the change from one row to the next, also across batches; "
        "NaN if unknown. Not an optimizer step.",
    )


class TokenRecord(Record):
    """Statistics of integer inputs of shape (rows, positions)."""

    num_positions: int = Field(description="Number of positions of a row in the last batch.")
    smallest: int
    largest: int
    first: int = Field(description="Most frequent first token of the rows in the first batch.")
    num_rows: int = Field(0, description="Number of rows of all batches.")
    num_ignored: int = Field(
        0,
        description="Number of batches that contain only the ignore index -100. Not a number of "
        "tokens.",
    )
    num_first: int = Field(description="Number of rows that begin with the token ``first``.")
    num_doubled: int = Field(
        description="Number of rows that begin with the token ``first`` twice and do not contain "
        "it again."
    )
    num_longer: int = Field(
        description="Number of rows that begin with the token ``first`` at least three times, as "
        "with left padding."
    )


class InputRecord(Record):
    """Statistics of the first tensor argument of a network, over the first calls of one call group.

    The calls of a group have the same network and loader and the same mode of the network.
    Gradients are enabled in all of these calls or in none. A record is written after 1, 4, 16 and
    64 calls and when the trace ends. Statistics are cumulative, so the last record of a group
    covers all inspected calls.
    """

    step: int = Field(description="Number of optimizer steps before the last inspected call.")
    first_step: int = Field(
        description="Number of optimizer steps before the first inspected call."
    )
    network: int
    loader: int = Field(description="Loader of the last batch; -1 without one.")
    is_learning: bool = Field(
        description="Whether gradients are enabled, and the network is in training mode or a "
        "backward pass follows."
    )
    num_calls: int = Field(description="Number of inspected calls.")
    num_rows: int = Field(description="Number of rows of all inspected calls.")
    shape: tuple[int, ...] = Field(description="Shape at the last call.")
    is_generated: bool = Field(
        False,
        description="Whether a network computed an input, or at least half of the calls are steps "
        "of iterative sampling. The inputs are then not data.",
    )
    matches_model_output: bool = Field(
        False,
        description="Whether another network returns rows of this shape. The inputs may then be "
        "outputs of that network instead of data.",
    )
    dtype: str
    by_position: bool = Field(
        description="Whether columns are positions in the flattened row; otherwise they are "
        "indices of one dimension."
    )
    columns: tuple[ColumnRecord, ...] = Field(
        description="Statistics of at most 64 evenly spaced columns."
    )
    channels: tuple[ColumnRecord, ...] = Field(
        (), description="Statistics per channel of multi-channel images in channels-first layout."
    )
    correlations: tuple[float, ...] = Field(
        (),
        description="Correlations of the first 24 channels; without channels, of the first 24 "
        "columns. The upper triangle of the correlation matrix, row by row.",
    )
    tokens: TokenRecord | None = Field(
        None, description="Statistics of an input of tokens; None for other inputs."
    )
    other_tokens: tuple[TokenRecord, ...] = Field(
        (), description="Statistics of other arguments of tokens, such as the input of a decoder."
    )


class RowsRecord(Record):
    """Row fingerprints of the input of a network call.

    They are recorded for the first calls of a call group, and for a few later calls.
    """

    step: int = Field(description="Number of optimizer steps before the call.")
    network: int
    loader: int = Field(description="Loader of the last batch; -1 without one.")
    is_learning: bool = Field(description="See ``InputRecord.is_learning``.")
    is_integer: bool = Field(description="Whether the input is tokens or other integers.")
    is_continuous: bool = Field(
        False,
        description="Whether equal rows must be copies of one row, because values rarely repeat, "
        "or because unequal rows differ in many columns.",
    )
    rows: tuple[int, ...] = Field(description="64-bit fingerprints of at most 1,024 rows.")
    num_rows: int = Field(0, description="Number of rows of the whole call.")


class TargetSampleRecord(Record):
    """Sampled input rows together with their training targets."""

    step: int = Field(description="Number of optimizer steps before the call.")
    phase: int = Field(0, description="Training phase of the run; each phase samples new rows.")
    network: int
    kind: str = Field(description="Name of the loss function.")
    is_class: bool = Field(description="Whether the targets are class ids.")
    is_integer: bool = Field(description="Whether the input is tokens or other integers.")
    rows: tuple[int, ...] = Field(description="64-bit fingerprint of each sampled row.")
    targets: tuple[float, ...] = Field(
        description="Target of each row. For one-hot targets or class probabilities: the class "
        "with the largest value. For other targets with several columns: the value in one column."
    )
    prior: float | None = Field(
        None,
        description="Constant baseline: estimated loss of the best constant prediction, from the "
        "targets of this batch. None for targets with one column or row, and for losses without a "
        "closed form.",
    )
    num_features: int = Field(description="Number of features of a row.")
    features: str = Field(
        description="Features of each row, standardized by the statistics of the first batch of "
        "the phase: base64 of 16-bit floats."
    )


class NonFiniteTensorRecord(Record):
    """A tensor with NaN or infinite values that a network or a loss function received.

    At most 8 tensors are recorded in a trace.
    """

    step: int = Field(description="Number of optimizer steps before the call.")
    network: int
    loader: int = Field(description="Loader of the last batch; -1 without one.")
    what: Literal["input", "target"]
    is_learning: bool = Field(description="Whether gradients are enabled.")
    shape: tuple[int, ...]
    num_nan: int
    num_infinite: int
    columns: tuple[int, ...] = Field(description="The first 8 columns with non-finite values.")
    num_columns: int = Field(description="Number of all columns with non-finite values.")
    rows: tuple[int, ...] = Field(description="The first 8 rows with non-finite values.")
    num_rows: int = Field(description="Number of all rows with non-finite values.")
    reaches_output: bool = Field(False, description="Whether the network output is non-finite.")


class OutOfRangeIndexRecord(Record):
    """Indices outside the range of the table or the classes that they index."""

    step: int = Field(description="Number of optimizer steps before the call.")
    network: int
    loader: int = Field(description="Loader of the last batch; -1 without one.")
    kind: str = Field(
        description="Function of torch.nn.functional, such as 'embedding'; 'index' for table[ids]; "
        "'class index' for log_p[rows, ids]; 'clamped' for ids beyond the table that the network "
        "clamped to its last row."
    )
    num_allowed: int = Field(
        description="Number of rows of the table, or of classes: 0 to num_allowed - 1 are valid."
    )
    smallest: int = Field(description="Smallest id.")
    largest: int = Field(description="Largest id.")
    num_outside: int = Field(description="Number of ids that are not valid.")
    num_ids: int
    num_shared: int = Field(
        0,
        description="Number of rows or classes that both a valid id and a negative id select: "
        "negative ids count from the end. Only for 'index' and 'class index'; otherwise 0.",
    )
