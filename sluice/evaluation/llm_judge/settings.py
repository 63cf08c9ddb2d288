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
        description="Number of questions about a pair for each order of its two texts.",
    )
    min_self_agreement: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="Required share of pairs on which all answers of the judge agree [rate]. The "
        "lower confidence bound of the measured share must be above it.",
    )
    min_human_agreement: float = Field(
        0.7,
        ge=0,
        lt=1,
        description="Required share of labelled pairs on which the judge agrees with the person "
        "[rate]. The share of the most frequent label is required if it is larger. The lower "
        "confidence bound of the measured share must be above it.",
    )
    min_labelled: int = Field(50, ge=1, description="Minimum number of labelled pairs [pairs].")
    confidence: float = Field(
        0.95,
        gt=0.5,
        lt=1,
        description="One-sided confidence level of the bounds. The judge prefers one side if the "
        "two-sided p-value is below 1 minus this level.",
    )
