"""What was seen of both arms at one step of a rollout: counts, never payloads (ROLL-2)."""

from typing import Self

from pydantic import AwareDatetime, Field, model_validator

from sluice.settings import Record


class ArmCounts(Record):
    """Answers of one arm since the step began. Counts only grow; a restarted server adds up."""

    requests: int = Field(0, ge=0, description="Requests that were routed to the arm.")
    errors: int = Field(0, ge=0, description="Of them, the arm raised; fallback answers included.")
    timeouts: int = Field(0, ge=0, description="Of them, later than the deadline.")
    not_finite: int = Field(0, ge=0, description="Of them, the answer held NaN or infinity.")
    slower: int = Field(
        0, ge=0, description="Of them, slower than production's p95 at the start of the step."
    )

    @model_validator(mode="after")
    def _within_requests(self) -> Self:
        if max(self.errors, self.timeouts, self.not_finite, self.slower) > self.requests:
            raise ValueError(f"no count may exceed the {self.requests} requests, got {self!r}")
        return self


class Window(Record):
    """Both arms at one step of one rollout."""

    rollout: str = Field(description="Id of the rollout.")
    epoch: int = Field(ge=0, description="Epoch of the weights that were in force.")
    since: AwareDatetime = Field(description="When the step began.")
    until: AwareDatetime = Field(description="Now.")
    production: ArmCounts
    challenger: ArmCounts
    shadow_dropped: int = Field(0, ge=0, description="Shadow requests the queue had no room for.")
