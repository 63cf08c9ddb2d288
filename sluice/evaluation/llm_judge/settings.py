"""What is asked of a language model before its judgement counts (LLM-1)."""

from pydantic import Field

from sluice.base.settings import Settings

TEMPERATURE = 0.0
"""Handed to the judge with every question: its likeliest answer, not a draw."""


class JudgeSettings(Settings):
    """How often a judge is asked, and from which agreement on it is trusted."""

    repeats: int = Field(3, ge=1, le=100, description="Times that each order is asked.")
    min_self_agreement: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="Share of pairs on which all answers of the judge agree; its lower bound must "
        "be above.",
    )
    min_human_agreement: float = Field(
        0.7,
        ge=0,
        lt=1,
        description="Share of labelled pairs on which it agrees with the person; its lower bound "
        "must be above, and above the share of the commonest label.",
    )
    min_labelled: int = Field(
        50, ge=1, description="With fewer labelled pairs nothing is said of trust [pairs]."
    )
    confidence: float = Field(
        0.95, gt=0.5, lt=1, description="One-sided confidence of each of these bounds."
    )
