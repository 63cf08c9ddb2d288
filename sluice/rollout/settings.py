"""Settings of a rollout."""

import math
from itertools import pairwise
from typing import Literal, Self

from pydantic import Field, model_validator

from sluice.base.settings import Record, Settings

RolloutStrategy = Literal["shadow", "canary", "blue-green", "ab"]

_SHARES: dict[RolloutStrategy, tuple[float, ...]] = {
    "shadow": (0.0,),
    "canary": (0.05, 0.25, 0.5, 1.0),
    "blue-green": (0.0, 1.0),
    "ab": (0.5,),
}


class RolloutStep(Record):
    """Traffic split of one step of a rollout."""

    share: float = Field(ge=0, le=1, description="Share of the users that the challenger answers.")

    @property
    def shadow(self) -> bool:
        """Whether the arm that answers no user gets shadow requests.

        So both arms always work at the same time and can be compared: before the first user gets
        the challenger, and still when all of them do.
        """
        return self.share in (0.0, 1.0)


class RolloutSettings(Settings):
    """How a challenger is brought into production, and what stops it.

    shadow: shadow requests only. canary: increasing shares. blue-green: shadow requests, then
    all of the traffic at once. ab: one share until the labels decide which arm is better. While
    the challenger has all of the traffic, production gets the shadow requests.
    """

    strategy: RolloutStrategy = Field(
        "canary", description="How the traffic moves to the challenger."
    )
    shares: tuple[float, ...] | None = Field(
        None,
        strict=False,
        description="Increasing shares of the challenger; null takes the default of the "
        "strategy: 0.05, 0.25, 0.5, 1 for canary, 0.5 for ab. The other strategies "
        "have none [rate].",
    )
    quality: Literal["when_known", "required"] = Field(
        "when_known",
        description="Whether the last step also waits for a PROMOTE on labelled pairs; ab "
        "always does. A REJECT rolls back in either case.",
    )
    quality_rows: int = Field(
        100,
        ge=1,
        description="Number of newly labelled rows after which the gate decides again [rows].",
    )
    min_step_s: float = Field(300, ge=0, description="Shortest duration of a step [s].")
    min_requests: int = Field(
        500, ge=1, description="Fewest requests of the challenger in a step [requests]."
    )
    max_step_s: float = Field(
        3600,
        gt=0,
        description="Longest duration of a step; after it the rollout pauses as inconclusive [s].",
    )
    lease_s: float = Field(
        180,
        gt=0,
        description="Servers return to production when the rollout was not checked for this "
        "long [s].",
    )
    alpha: float = Field(
        0.01,
        gt=0,
        lt=0.5,
        description="Largest share of healthy rollouts that the guards roll back within an hour "
        "[rate].",
    )
    errors_alpha_share: float = Field(
        0.6,
        gt=0,
        lt=1,
        description="Share of alpha for the guard of errors; the other guards divide the rest "
        "[rate].",
    )
    initial_alpha_share: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Share of alpha for harm that is present when the rollout starts; the rest "
        "is spread evenly over each hour, for harm that begins later [rate].",
    )
    warn_alpha: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="No step ends while a guard's evidence of harm exceeds 1 / warn_alpha [rate].",
    )
    odds_ratios: tuple[float, ...] = Field(
        (2.5, 6.0),
        strict=False,
        description="Effects that the guards test for: odds of a fault relative to "
        "production's, increasing [x].",
    )
    max_disagreement: float = Field(
        4.0,
        gt=1,
        description="Rolls back when live predictions of the arms differ by more than this "
        "multiple of their difference on the held-out rows [x].",
    )
    min_pairs: int = Field(
        100,
        ge=10,
        description="Fewest requests answered by both arms that are compared [requests].",
    )
    max_dropped_rate: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="Largest share of shadow requests that may be dropped in a step because the "
        "queue is full [rate].",
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
        if not self.odds_ratios or self.odds_ratios[0] <= 1 or not _is_increasing(self.odds_ratios):
            raise ValueError(f"odds_ratios must increase and start above 1, got {self.odds_ratios}")
        return self

    @property
    def steps(self) -> tuple[RolloutStep, ...]:
        """The steps in order; the rollout is complete when the last one passed."""
        shares = _SHARES[self.strategy] if self.shares is None else self.shares
        return tuple(RolloutStep(share=share) for share in shares)

    @property
    def needs_quality(self) -> bool:
        """Whether the last step cannot end without a PROMOTE on labelled pairs."""
        return self.strategy == "ab" or self.quality == "required"


def _require_shares(strategy: RolloutStrategy, shares: tuple[float, ...]) -> None:
    if strategy in ("shadow", "blue-green"):
        raise ValueError(f"shares is not used with {strategy}, got {shares}; leave it out")
    if not shares or not (shares[0] > 0 and shares[-1] <= 1 and _is_increasing(shares)):
        raise ValueError(f"shares must increase within (0, 1], got {shares}")
    if strategy == "canary" and shares[-1] != 1:
        raise ValueError(f"the last share of a canary must be 1, got {shares}")
    if strategy == "ab" and (len(shares) > 1 or shares[0] == 1):
        raise ValueError(f"ab takes one share below 1, got {shares}")


def _is_increasing(values: tuple[float, ...]) -> bool:
    return all(math.isfinite(v) for v in values) and all(a < b for a, b in pairwise(values))
