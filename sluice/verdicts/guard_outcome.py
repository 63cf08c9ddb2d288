"""The outcome of one guard of the promotion gate."""

from typing import Literal

from pydantic import Field

from sluice.base.settings import Record

GuardResult = Literal["pass", "fail", "insufficient"]


class GuardOutcome(Record):
    """What one guard found. Higher is better on its scale, whichever way the metric improves."""

    name: str = Field(description="Which guard, as a person would say it.")
    result: GuardResult
    observed: float = Field(description="Lower bound of the gain; the value itself for a limit.")
    required: float = Field(description="What had to be exceeded; NaN for a limit.")
    reason: str = Field(description="One sentence for people.")

    @property
    def passed(self) -> bool:
        """True only for a pass: too little evidence does not pass."""
        return self.result == "pass"
