"""Settings of the proof-of-concept (POC) gate."""

from typing import Annotated

from pydantic import Field, model_validator

from sluice.base.settings import Settings


class TimeLimit(Settings):
    """Typical and maximum duration of a check.

    On Linux, the time for which the check waits for a CPU that other programs use does not count.
    """

    typical_s: float = Field(
        gt=0, le=86_400, description="Duration above which a passed check warns [s]."
    )
    max_s: float = Field(gt=0, le=86_400, description="Duration above which the check fails [s].")

    @model_validator(mode="after")
    def _require_ordered_limits(self) -> "TimeLimit":
        if self.max_s < self.typical_s:
            raise ValueError(
                f"max_s must not be below typical_s, got {self.max_s} and {self.typical_s}"
            )
        return self


class TimeLimits(Settings):
    """Time limits of the checks and of the whole gate.

    ``features`` also limits the checks of split independence and of served inputs, and
    ``predictions`` the check of scoring.
    """

    data_loading: TimeLimit = TimeLimit(typical_s=10.0, max_s=60.0)
    raw_schema: TimeLimit = TimeLimit(typical_s=0.1, max_s=1.0)
    features: TimeLimit = TimeLimit(typical_s=10.0, max_s=60.0)
    look_ahead: TimeLimit = TimeLimit(typical_s=10.0, max_s=60.0)
    signal: TimeLimit = TimeLimit(typical_s=5.0, max_s=30.0)
    instantiation: TimeLimit = TimeLimit(typical_s=1.0, max_s=5.0)
    gradient_flow: TimeLimit = TimeLimit(typical_s=2.0, max_s=10.0)
    event_log: TimeLimit = TimeLimit(typical_s=1.0, max_s=10.0)
    selector: TimeLimit = TimeLimit(typical_s=1.0, max_s=10.0)
    overfit_one_batch: TimeLimit = TimeLimit(typical_s=10.0, max_s=60.0)
    mini_training: TimeLimit = TimeLimit(typical_s=30.0, max_s=120.0)
    predictions: TimeLimit = TimeLimit(typical_s=5.0, max_s=30.0)
    checkpoint: TimeLimit = TimeLimit(typical_s=5.0, max_s=30.0)
    whole_gate: TimeLimit = TimeLimit(typical_s=120.0, max_s=300.0)


class LookAheadSettings(Settings):
    """Settings of the look-ahead check."""

    cut_shares: tuple[float, ...] = Field(
        (0.4, 0.55, 0.7, 0.85, 0.95),
        strict=False,
        description="Positions of the cuts in time order, as shares of the rows. At each cut, the "
        "features are computed again from a table whose rows after the cut are reordered and "
        "partly dropped (see kept_shares).",
    )
    kept_shares: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(
        (0.5, 0.1),
        min_length=1,
        strict=False,
        description="Shares of the rows after a cut that are kept, in a new order; the remaining "
        "rows are dropped. Consecutive cuts use the shares in turn. A low share reveals features "
        "that use statistics of the whole table. A high share reveals features that use the next "
        "few rows.",
    )
    tolerance: float = Field(
        1e-9,
        ge=0,
        description="Maximum change of a feature that is ignored [standard deviations of the "
        "column].",
    )
    max_cells: int = Field(
        10_000_000,
        ge=100_000,
        le=10_000_000_000,
        description="Maximum size (rows times columns) of the table from which features are "
        "recomputed [cells]. A larger table is reduced to three blocks of rows: the oldest, the "
        "newest and some in between, at least 1,000 rows in total. If features cannot be computed "
        "from such short blocks, the blocks become longer, even if the table exceeds this limit.",
    )
    max_columns: int = Field(
        8192,
        ge=1,
        le=1_000_000,
        description="Maximum number of features that are compared in one changed table. If there "
        "are more, the features are divided among the changed tables [columns].",
    )


