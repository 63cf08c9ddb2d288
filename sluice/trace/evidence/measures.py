"""Statistics of single steps, read from the device with one wait for many."""

from pydantic import Field

from sluice.base.settings import Record


class OptimizerMeasure(Record):
    """One optimizer at one step. The tuples run along ``parameters``, those with a gradient.

    Gradients are as the optimizer found them: unscaled, clipped.
    """

    optimizer: int
    rates: tuple[float, ...] = Field(description="Learning rate of each group.")
    parameters: tuple[int, ...]
    grad_norms: tuple[float, ...]
    weight_norms: tuple[float, ...] = Field(description="Before the step.")
    update_norms: tuple[float, ...] = Field(
        description="Norm of the change by the step, told from a sample of large parameters; "
        "exactly 0 when none of the sample moved."
    )
    moved_shares: tuple[float, ...] = Field(
        (),
        description="Of the sampled numbers with a gradient, those that the step changed; NaN for "
        "types of more than 16 bits, empty when there are no others.",
    )
    moments: dict[str, float] = Field(
        description="Norm over all parameters of each tensor of the optimizer's state, such as "
        "'exp_avg', after the step."
    )
    state_step: float = Field(description="The optimizer's own count of steps; -1 for none.")


class OutputMeasure(Record):
    """The output of one module without children, at one step."""

    network: int
    module: str = Field(description="Name inside the network; '' is the network itself.")
    kind: str
    norm: float = Field(description="NaN or infinite when any number is.")
    zero_share: float = Field(description="Numbers that are exactly 0, of all.")
    numel: int
    largest: float = Field(float("nan"), description="Largest number.")
    dtype: str = ""


class ClipMeasure(Record):
    """One clipping by norm."""

    optimizer: int
    norm: float = Field(description="Of all gradients together, before.")
    max_norm: float


class StepMeasures(Record):
    """What was measured around one optimizer step."""

    step: int
    optimizers: tuple[OptimizerMeasure, ...] = ()
    outputs: tuple[OutputMeasure, ...] = ()


class StepNumbers(Record):
    """The few numbers that are kept of every step while it is recent, of some steps for ever."""

    step: int
    losses: tuple[float, ...] = Field(description="Of each backward pass before the step.")
    clips: tuple[ClipMeasure, ...] = ()
    scale: float | None = Field(None, description="Of the gradient scaler, after its update.")
