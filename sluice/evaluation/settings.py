"""What may vary about the promotion gate."""

from pydantic import Field

from sluice.base.settings import Settings


class GateSettings(Settings):
    """When a candidate is proven better than what it would replace (STAT-1, STAT-3).

    There is no seed and no number of resamples: the block bootstrap's variance is computed in
    closed form, so the gate itself draws nothing.
    """

    alpha: float = Field(
        0.05, gt=0, lt=0.5, description="One-sided rate of false promotions [rate]."
    )
    min_gain: float = Field(
        0.0, ge=0, description="Smallest mean gain worth a promotion [loss units]."
    )
    equivalence_margin_share: float = Field(
        0.01,
        ge=0,
        lt=1,
        description="Gains smaller than this share of the reference's mean loss do not matter; "
        "0 never calls two models equivalent.",
    )
    min_seeds: int = Field(
        5, ge=5, le=1000, description="Fewer seeds in an arm that has seeds decide nothing."
    )
    min_rows: int = Field(250, ge=30, description="Fewer test rows decide nothing [rows].")
    block_length: int | None = Field(
        None,
        ge=1,
        description="Fewest rows of a bootstrap block, at least the horizon. Where rows depend on "
        "each other, the length that is estimated from them counts when it is longer [rows].",
    )
    window_overlap: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Decisions made on at least this share of the window's rows count as earlier "
        "attempts on it, and all attempts share alpha; 1 counts windows with all its rows [rate].",
    )
    advised_power: float = Field(
        0.8,
        ge=0.5,
        lt=1,
        description="Chance to detect the gain seen that the advice on more seeds or rows aims "
        "for [rate].",
    )
