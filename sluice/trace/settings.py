"""Settings of a trace: its cost in time, memory and disk, and the non-finite guard."""

from pydantic import Field

from sluice.base.settings import Settings


class TraceSettings(Settings):
    """Limits of a trace. The order of events is recorded at every step, whatever the limits."""

    cost_share: float = Field(
        0.005,
        gt=0,
        le=1,
        description="Maximum share of the program's run time spent on statistics. The sampling "
        "interval adapts to stay below it.",
    )
    max_steps_between_samples: int = Field(
        100,
        ge=1,
        description="Maximum interval between samples of gradient and weight norms, whatever they "
        "cost [steps].",
    )
    fast_step_s: float = Field(
        0.02,
        ge=0,
        description="Steps shorter than this that repeat a known event pattern are recorded as "
        "that pattern and their losses; one step in ``full_sample_every`` is recorded fully [s].",
    )
    full_sample_every: int = Field(
        16,
        ge=1,
        description="Interval at which repeated fast steps are recorded fully: gradient state, "
        "learning rates, norms and event times. 1 records every step fully [steps].",
    )
    flush_s: float = Field(
        2.0,
        ge=0,
        description="Interval between writes to disk, the maximum time lost when the process is "
        "killed [s].",
    )
    recent_bytes: int = Field(
        8 * 2**20,
        ge=2**16,
        description="Disk space for the detailed records of the most recent steps [bytes].",
    )
    history_bytes: int = Field(
        64 * 2**20,
        ge=2**16,
        description="Disk space for the downsampled history of the whole run [bytes].",
    )
    history_rows: int = Field(
        1024,
        ge=16,
        description="Rows that the history keeps of a series at full rate. After that it keeps "
        "every second row, then every fourth, and so on.",
    )
    row_sample_size: int = Field(
        256,
        ge=1,
        description="Number of elements, evenly spaced, from which the fingerprint of a data row "
        "is computed.",
    )
    fingerprinted_batches: int = Field(
        64,
        ge=0,
        description="Number of first batches of each loader whose rows are fingerprinted. Rows of "
        "later batches are fingerprinted only at steps with statistics.",
    )
    sampled_weights: int = Field(
        4096,
        ge=1,
        description="Maximum number of elements of a parameter from which the norm of its update "
        "is estimated.",
    )
    max_modules: int = Field(
        256, ge=1, description="Maximum number of module outputs that are measured per step."
    )
    stop_after: int = Field(
        0,
        ge=0,
        description="Number of consecutive non-finite losses after which the program is stopped "
        "and its last good state is saved; 0 for never. Reads the loss of every backward pass.",
    )
    skip_nonfinite: bool = Field(
        False, description="Skip optimizer steps on the gradients of a non-finite loss."
    )
    checkpoint_every: int = Field(
        100,
        ge=1,
        description="Interval between copies of the last good state; during the first steps a "
        "copy is made at steps 1, 2, 4, 8 and so on [steps].",
    )