class PredictionSettings(Settings):
    """Limits for the predictions, relative to the target."""

    collapse_ratio: float = Field(
        0.005,
        gt=0,
        lt=1,
        description="Predictions count as collapsed if their standard deviation, divided by the "
        "standard deviation of the target, is below this value.",
    )
    explosion_ratio: float = Field(
        100.0,
        gt=1,
        description="Predictions count as exploded if their standard deviation, divided by the "
        "standard deviation of the target, is above this value. Class scores count as exploded if "
        "their standard deviation itself is above this value [nats].",
    )
    min_distinct: int = Field(
        10,
        ge=2,
        description="The check warns if fewer than this number of predictions are distinct after "
        "rounding to 6 decimals. With fewer examples, all predictions must be distinct.",
    )


class PocSettings(Settings):
    """Settings of the POC gate."""

    min_rows: int = Field(
        100,
        ge=1,
        description="Minimum number of raw rows that are complete and not duplicates, and minimum "
        "number of rows of features [rows].",
    )
    max_duplicate_share: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Maximum share of raw rows that duplicate an earlier row. Equal rows that "
        "chance explains are not counted.",
    )
    wide_table_columns: int = Field(
        32,
        ge=2,
        description="Minimum number of features of a wide table. In a wide table, constant "
        "features are common (image borders, rare categories). If at most half of the features are "
        "constant, the check warns and does not fail.",
    )
    target_copy_correlation: float = Field(
        0.9999,
        gt=0.9,
        le=1,
        description="The check fails if the absolute correlation of a feature with the target is "
        "at least this value, as for a copy. A feature whose values differ from the target's is "
        "exempt if the target correlates similarly well with its own value in the previous row, as "
        "in a slowly changing series.",
    )
    near_target_copy_correlation: float = Field(
        0.99,
        gt=0.5,
        le=1,
        description="The check warns if the absolute correlation of a feature with the target is "
        "at least this value, as for a noisy copy. The exemption of target_copy_correlation "
        "applies.",
    )
    split_rows: int = Field(
        1024,
        ge=16,
        le=1_000_000,
        description="Maximum number of rows of a split in the check of split independence; the "
        "last rows are used. Examples are computed from all these rows, and again from a part of "
        "these rows. Both results must be equal.",
    )
    look_ahead: LookAheadSettings = LookAheadSettings()
    signal_rows: int = Field(
        2000, ge=50, le=20_000, description="Maximum number of examples in the signal test."
    )
    signal_permutations: int = Field(
        199,
        ge=19,
        le=9999,
        description="Number of permutations of the targets in the signal test. The smallest "
        "possible p-value, 1 / (signal_permutations + 1), must not be above signal_alpha.",
    )
    signal_alpha: float = Field(
        0.01, gt=0, lt=0.5, description="Maximum false positive rate of the signal test."
    )
    probe_batch_rows: int = Field(
        32,
        ge=2,
        le=65_536,
        description="Number of examples in the batch on which the model and its gradients are "
        "checked.",
    )
    batch_independence_tolerance: float = Field(
        1e-3,
        gt=0,
        description="The prediction of an example may change by at most this value if it is "
        "repeated, or computed without the rest of the batch [standard deviations of the output "
        "over the batch].",
    )
    warn_gradient_norm: float = Field(
        100.0,
        gt=0,
        description="L2 norm of a parameter's gradient above which the check warns. For an "
        "absolute loss above 1, this limit is multiplied by the loss.",
    )
    probe_steps: int = Field(
        10,
        ge=2,
        le=1000,
        description="Number of optimizer steps on further batches if a gradient of the first batch "
        "is missing or zero. A gradient that is missing or zero on all batches is reported.",
    )
    overfit_rows: int = Field(
        8, ge=2, le=1024, description="Maximum number of examples in the batch to overfit."
    )
    overfit_steps: int = Field(
        300,
        ge=10,
        le=100_000,
        description="Maximum number of optimizer steps to overfit the batch, per learning rate.",
    )
    overfit_loss_share: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Maximum loss on the overfitted batch, as a share of the loss of the constant "
        "baseline. Both are measured from the lowest possible loss.",
    )
    checkpoint_rows: int = Field(
        256,
        ge=2,
        le=1_000_000,
        description="Maximum number of examples of the training that is interrupted and resumed "
        "from a checkpoint.",
    )
    predictions: PredictionSettings = PredictionSettings()
    hard_examples: int = Field(
        5,
        ge=0,
        le=100,
        description="The report lists at most this number of examples with the highest losses in "
        "the mini training.",
    )
    selector_first_epoch: int = Field(
        10, ge=1, description="First candidate epoch of the epoch selector check."
    )
    selector_last_epoch: int = Field(
        200, ge=2, description="Last candidate epoch of the epoch selector check."
    )
    selector_step_epochs: int = Field(
        10, ge=1, description="Epochs between two candidates of the epoch selector check."
    )
    selector_shuffles: int = Field(
        50,
        ge=1,
        le=10_000,
        description="Number of random orders of the scores in the epoch selector check.",
    )
    mini_rows: int = Field(
        512, ge=32, le=1_000_000, description="Maximum number of examples of the mini training."
    )
    mini_min_rows: int = Field(
        64,
        ge=16,
        description="Minimum number of train examples for the mini training. With fewer, the "
        "outcome of the check is 'insufficient'.",
    )
    mini_epochs: int = Field(
        10, ge=1, le=1000, description="Number of epochs of the mini training."
    )
    mini_seeds: int = Field(
        3,
        ge=2,
        le=100,
        description="Number of mini trainings, each with a different seed of the initial weights.",
    )
    mini_max_seeds: int = Field(
        8,
        ge=2,
        le=100,
        description="Number of mini trainings if the mean decrease of the loss in the first "
        "mini_seeds trainings is large enough, but not significant.",
    )
    min_loss_decrease: float = Field(
        0.01,
        gt=0,
        lt=1,
        description="Minimum decrease of the loss in the mini training, as a share of the "
        "learnable loss. The learnable loss is the first loss (or the loss of the best constant "
        "output if that is higher) minus the loss of a predictor that knows the target. If one of "
        "the last two losses cannot be computed, the learnable loss is the first loss. If the real "
        "training has over ten times the steps of the mini training, less is required.",
    )
    max_loss_increase_ratio: float = Field(
        4.0,
        ge=1,
        description="Maximum of (loss - start) / unit in the mini training. Here 'start' is the "
        "first loss, or the loss of the best constant output if that is higher, and 'unit' is the "
        "loss of the best constant output minus the loss of a predictor that knows the target. If "
        "the loss of the output or of the predictor cannot be computed, 'start' and 'unit' are the "
        "first loss.",
    )
    loss_decrease_confidence: float = Field(
        0.95,
        gt=0.5,
        lt=1,
        description="One-sided confidence with which the mean decrease over the seeds must be "
        "above min_loss_decrease. If mini_max_seeds is above mini_seeds, the decrease is tested "
        "twice, after mini_seeds and after mini_max_seeds; the confidence holds for both tests "
        "together.",
    )
    max_memory_share: float = Field(
        0.9,
        gt=0,
        le=1,
        description="Maximum memory of the gate's process, as a share of the memory that was free "
        "when the gate started. A check that needs more memory is stopped and fails.",
    )
    times: TimeLimits = TimeLimits()

    @model_validator(mode="after")
    def _require_consistent_settings(self) -> "PocSettings":
        if len(self.selector_epochs) < 2:
            raise ValueError(
                "the epoch selector needs at least two candidates, got "
                f"{self.selector_first_epoch} to {self.selector_last_epoch} "
                f"by {self.selector_step_epochs}"
            )
        if 1 / (self.signal_permutations + 1) > self.signal_alpha:
            raise ValueError(
                "signal_permutations must be at least 1 / signal_alpha - 1, because no p-value is "
                f"below 1 / (signal_permutations + 1), got {self.signal_permutations} and "
                f"signal_alpha {self.signal_alpha:g}"
            )
        if self.mini_min_rows > self.mini_rows:
            raise ValueError(
                f"mini_min_rows must not be above mini_rows, got {self.mini_min_rows} "
                f"and {self.mini_rows}"
            )
        if self.mini_max_seeds < self.mini_seeds:
            raise ValueError(
                f"mini_max_seeds must not be below mini_seeds, got {self.mini_max_seeds} "
                f"and {self.mini_seeds}"
            )
        return self

    @property
    def selector_epochs(self) -> range:
        """Candidate epochs of the epoch selector check, in order."""
        return range(
            self.selector_first_epoch, self.selector_last_epoch + 1, self.selector_step_epochs
        )
