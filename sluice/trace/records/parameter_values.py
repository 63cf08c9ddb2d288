"""Records of parameter values, non-finite gradients and corrupted weights."""

from pydantic import Field

from sluice.base.settings import Record


class ParameterValuesRecord(Record):
    """Values of one parameter before the first step, and after steps 1, 2, 4, 8 and so on.

    From the start of a new training phase, the steps of this phase are counted.
    """

    parameter: int
    step: int = Field(description="The step that is about to be made.")
    fingerprint: int = Field(
        description="Fingerprint of at most 4,096 values; equal tensors have equal fingerprints."
    )
    smallest: float
    largest: float
    num_rows: int = Field(description="Length of the first dimension; 0 below two dimensions.")
    num_distinct_rows: int = Field(
        description="Number of distinct rows among the first 512; 0 below two dimensions. Rows "
        "whose values differ by less than about a hundred-thousandth of the largest value count as "
        "equal."
    )
    num_non_finite: int


class NonFiniteGradientRecord(Record):
    """Non-finite gradients after a backward pass or before clipping.

    Not recorded if a gradient scaler scaled the loss, because an overflow is expected then. They
    are also inferred from weights that are non-finite at the first non-finite loss, unless the
    optimizer state of these weights is finite. Only the first few of a process are recorded.
    """

    step: int = Field(
        description="The step that is about to be made; the last step if inferred from weights."
    )
    optimizer: int
    parameters: tuple[int, ...] = Field(
        description="Parameters with a non-finite gradient, in the order of the optimizer."
    )
    num_gradients: int = Field(description="Number of parameters that were checked.")
    loss: float = Field(
        description="The loss of the pass, or of the last step if inferred; NaN if it is unknown."
    )


class CorruptedWeightsRecord(Record):
    """Weights that became non-finite before the first non-finite loss, with finite gradients.

    The moments of these weights in the optimizer state are finite. So the arithmetic of the
    optimizer, or the program between two steps, wrote the values.
    """

    step: int = Field(description="The last step that was made.")
    optimizer: int
    parameters: tuple[int, ...]
    num_parameters: int = Field(description="Number of trainable parameters of the optimizer.")
