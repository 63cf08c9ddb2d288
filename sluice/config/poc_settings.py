"""Settings of the proof-of-concept (POC) gate."""

from typing import Annotated

from pydantic import Field, model_validator

from sluice.base.settings import Settings


class TimeLimit(Settings):
    """Typical and maximum duration of a check.

    On Linux, time in which the check waits for a CPU that other programs use does not count.
    """

    typical_s: float = Field(
        gt=0, le=86_400, description="Duration above which a warning is given [s]."
    )
    max_s: float = Field(gt=0, le=86_400, description="Duration above which the check fails [s].")

    @model_validator(mode="after")
    def _in_order(self) -> "TimeLimit":
        if self.max_s < self.typical_s:
            raise ValueError(
                f"max_s must not be below typical_s, got {self.max_s} and {self.typical_s}"
            )
        return self


class TimeLimits(Settings):
    """Time limits of each check and of the whole gate."""

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
        description="Positions of the cuts after which rows are changed, as shares of the rows.",
    )
    kept_shares: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(
        (0.5, 0.1),
        min_length=1,
        strict=False,
        description="Shares of the later rows that are kept; consecutive cuts use them in turn. "
        "Low shares reveal statistics over the whole table, high shares reveal short look-aheads.",
    )
    tolerance: float = Field(
        1e-9, ge=0, description="Maximum change, relative to the column's standard deviation."
    )
    max_cells: int = Field(
        10_000_000,
        ge=100_000,
        le=10_000_000_000,
        description="Maximum size (rows times columns) of the table from which features are "
        "recomputed [cells]. A larger table is reduced to its oldest, its newest and some other "
        "rows, at least 1,000 rows in total.",
    )
    max_columns: int = Field(
        8192,
        ge=1,
        le=1_000_000,
        description="Maximum number of features compared per changed table. If there are more, "
        "the changed tables compare different features in turn [columns].",
    )


class PredictionSettings(Settings):
    """Limits for the predictions, relative to the target."""

    collapse_ratio: float = Field(
        0.005,
        gt=0,
        lt=1,
        description="Predictions are collapsed if their standard deviation is below this share of "
        "the target's.",
    )
    explosion_ratio: float = Field(
        100.0,
        gt=1,
        description="Predictions have exploded if their standard deviation is above this multiple "
        "of the target's.",
    )
    min_distinct: int = Field(
        10,
        ge=2,
        description="Minimum number of distinct predictions, rounded to 6 decimals; fewer give a "
        "warning.",
    )


class PocSettings(Settings):
    """Settings of the POC gate."""

    min_rows: int = Field(100, ge=1, description="Minimum number of rows after cleaning [rows].")
    max_duplicate_share: float = Field(
        0.01, ge=0, le=1, description="Maximum share of duplicate rows in a table of measurements."
    )
    wide_table_columns: int = Field(
        32,
        ge=2,
        description="Minimum number of features of a wide table. In these, constant features are "
        "common (image borders, rare categories) and only warn.",
    )
    target_copy_correlation: float = Field(
        0.9999,
        gt=0.9,
        le=1,
        description="Minimum correlation at which a feature may be a copy of the target.",
    )
    near_target_copy_correlation: float = Field(
        0.99,
        gt=0.5,
        le=1,
        description="Minimum correlation at which a single feature nearly equals the target and "
        "warns.",
    )
    split_rows: int = Field(
        1024,
        ge=16,
        le=1_000_000,
        description="Maximum number of rows of a split whose examples are compared with those of "
        "its parts.",
    )
    look_ahead: LookAheadSettings = LookAheadSettings()
    signal_rows: int = Field(
        2000, ge=50, le=20_000, description="Maximum number of examples in the signal test."
    )
    signal_permutations: int = Field(
        199, ge=19, le=9999, description="Number of permutations of the targets in the signal test."
    )
    signal_alpha: float = Field(
        0.01, gt=0, lt=0.5, description="False positive rate of the signal test."
    )
    probe_batch_rows: int = Field(
        32,
        ge=2,
        le=65_536,
        description="Number of examples of the batch on which instantiation and gradient flow "
        "are checked.",
    )
    batch_independence_tolerance: float = Field(
        1e-3,
        gt=0,
        description="Maximum change of a prediction if it is repeated or computed without the "
        "rest of the batch [standard deviations of the output over the batch].",
    )
    warn_gradient_norm: float = Field(
        100.0,
        gt=0,
        description="Gradient norm of a parameter above which the check warns; multiplied by the "
        "loss if that is above 1.",
    )
    probe_steps: int = Field(
        10,
        ge=2,
        le=1000,
        description="Number of optimizer steps after which a gradient that was always zero counts "
        "as dead.",
    )
    overfit_rows: int = Field(
        8, ge=2, le=1024, description="Maximum number of examples of the batch to overfit."
    )
    overfit_steps: int = Field(
        300, ge=10, le=100_000, description="Maximum number of steps to overfit the batch."
    )
    overfit_loss_share: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Maximum remaining share of the distance from the constant baseline's loss to "
        "the lowest possible loss.",
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
        5, ge=0, le=100, description="Number of listed rows, those with the highest loss."
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
        description="Minimum number of examples; with fewer the mini training is 'insufficient'.",
    )
    mini_epochs: int = Field(
        10, ge=1, le=1000, description="Number of epochs of the mini training."
    )
    mini_seeds: int = Field(
        3, ge=2, le=100, description="Number of mini trainings, each with its own initial weights."
    )
    mini_max_seeds: int = Field(
        8,
        ge=2,
        le=100,
        description="Number of mini trainings if the loss of the first ones decreases "
        "sufficiently but not significantly.",
    )
    min_loss_decrease: float = Field(
        0.01,
        gt=0,
        lt=1,
        description="Minimum decrease of the loss, as a share of the learnable loss: the distance "
        "from the first loss to the loss of a predictor that knows the target.",
    )
    max_loss_increase_ratio: float = Field(
        4.0,
        ge=1,
        description="Maximum increase of the loss, as a multiple of the distance between the "
        "losses of the best constant output and of a predictor that knows the target.",
    )
    loss_decrease_confidence: float = Field(
        0.95,
        gt=0.5,
        lt=1,
        description="One-sided confidence of the decrease over seeds. If mini_max_seeds is above "
        "mini_seeds, it holds for both tests together: after mini_seeds and after mini_max_seeds.",
    )
    max_memory_share: float = Field(
        0.9,
        gt=0,
        le=1,
        description="Maximum share of the memory that is free when the gate starts; above it the "
        "gate is stopped.",
    )
    times: TimeLimits = TimeLimits()

    @model_validator(mode="after")
    def _settings_agree(self) -> "PocSettings":
        if len(self.selector_epochs) < 2:
            raise ValueError(
                "the epoch selector needs at least two candidates, got "
                f"{self.selector_first_epoch} to {self.selector_last_epoch} "
                f"by {self.selector_step_epochs}"
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
