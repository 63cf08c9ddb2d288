"""Thresholds of the POC gate; every one with its unit and range."""

from typing import Annotated

from pydantic import Field, model_validator

from sluice.base.settings import Settings


class TimeLimit(Settings):
    """How long a check usually takes and how long it may take (POC-11)."""

    typical_s: float = Field(gt=0, le=86_400, description="Above this the check warns [s].")
    max_s: float = Field(gt=0, le=86_400, description="Above this the check fails [s].")

    @model_validator(mode="after")
    def _in_order(self) -> "TimeLimit":
        if self.max_s < self.typical_s:
            raise ValueError(
                f"max_s must not be below typical_s, got {self.max_s} and {self.typical_s}"
            )
        return self


class TimeLimits(Settings):
    """The time of every check and of the whole gate."""

    data_loading: TimeLimit = TimeLimit(typical_s=10.0, max_s=60.0)
    raw_schema: TimeLimit = TimeLimit(typical_s=0.1, max_s=1.0)
    features: TimeLimit = TimeLimit(typical_s=10.0, max_s=60.0)
    look_ahead: TimeLimit = TimeLimit(typical_s=10.0, max_s=60.0)
    signal: TimeLimit = TimeLimit(typical_s=5.0, max_s=30.0)
    instantiation: TimeLimit = TimeLimit(typical_s=1.0, max_s=5.0)
    gradient_flow: TimeLimit = TimeLimit(typical_s=2.0, max_s=10.0)
    event_log: TimeLimit = TimeLimit(typical_s=1.0, max_s=10.0)
    selector: TimeLimit = TimeLimit(typical_s=1.0, max_s=10.0)
    memorization: TimeLimit = TimeLimit(typical_s=10.0, max_s=60.0)
    mini_training: TimeLimit = TimeLimit(typical_s=30.0, max_s=120.0)
    predictions: TimeLimit = TimeLimit(typical_s=5.0, max_s=30.0)
    checkpoint: TimeLimit = TimeLimit(typical_s=5.0, max_s=30.0)
    whole_gate: TimeLimit = TimeLimit(typical_s=120.0, max_s=300.0)


class LookAheadSettings(Settings):
    """How hard the look-ahead check looks (POC-8)."""

    cut_shares: tuple[float, ...] = Field(
        (0.4, 0.55, 0.7, 0.85, 0.95),
        strict=False,
        description="Where the future begins, as shares of the rows.",
    )
    kept_shares: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(
        (0.5, 0.1),
        min_length=1,
        strict=False,
        description="Share of the later rows that stay, in turn from cut to cut. Few make a "
        "statistic of the whole table move, many leave a short look ahead something to see.",
    )
    tolerance: float = Field(
        1e-9, ge=0, description="Largest change, relative to the column's deviation."
    )
    max_cells: int = Field(
        10_000_000,
        ge=100_000,
        le=10_000_000_000,
        description="Rows times columns from which features are computed again. Of a larger table "
        "the oldest, the newest and some rows between are taken, at least 1,000 in all [cells].",
    )
    max_columns: int = Field(
        8192,
        ge=1,
        le=1_000_000,
        description="Features that are compared in one changed table. Of more, each table compares "
        "others in turn [columns].",
    )


class PredictionSettings(Settings):
    """When predictions are not sane (PRED-1, PRED-2); ratios, never absolute numbers."""

    collapse_ratio: float = Field(
        0.005, gt=0, lt=1, description="Below this share of the target's deviation: collapsed."
    )
    explosion_ratio: float = Field(
        100.0, gt=1, description="Above this multiple of the target's deviation: exploded."
    )
    min_distinct: int = Field(
        10, ge=2, description="Fewer distinct predictions, at 6 decimals, warn."
    )


