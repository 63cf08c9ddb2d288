"""The outcome of one guard of the promotion gate."""

from typing import Literal

from pydantic import Field

from sluice.base.settings import Record

GuardResult = Literal["pass", "fail", "insufficient"]


class GuardOutcome(Record):
    """Result of one guard."""

    name: str = Field(description="Display name of the guard.")
    result: GuardResult
    observed: float = Field(
        description="Guard with a margin: lower bound of the gain, which is positive if the "
        "candidate is better. Limit: value of the metric. NaN for the guard of a suite, and if "
        "evidence is missing."
    )
    required: float = Field(
        description="Gain that ``observed`` must exceed for the result 'pass'. NaN for a limit, "
        "for the guard of a suite, and if evidence is missing."
    )
    reason: str = Field(description="Reason in one sentence.")

    @property
    def passed(self) -> bool:
        """True only for the result 'pass'; insufficient evidence does not pass."""
        return self.result == "pass"
