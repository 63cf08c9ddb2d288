"""What went into the networks: columns, rows and tokens, while they learn and while not."""

from pydantic import Field

from sluice.settings import Record


class ColumnFact(Record):
    """One column of an input, over the rows of a batch."""

    column: int = Field(description="Position in the last dimension.")
    mean: float
    std: float
    smallest: float
    largest: float
    num_non_finite: int


class TokenFact(Record):
    """A batch of whole numbers of shape (rows, positions)."""

    num_rows: int
    num_positions: int
    smallest: int
    largest: int
    first_two_equal: int = Field(
        description="Rows whose first two tokens are the same and occur nowhere else in the row."
    )
    last_run: int = Field(description="Token that ends most rows, more than once; -1 for none.")
    num_last_run: int = Field(description="Rows that end with it more than once.")
    num_before_last_run: int = Field(description="Different tokens that stand before such an end.")


class InputFact(Record):
    """The first tensor that a network was given, at one call.

    The first calls of each network are recorded, learning and not, and those of steps with
    statistics.
    """

    step: int = Field(description="Steps made before it.")
    network: int
    loader: int = Field(description="Of the last batch; -1 for none.")
    is_learning: bool = Field(description="Gradients were on, and the network in training mode.")
    shape: tuple[int, ...]
    dtype: str
    columns: tuple[ColumnFact, ...] = Field(description="At most 64, evenly spread.")
    tokens: TokenFact | None = Field(description="None for numbers that are no tokens.")
    rows: tuple[int, ...] = Field(description="A 64-bit fingerprint of each row.")
