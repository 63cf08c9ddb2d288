"""Records of parameter values, non-finite gradients and corrupted weights."""

from pydantic import Field

from sluice.base.settings import Record


class ParameterValuesRecord(Record):
    """Values of one parameter before the first step, and after steps 1, 2, 4, 8 and so on.

    When a new training phase begins, the steps are counted again from the start of the phase. At
    most 256 parameters are recorded.
    """

    parameter: int
    step: int = Field(description="The step that is about to be made.")
    fingerprint: int = Field(
        description="Fingerprint of at most 4,096 values; equal tensors have equal fingerprints."
    )
    smallest: float
    largest: float
    num_rows: int = Field(
        description="Length of the first dimension; 0 for a parameter of fewer than two dimensions."
    )
    num_distinct_rows: int = Field(
        description="Number of distinct rows among the first 512; 0 for a parameter of fewer than "
        "two dimensions. Rows count as equal if their values differ by less than about a "
        "hundred-thousandth of the largest absolute value."
    )
    num_non_finite: int


class NonFiniteGradientRecord(Record):
    """Non-finite gradients after a backward pass or before clipping.

    Not recorded if a gradient scaler scaled the loss, because an overflow is expected then. Only
    the first few such gradients of a process are recorded.

    If no record precedes the first non-finite loss, the gradients of the last step are inferred
    from the weights: the gradient of a non-finite weight was probably non-finite, too. But if the
    optimizer state of these weights is finite, their gradients were finite, and a
    ``CorruptedWeightsRecord`` is written instead.
    """

    step: int = Field(
        description="The step that is about to be made. If the gradients are inferred from the "
        "weights: the last step."
    )
    optimizer: int
    parameters: tuple[int, ...] = Field(
        description="Indices of the parameters with a non-finite gradient, in the order of the "
        "optimizer."
    )
    num_gradients: int = Field(
        description="Number of parameters with a gradient. If the gradients are inferred from the "
        "weights: number of trainable parameters."
    )
    loss: float = Field(
        description="Loss of the backward pass. If the gradients are inferred from the weights: "
        "loss of the last step. NaN if unknown."
    )


class CorruptedWeightsRecord(Record):
    """Weights that became non-finite before the first non-finite loss, despite finite gradients.

    The moments of these weights in the optimizer state are finite. The optimizer's arithmetic
    therefore produced the non-finite values, or the program wrote them between two steps.
    """

    step: int = Field(description="The last step that was made.")
    optimizer: int
    parameters: tuple[int, ...]
    num_parameters: int = Field(description="Number of trainable parameters of the optimizer.")
