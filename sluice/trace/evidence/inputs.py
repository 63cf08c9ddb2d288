"""What went into the networks: columns, rows and tokens, while they learn and while not."""

import math
from typing import Literal

from pydantic import Field

from sluice.base.settings import Record


class ColumnFact(Record):
    """One column of an input, over its finite numbers."""

    column: int = Field(description="Position in a row, or in the last dimension of wide rows.")
    mean: float
    std: float
    smallest: float
    largest: float
    step: float = Field(
        math.nan,
        description="Root mean square of the change from one sample to the next; NaN for none.",
    )


class TokenFact(Record):
    """Whole numbers of shape (rows, positions)."""

    num_positions: int = Field(description="Of the last batch.")
    smallest: int
    largest: int
    first: int = Field(description="The token that most rows of the first batch begin with.")
    num_rows: int = Field(0, description="Of all batches.")
    num_ignored: int = Field(0, description="Batches that are -100 throughout, as no token is.")
    num_first: int = Field(description="Rows that begin with it.")
    num_doubled: int = Field(description="Of those, rows that have it twice there and never again.")
    num_longer: int = Field(description="Of those, rows that begin with it three times or more.")


class InputFact(Record):
    """The first tensor that a network was given, over its first calls of one kind.

    One is written after 1, 4, 16 and 64 calls and when the trace ends; the last one holds all.
    """

    step: int = Field(description="Steps made before the last of these calls.")
    first_step: int = Field(description="Steps made before the first.")
    network: int
    loader: int = Field(description="Of the last batch; -1 for none.")
    is_learning: bool = Field(
        description="Gradients were on, and the network in training mode or a backward pass next."
    )
    num_calls: int
    num_rows: int
    shape: tuple[int, ...] = Field(description="At the last call.")
    is_made: bool = Field(
        False,
        description="One was made by a network, or most are steps of a sampler: no data.",
    )
    may_be_made: bool = Field(
        False, description="Another network returns rows of this shape: features, perhaps."
    )
    dtype: str
    by_position: bool = Field(description="A column is a position in the whole row.")
    columns: tuple[ColumnFact, ...] = Field(description="At most 64, evenly spread.")
    channels: tuple[ColumnFact, ...] = Field(
        (), description="Of images of several channels, channels first: one column each."
    )
    correlations: tuple[float, ...] = Field(
        (),
        description="Of the first 24 channels, or columns where there are none: those above the "
        "diagonal, row by row.",
    )
    tokens: TokenFact | None = Field(None, description="None for numbers that are no tokens.")
    more_tokens: tuple[TokenFact, ...] = Field(
        (), description="Of the other tensors it was given, as what a decoder begins with."
    )


class RowsFact(Record):
    """The rows of one call of a network, one of its first 64 of a kind."""

    step: int = Field(description="Steps made before it.")
    network: int
    loader: int = Field(description="Of the last batch; -1 for none.")
    is_learning: bool
    is_whole: bool = Field(description="Tokens or other whole numbers.")
    is_continuous: bool = Field(
        False, description="Of numbers that hardly repeat: equal rows are copies."
    )
    rows: tuple[int, ...] = Field(
        description="A 64-bit fingerprint of each row, of at most 1,024 rows."
    )
    num_rows: int = Field(0, description="Of the whole call.")


class PairFact(Record):
    """Rows of an input beside the targets that they were learned with."""

    step: int = Field(description="Steps made before it.")
    phase: int = Field(0, description="Of the run: each begins with rows of its own.")
    network: int
    kind: str = Field(description="Of the loss function.")
    is_class: bool = Field(description="The targets are class ids.")
    is_whole: bool = Field(description="The input is tokens or other whole numbers.")
    rows: tuple[int, ...] = Field(description="A 64-bit fingerprint of each row.")
    targets: tuple[float, ...] = Field(description="Of several numbers a row, one column.")
    prior: float | None = Field(
        None, description="Of several: the loss of the best constant answer to this batch."
    )
    num_features: int
    features: str = Field(
        description="Of each row, standardised by the first batch: 16-bit floats as base64."
    )


class BadNumbersFact(Record):
    """A tensor with NaN or infinity that a network or a loss function was given."""

    step: int = Field(description="Steps made before it.")
    network: int
    loader: int = Field(description="Of the last batch; -1 for none.")
    what: Literal["input", "target"]
    is_learning: bool
    shape: tuple[int, ...]
    num_nan: int
    num_infinite: int
    columns: tuple[int, ...] = Field(description="The first 8 in a row that have any.")
    num_columns: int
    rows: tuple[int, ...] = Field(description="The first 8 of the batch that have any.")
    num_rows: int
    reaches_output: bool = Field(False, description="What the network returned was not finite.")


class IdFact(Record):
    """Ids outside the table that they were to be looked up in."""

    step: int = Field(description="Steps made before it.")
    network: int
    loader: int = Field(description="Of the last batch; -1 for none.")
    kind: str = Field(
        description="Function of torch.nn.functional, such as 'embedding'; 'index' for table[ids]; "
        "'clamped' for ids beyond a table that the network took for its last row."
    )
    num_allowed: int = Field(description="Ids from 0 to one less are allowed.")
    smallest: int
    largest: int
    num_outside: int
    num_ids: int
    num_shared: int = Field(
        0, description="Of 'index': rows that ids from 0 and ids below 0 have in common."
    )
