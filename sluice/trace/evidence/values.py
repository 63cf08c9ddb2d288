"""What the numbers in single parameters look like: at the start, and from time to time."""

from pydantic import Field

from sluice.base.settings import Record


class ValueFact(Record):
    """One parameter before one step: before the first one, and those after powers of two."""

    parameter: int
    step: int
    fingerprint: int = Field(
        description="Of at most 4,096 of its numbers; equal tensors have equal ones."
    )
    smallest: float
    largest: float
    num_rows: int = Field(description="Length of its first dimension; 0 for less than two.")
    num_different: int = Field(
        description="Rows that differ by more than a ten-thousandth of its largest number; 0 for "
        "less than two dimensions."
    )
    num_non_finite: int


class GradientFact(Record):
    """Gradients that were not finite right after a backward pass of a loss without a scale.

    The first three of a process.
    """

    step: int = Field(description="The step that was about to be made.")
    optimizer: int
    parameters: tuple[int, ...] = Field(description="Whose gradient was not finite, in its order.")
    num_gradients: int
    loss: float = Field(description="NaN when it is unknown, too.")


class SpoiledFact(Record):
    """Weights that were not finite before the first loss that was not, by no gradient.

    What their optimizer keeps of their gradients is finite: its own arithmetic, or the program
    between two steps, wrote them.
    """

    step: int = Field(description="The last step that was made.")
    optimizer: int
    parameters: tuple[int, ...]
    num_parameters: int = Field(description="Of the optimizer.")
