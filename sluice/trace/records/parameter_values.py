"""Records of parameter values, non-finite gradients and corrupted weights."""

from pydantic import Field

from sluice.base.settings import Record


class ParameterValuesRecord(Record):
    """Values of one parameter before the first step and before steps after powers of two."""

    parameter: int
    step: int
    fingerprint: int = Field(
        description="Fingerprint of at most 4,096 values; equal tensors have equal fingerprints."
    )
    smallest: float
    largest: float
    num_rows: int = Field(description="Length of the first dimension; 0 below two dimensions.")
    num_distinct_rows: int = Field(
        description="Rows that differ by more than a ten-thousandth of the largest value; 0 below "
        "two dimensions."
    )
    num_non_finite: int


class NonFiniteGradientRecord(Record):
    """Non-finite gradients directly after a backward pass of a loss without a loss scale.

    The first three of a process are recorded.
    """

    step: int = Field(description="The step that is about to be made.")
    optimizer: int
    parameters: tuple[int, ...] = Field(
        description="Parameters with a non-finite gradient, in the order of the optimizer."
    )
    num_gradients: int
    loss: float = Field(description="The loss; NaN if it is NaN or unknown.")


class CorruptedWeightsRecord(Record):
    """Weights that became non-finite before the first non-finite loss, without a bad gradient.

    The gradient statistics of the optimizer are finite: the arithmetic of the optimizer, or the
    program between two steps, wrote the values.
    """

    step: int = Field(description="The last step that was made.")
    optimizer: int
    parameters: tuple[int, ...]
    num_parameters: int = Field(description="Parameters of the optimizer.")
