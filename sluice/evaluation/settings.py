"""Settings of the promotion gate."""

from pydantic import Field

from sluice.base.settings import Settings


class GateSettings(Settings):
    """Settings of the comparison of a candidate with its reference.

    The gate needs no seed and no number of resamples, because the variance of the block bootstrap
    is computed in closed form.
    """

    alpha: float = Field(
        0.05,
        gt=0,
        lt=0.5,
        description="Maximum one-sided rate of false promotions on one window, over all attempts "
        "[rate].",
    )
    min_gain: float = Field(
        0.0,
        ge=0,
        description="Mean gain that a candidate must significantly exceed for a promotion [loss "
        "units].",
    )
    equivalence_margin_share: float = Field(
        0.01,
        ge=0,
        lt=1,
        description="Equivalence margin as a share of the reference's mean loss. The verdict is "
        "EQUIVALENT if the gain is significantly within the margin; 0 disables this verdict.",
    )
    min_seeds: int = Field(
        5,
        ge=5,
        le=1000,
        description="Minimum number of seeds of the candidate, and of a reference with seeds. "
        "With fewer, the verdict is INCONCLUSIVE.",
    )
    min_rows: int = Field(
        250,
        ge=30,
        description="Minimum number of test rows, or of clusters of rows. With fewer, the verdict "
        "is INCONCLUSIVE [rows].",
    )
    block_length: int | None = Field(
        None,
        ge=1,
        description="Minimum block length; at least the horizon. For dependent rows, the length is "
        "also estimated from the gains, and the longer one is used [rows].",
    )
    window_overlap: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Minimum share of a window's rows that an earlier decision must contain to "
        "count as an attempt on this window. All attempts on a window share alpha [rate].",
    )
    advised_power: float = Field(
        0.8,
        ge=0.5,
        lt=1,
        description="Power for which an inconclusive verdict advises a sample size: probability of "
        "a decision if the true gain equals the observed one [rate].",
    )
