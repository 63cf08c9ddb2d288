"""Settings of an LLM judge: repeats, and thresholds of agreement."""

from pydantic import Field

from sluice.base.settings import Settings

TEMPERATURE = 0.0
"""Sampling temperature passed to the judge with every question; 0 gives the most likely answer."""


class JudgeSettings(Settings):
    """Number of repeats, and agreement required to trust a judge."""

    repeats: int = Field(
        3,
        ge=1,
        le=100,
        description="Number of times that the judge is asked about a pair in each order of its two "
        "answers.",
    )
    min_self_agreement: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="Threshold for the agreement of the judge with itself [rate]: the share of "
        "pairs on which all answers of the judge are the same. The judge is trusted only if the "
        "lower confidence bound of this share exceeds the threshold.",
    )
    min_human_agreement: float = Field(
        0.7,
        ge=0,
        lt=1,
        description="Threshold for the agreement of the judge with people [rate]: the share of "
        "labelled pairs on which the judge agrees with the person. The judge is trusted only if "
        "the lower confidence bound of this share exceeds the threshold. If the share of the most "
        "frequent label is larger than this setting, the share is the threshold.",
    )
    min_labelled: int = Field(
        50,
        ge=1,
        description="Minimum number of pairs with the label of a person. With fewer pairs, the "
        "judge is neither trusted nor rejected.",
    )
    confidence: float = Field(
        0.95,
        gt=0.5,
        lt=1,
        description="One-sided confidence level of the lower bounds of both agreements. The "
        "judge prefers candidate or baseline if the two-sided p-value of the sign test is below 1 "
        "minus this level.",
    )
