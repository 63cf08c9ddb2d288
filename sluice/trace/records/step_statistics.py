"""Records of statistics and scalars of single steps."""

from pydantic import Field

from sluice.base.settings import Record


class OptimizerStatistics(Record):
    """One optimizer at one step. The tuples are aligned with ``parameters``.

    Only parameters with a gradient are included. Gradients are those that the optimizer uses, after
    unscaling and clipping.
    """

    optimizer: int
    rates: tuple[float, ...] = Field(description="Learning rate of each group.")
    parameters: tuple[int, ...]
    grad_norms: tuple[float, ...]
    weight_norms: tuple[float, ...] = Field(description="Norm of the weights before the step.")
    update_norms: tuple[float, ...] = Field(
        description="Norm of the change by the step; of a large parameter, estimated from a sample "
        "of its values. Exactly 0 if no sampled value changed."
    )
    changed_shares: tuple[float, ...] = Field(
        (),
        description="Share of the sampled values of a parameter that the step changed. Only values "
        "whose gradient is not 0 count. NaN without such values, and for types other than bfloat16 "
        "and float16. Empty if no parameter has one of these types.",
    )
    moments: dict[str, float] = Field(
        description="Norm of each kind of optimizer state, such as 'exp_avg', by its name. It is "
        "the norm over all parameters together, after the step."
    )
    state_step: float = Field(description="Step count in the optimizer state; -1 without one.")


class OutputStatistics(Record):
    """Output of one module without children, or of the whole network, at one step."""

    network: int
    module: str = Field(description="Name inside the network; '' is the network itself.")
    kind: str = Field(description="Class name of the module.")
    norm: float = Field(description="Norm of the output; NaN or infinite if any value is.")
    zero_share: float = Field(description="Share of the output's values that are exactly 0.")
    numel: int
    largest: float = Field(float("nan"), description="Largest value of the output.")
    dtype: str = ""


class ClippingRecord(Record):
    """One gradient clipping by norm."""

    optimizer: int = Field(description="Optimizer of the parameters; -1 if unknown.")
    norm: float = Field(description="Norm of all gradients together, before clipping.")
    max_norm: float


class StepStatistics(Record):
    """Statistics of one optimizer step."""

    step: int
    optimizers: tuple[OptimizerStatistics, ...] = ()
    outputs: tuple[OutputStatistics, ...] = ()


class StepScalars(Record):
    """Scalars that are kept for every recent step, and permanently for some steps."""

    step: int
    losses: tuple[float, ...] = Field(description="Loss of each backward pass before the step.")
    clips: tuple[ClippingRecord, ...] = ()
    scale: float | None = Field(
        None,
        description="Loss scale after the last update of the gradient scaler between the previous "
        "step and this one; None without such an update.",
    )
