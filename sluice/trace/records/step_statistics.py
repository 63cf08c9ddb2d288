"""Records of statistics and scalars of single steps."""

from pydantic import Field

from sluice.base.settings import Record


class OptimizerStatistics(Record):
    """One optimizer at one step. The tuples except ``rates`` are aligned with ``parameters``.

    Only parameters with a dense gradient are included. Gradients are measured as the optimizer uses
    them, after unscaling and clipping.
    """

    optimizer: int
    rates: tuple[float, ...] = Field(description="Learning rate of each group.")
    parameters: tuple[int, ...]
    grad_norms: tuple[float, ...]
    weight_norms: tuple[float, ...] = Field(description="Norm of the weights before the step.")
    update_norms: tuple[float, ...] = Field(
        description="Norm of the change of the weights by the step. For a large parameter, it is "
        "estimated from a sample of the values, and 0 if no sampled value changed."
    )
    changed_shares: tuple[float, ...] = Field(
        (),
        description="Share of values that the step changed, among the sampled values whose "
        "gradient is not 0. NaN if there are no such values, and for parameters that are neither "
        "bfloat16 nor float16. Empty if no parameter has one of these types.",
    )
    moments: dict[str, float] = Field(
        description="Norm of each kind of optimizer state after the step, over all parameters "
        "together, by the name of the state, such as 'exp_avg'."
    )
    state_step: float = Field(
        description="Step count in the optimizer state; -1 if the state has no step count."
    )


class OutputStatistics(Record):
    """Output of one module without children, or of the whole network, at one step."""

    network: int
    module: str = Field(description="Name inside the network; '' is the network itself.")
    kind: str = Field(description="Class name of the module.")
    norm: float = Field(
        description="Norm of the output; non-finite if a value of the output is non-finite."
    )
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
    """Scalars of one step. They are stored for all recent steps and a sample of earlier steps."""

    step: int
    losses: tuple[float, ...] = Field(
        description="Loss of each backward pass between the previous step and this step. Backward "
        "passes of tensors with several elements are omitted."
    )
    clips: tuple[ClippingRecord, ...] = ()
    scale: float | None = Field(
        None,
        description="Loss scale after the last update of the gradient scaler between the previous "
        "step and this step; None without such an update.",
    )
