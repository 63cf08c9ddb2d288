"""Settings of a trace: its cost in time, memory and disk, and the non-finite guard."""

from pydantic import Field

from sluice.base.settings import Settings


class TraceSettings(Settings):
    """Limits of a trace, and the response to non-finite losses.

    The order of events is recorded at every step, regardless of these limits.
    """

    cost_share: float = Field(
        0.005,
        gt=0,
        le=1,
        description="Maximum share of the program's run time that is spent on statistics. The "
        "sampling interval adapts to this share.",
    )
    max_steps_between_samples: int = Field(
        100,
        ge=1,
        description="Maximum interval between two samples of gradient and weight norms [steps]. "
        "Samples at this interval may cost more than cost_share.",
    )
    fast_step_s: float = Field(
        0.02,
        ge=0,
        description="The tracer uses its fast path if the median step time is below this value "
        "[s]. It then records only the losses of steps that repeat a known sequence of events.",
    )
    full_sample_every: int = Field(
        16,
        ge=1,
        description="Maximum interval between two fully recorded steps while the fast path is used "
        "[steps]. A full record includes gradient state, learning rates, norms and event times. "
        "1 records every step fully.",
    )
    flush_s: float = Field(
        2.0,
        ge=0,
        description="Interval between two writes to disk [s]. If the process is killed, the "
        "records since the last write are lost.",
    )
    recent_bytes: int = Field(
        8 * 2**20,
        ge=2**16,
        description="Maximum disk space for the detailed records of the most recent steps [bytes].",
    )
    history_bytes: int = Field(
        64 * 2**20,
        ge=2**16,
        description="Size of the history of the whole run [bytes] beyond which no more losses, "
        "norms and statistics are added to it. Rarer records, such as epochs, are still added.",
    )
    history_rows: int = Field(
        1024,
        ge=16,
        description="Each series, such as the losses, is stored completely up to this number of "
        "values. Of the later values, every second is stored, then every fourth, and so on.",
    )
    row_sample_size: int = Field(
        256,
        ge=1,
        description="The fingerprint of a data row is computed from at most this number of its "
        "elements, evenly spaced.",
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
        description="Maximum number of elements of a parameter that are sampled to estimate the "
        "norm of its update.",
    )
    max_modules: int = Field(
        256, ge=1, description="Maximum number of module outputs that are measured in a step."
    )
    stop_after: int = Field(
        0,
        ge=0,
        description="After this number of consecutive non-finite losses, the tracer saves the last "
        "good state of the program and stops it; 0 for never. If set, the tracer reads every loss "
        "immediately, which waits for the device.",
    )
    skip_nonfinite: bool = Field(
        False,
        description="Skip optimizer steps that would use the gradients of a non-finite loss. The "
        "tracer then reads every loss immediately, which waits for the device.",
    )
    checkpoint_every: int = Field(
        100,
        ge=1,
        description="Maximum interval between two copies of the last good state, for stop_after "
        "[steps]. The first copies are made after 0, 1, 2, 4, 8 and so on steps.",
    )
