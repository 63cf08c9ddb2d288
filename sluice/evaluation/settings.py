"""Settings of the promotion gate."""

from pydantic import Field

from sluice.base.settings import Settings


class GateSettings(Settings):
    """Settings of the comparison of a candidate with its reference.

    The gate needs no seed and no number of resamples, because the variance of the block bootstrap
    is computed in closed form.
    """

    alpha: float = Field(0.05, gt=0, lt=0.5, description="One-sided false promotion rate [rate].")
    min_gain: float = Field(
        0.0, ge=0, description="Minimum mean gain for a promotion [loss units]."
    )
    equivalence_margin_share: float = Field(
        0.01,
        ge=0,
        lt=1,
        description="Equivalence margin as a share of the reference's mean loss; 0 disables the "
        "outcome EQUIVALENT.",
    )
    min_seeds: int = Field(
        5, ge=5, le=1000, description="Minimum number of seeds of an arm with seeds."
    )
    min_rows: int = Field(250, ge=30, description="Minimum number of test rows [rows].")
    block_length: int | None = Field(
        None,
        ge=1,
        description="Minimum bootstrap block length, at least the horizon. For dependent rows, the "
        "estimated length is used if it is longer [rows].",
    )
    window_overlap: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Earlier decisions count as attempts on a window if they contain at least this "
        "share of its rows. All attempts on a window share alpha [rate].",
    )
    advised_power: float = Field(
        0.8,
        ge=0.5,
        lt=1,
        description="Target power of the sample size advice: probability of a decision if the true "
        "gain equals the observed one [rate].",
    )