class PocSettings(Settings):
    """What the POC gate asks for."""

    min_rows: int = Field(
        100, ge=1, description="Fewer rows after cleaning are refused (POC-6) [rows]."
    )
    max_duplicate_share: float = Field(
        0.01, ge=0, le=1, description="Largest share of repeated rows in a table of measurements."
    )
    wide_table_columns: int = Field(
        32,
        ge=2,
        description="From this many features on a few constant ones are usual (image borders, "
        "rare categories) and only warn.",
    )
    copy_correlation: float = Field(
        0.9999,
        gt=0.9,
        le=1,
        description="From this correlation on a feature may be a copy of the target.",
    )
    near_copy_correlation: float = Field(
        0.99,
        gt=0.5,
        le=1,
        description="From this correlation on a feature alone nearly is the target, and warns.",
    )
    split_rows: int = Field(
        1024, ge=16, le=1_000_000, description="Rows of a split that are asked for again in parts."
    )
    look_ahead: LookAheadSettings = LookAheadSettings()
    signal_rows: int = Field(
        2000, ge=50, le=20_000, description="Examples that are searched for a signal."
    )
    signal_permutations: int = Field(
        199, ge=19, le=9999, description="Shuffles of the targets that the signal must beat."
    )
    signal_alpha: float = Field(
        0.01, gt=0, lt=0.5, description="Rate at which shuffled targets pass for a signal."
    )
    probe_batch_rows: int = Field(
        32, ge=2, le=65_536, description="Examples of the one real batch of POC-1 and POC-2."
    )
    lone_tolerance: float = Field(
        1e-3,
        gt=0,
        description="Largest change of a prediction when it is asked again or without the rest of "
        "the batch (POC-1) [deviations of the output over the batch].",
    )
    warn_gradient_norm: float = Field(
        100.0,
        gt=0,
        description="A parameter's gradient norm above this, times the loss where that is above 1, "
        "warns (GRAD-1).",
    )
    probe_steps: int = Field(
        10,
        ge=2,
        le=1000,
        description="Optimizer steps after which a gradient that is still zero counts as dead.",
    )
    memorize_rows: int = Field(
        8, ge=2, le=1024, description="Examples of the tiny batch of POC-13, at most."
    )
    memorize_steps: int = Field(300, ge=10, le=100_000, description="Steps to memorise them in.")
    memorize_share: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="The loss must fall below this share of the trivial predictor's.",
    )
    checkpoint_rows: int = Field(
        256, ge=2, le=1_000_000, description="Examples that POC-10 trains on around a checkpoint."
    )
    predictions: PredictionSettings = PredictionSettings()
    hard_examples: int = Field(
        5, ge=0, le=100, description="Rows with the highest loss that are listed."
    )
    selector_first_epoch: int = Field(10, ge=1, description="First candidate of POC-4.")
    selector_last_epoch: int = Field(200, ge=2, description="Last candidate of POC-4.")
    selector_step_epochs: int = Field(10, ge=1, description="Epochs between candidates of POC-4.")
    selector_shuffles: int = Field(
        50, ge=1, le=10_000, description="Random orders of the scores that POC-4 asks about."
    )
    mini_rows: int = Field(
        512, ge=32, le=1_000_000, description="Examples of the mini training of POC-5."
    )
    mini_min_rows: int = Field(
        64, ge=16, description="With fewer examples POC-5 is 'insufficient', not a guess."
    )
    mini_epochs: int = Field(10, ge=1, le=1000, description="Epochs of the mini training.")
    mini_seeds: int = Field(
        3, ge=2, le=100, description="Mini trainings, each from its own initial weights."
    )
    mini_max_seeds: int = Field(
        8,
        ge=2,
        le=100,
        description="Mini trainings where the first ones fall by enough and do not yet prove it.",
    )
    min_relative_fall: float = Field(
        0.01,
        gt=0,
        lt=1,
        description="The loss must fall by more than this share of what there is to learn.",
    )
    max_rise_ratio: float = Field(
        4.0,
        ge=1,
        description="The loss may rise by no more than this many times what knowing the target "
        "is worth.",
    )
    fall_confidence: float = Field(
        0.95,
        gt=0.5,
        lt=1,
        description="One-sided confidence of that statement over seeds; of both looks together "
        "where mini_max_seeds is above mini_seeds.",
    )
    max_memory_share: float = Field(
        0.9,
        gt=0,
        le=1,
        description="Of the memory that is free when the gate starts; above it is stopped.",
    )
    times: TimeLimits = TimeLimits()

    @model_validator(mode="after")
    def _two_candidates(self) -> "PocSettings":
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
        """The candidate epochs of POC-4, in order."""
        return range(
            self.selector_first_epoch, self.selector_last_epoch + 1, self.selector_step_epochs
        )
