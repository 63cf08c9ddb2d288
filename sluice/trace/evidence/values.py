"""What the numbers in single parameters look like: at the start, and from time to time."""

from pydantic import Field

from sluice.settings import Record


class ValueFact(Record):
    """One parameter at one step, before it."""

    parameter: int
    step: int
    fingerprint: int = Field(description="Of all its numbers; equal tensors have equal ones.")
    spread: float = Field(description="Largest minus smallest number; 0 for a constant.")
    row_spread: float = Field(
        description="Largest difference between two rows at one place; 0 when all rows are the "
        "same, NaN for less than two dimensions or rows."
    )
    num_non_finite: int
