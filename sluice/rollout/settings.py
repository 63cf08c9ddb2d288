"""What may vary about a rollout: its steps, its patience and its guards (ROLL-1, ROLL-2)."""

import math
from itertools import pairwise
from typing import Literal, Self

from pydantic import Field, model_validator

from sluice.base.settings import Record, Settings

Strategy = Literal["shadow", "canary", "blue-green", "ab"]

_SHARES: dict[Strategy, tuple[float, ...]] = {
    "shadow": (0.0,),
    "canary": (0.05, 0.25, 0.5, 1.0),
    "blue-green": (0.0, 1.0),
    "ab": (0.5,),
}


class Step(Record):
    """How the traffic is split while a rollout stands at one step."""

    share: float = Field(ge=0, le=1, description="Of the users, those the challenger answers.")

    @property
    def shadow(self) -> bool:
        """Whether the arm that answers nobody gets copies, whose answers nobody sees.

        So both arms are always busy at the same time and can be compared: before the first
        request of a user, and still when all of them are the challenger's.
        """
        return self.share in (0.0, 1.0)


class RolloutSettings(Settings):
    """How a challenger is brought into production, and what stops it.

    shadow: copies of the traffic only. canary: rising shares. blue-green: copies, then all of the
    traffic at once. ab: one share until the labels say which arm is better. While all traffic is
    the challenger's, production gets the copies.
    """

    strategy: Strategy = Field("canary", description="How the traffic moves.")
    shares: tuple[float, ...] | None = Field(
        None,
        strict=False,
        description="Shares of the challenger, rising; null takes the strategy's own: 0.05, 0.25, "
        "0.5, 1 for canary, 0.5 for ab. The other strategies have none [rate].",
    )
    quality: Literal["when_known", "required"] = Field(
        "when_known",
        description="Whether the last step also waits for a PROMOTE on labelled pairs; ab always "
        "does. A REJECT rolls back in either case.",
    )
    quality_rows: int = Field(
        100,
        ge=1,
        description="Labelled rows that make the gate look again, new since it last did [rows].",
    )
    min_step_s: float = Field(300, ge=0, description="Shortest time at a step [s].")
    min_requests: int = Field(
        500, ge=1, description="Fewest requests of the challenger at a step [requests]."
    )
    max_step_s: float = Field(
        3600,
        gt=0,
        description="Longest time at a step before the rollout pauses as inconclusive [s].",
    )
    lease_s: float = Field(
        180,
        gt=0,
        description="A rollout that nobody looks at for this long goes back to production [s].",
    )
    alpha: float = Field(
        0.01,
        gt=0,
        lt=0.5,
        description="Most healthy rollouts rolled back in an hour by the guards [rate].",
    )
    errors_part: float = Field(
        0.6,
        gt=0,
        lt=1,
        description="Part of alpha that the guard of errors has; the others share the rest [rate].",
    )
    start_part: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Part of alpha spent on harm that is there when the rollout starts; the rest "
        "is spread evenly over each hour, for harm that begins later [rate].",
    )
    suspicion: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="A guard whose evidence of harm exceeds 1 / suspicion lets no step end [rate].",
    )
    ratios: tuple[float, ...] = Field(
        (2.5, 6.0),
        strict=False,
        description="Harm that the guards look for: odds of a bad answer over production's, "
        "rising [x].",
    )
    max_disagreement: float = Field(
        4.0,
        gt=1,
        description="Predictions that differ more than this many times as much as on the held-out "
        "rows roll back [x].",
    )
    min_pairs: int = Field(
        100,
        ge=10,
        description="Fewest requests that both arms answered, to be compared [requests].",
    )
    max_dropped: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="Most copies that may be dropped at a step for want of room [rate].",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.shares is not None:
            _require_shares(self.strategy, self.shares)
        if not self.min_step_s < self.max_step_s:
            raise ValueError(
                f"max_step_s must exceed min_step_s, got {self.max_step_s:g} and "
                f"{self.min_step_s:g}"
            )
        if not self.ratios or self.ratios[0] <= 1 or not _rises(self.ratios):
            raise ValueError(f"ratios must rise and start above 1, got {self.ratios}")
        return self

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps in their order; the rollout is through when the last one held."""
        own = _SHARES[self.strategy] if self.shares is None else self.shares
        return tuple(Step(share=share) for share in own)

    @property
    def needs_quality(self) -> bool:
        """Whether the last step cannot end without a PROMOTE on labelled pairs."""
        return self.strategy == "ab" or self.quality == "required"


def _require_shares(strategy: Strategy, shares: tuple[float, ...]) -> None:
    if strategy in ("shadow", "blue-green"):
        raise ValueError(f"shares has no meaning with {strategy}, got {shares}; leave it out")
    if not shares or not (shares[0] > 0 and shares[-1] <= 1 and _rises(shares)):
        raise ValueError(f"shares must rise within (0, 1], got {shares}")
    if strategy == "canary" and shares[-1] != 1:
        raise ValueError(f"the last share of a canary must be 1, got {shares}")
    if strategy == "ab" and (len(shares) > 1 or shares[0] == 1):
        raise ValueError(f"ab takes one share below 1, got {shares}")


def _rises(values: tuple[float, ...]) -> bool:
    return all(math.isfinite(v) for v in values) and all(a < b for a, b in pairwise(values))
