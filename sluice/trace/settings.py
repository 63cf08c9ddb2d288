"""What a trace may cost: time, memory, disk."""

from pydantic import Field

from sluice.base.settings import Settings


class TraceSettings(Settings):
    """Bounds of a trace; the order of events is recorded at every step whatever they are."""

    cost_share: float = Field(
        0.005,
        gt=0,
        le=1,
        description="Share of the program's time that statistics may take; they are taken every "
        "so many steps that it holds.",
    )
    most_steps_between: int = Field(
        100, ge=1, description="Statistics are taken at least this often, cost or not [steps]."
    )
    quick_step_s: float = Field(
        0.02,
        ge=0,
        description="Steps that are shorter and repeat one order are told by their order and loss "
        "alone, but for one in ``closely_every`` [s].",
    )
    closely_every: int = Field(
        16,
        ge=1,
        description="One in so many of them is looked at closely: what gradients it finds, its "
        "rates and norms, the times of its parts; 1 looks at every step so.",
    )
    flush_s: float = Field(
        2.0, ge=0, description="What a kill loses at most: the last so many seconds [s]."
    )
    recent_bytes: int = Field(
        8 * 2**20, ge=2**16, description="Disk for the detail of the most recent steps [bytes]."
    )
    history_bytes: int = Field(
        64 * 2**20, ge=2**16, description="Disk for the thin history of the whole run [bytes]."
    )
    history_rows: int = Field(
        1024,
        ge=16,
        description="Rows of a series in the history before every second one is left out, then "
        "three of four, and so on.",
    )
    row_words: int = Field(
        256, ge=1, description="Numbers of a data row that its fingerprint reads, evenly spread."
    )
    hashed_batches: int = Field(
        64, ge=0, description="Batches at the start of each loader whose rows are fingerprinted."
    )
    sampled_weights: int = Field(
        4096, ge=1, description="Numbers of a parameter from which the size of its update is told."
    )
    most_modules: int = Field(
        256, ge=1, description="Modules of a network whose outputs are measured."
    )
    stop_after: int = Field(
        0,
        ge=0,
        description="Losses in a row that are not finite, after which the program is ended with "
        "its last good state on disk; 0 for never. Reads the loss at every step.",
    )
    skip_poisoned: bool = Field(
        False, description="Leave out steps on the gradients of a loss that is not finite."
    )
    keep_every: int = Field(
        100,
        ge=1,
        description="A copy of the last good state is made so often; before, at steps 1, 2, 4, 8 "
        "and so on [steps].",
    )
