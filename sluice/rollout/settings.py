"""Settings of a rollout: its strategy, its steps, and the limits of its guards."""

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
    def is_shadowed(self) -> bool:
        """Whether one arm answers no user (share 0 or 1) and therefore gets shadow requests.

        Shadow requests make the arms comparable in every step, even before the first user gets the
        challenger and after all users get the challenger.
        """
        return self.share in (0.0, 1.0)


class RolloutSettings(Settings):
    """Steps in which a challenger replaces production, and limits that stop the rollout.

    Strategies: shadow has shadow requests only. canary has increasing shares of the traffic.
    blue-green has shadow requests first, and then all of the traffic at once. ab has one share,
    until labels decide which arm is better. While the challenger has all of the traffic, production
    gets shadow requests.
    """

    strategy: RolloutStrategy = Field(
        "canary",
        description="Strategy by which traffic moves to the challenger: shadow, canary, blue-green "
        "or ab.",
    )
    shares: tuple[float, ...] | None = Field(
        None,
        strict=False,
        description="Increasing shares of the users that the challenger answers, one per step. "
        "Null for the default of the strategy: 0.05, 0.25, 0.5, 1 for canary, and 0.5 for ab. Not "
        "used with the other strategies.",
    )
    quality: Literal["when_known", "required"] = Field(
        "when_known",
        description="Effect of the promotion gate's verdict on labelled pairs. With required, the "
        "last step waits for the verdict PROMOTE, as it always does with ab. The verdict REJECT "
        "rolls back in either case.",
    )
    quality_rows: int = Field(
        100,
        ge=1,
        description="Minimum number of newly labelled rows after which the promotion gate decides "
        "again [rows].",
    )
    min_step_s: float = Field(300, ge=0, description="Minimum duration of a step [s].")
    min_requests: int = Field(
        500, ge=1, description="Minimum number of requests of each arm in a step."
    )
    max_step_s: float = Field(
        3600,
        gt=0,
        description="Maximum duration of a step [s]. A rollout whose step takes longer pauses as "
        "inconclusive.",
    )
    lease_s: float = Field(
        180,
        gt=0,
        description="Maximum time between two checks of the rollout [s]. If no check is made for "
        "longer, the servers return all users to production.",
    )
    alpha: float = Field(
        0.01,
        gt=0,
        lt=0.5,
        description="Maximum probability that the guards on errors, timeouts, non-finite "
        "predictions and latency together roll back a healthy rollout within an hour.",
    )
    errors_alpha_share: float = Field(
        0.6,
        gt=0,
        lt=1,
        description="Share of alpha that the guard on errors gets. The other guards get equal "
        "shares of the rest.",
    )
    initial_alpha_share: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Share of each guard's alpha for harm that is present when the rollout starts. "
        "The rest is spread evenly over each hour, for harm that begins later.",
    )
    warn_alpha: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Level of a guard's warning: no step ends while the evidence of harm is at "
        "least 1 / warn_alpha.",
    )
    odds_ratios: tuple[float, ...] = Field(
        (2.5, 6.0),
        strict=False,
        description="Odds ratios of harm that the guards test for, in increasing order: odds of a "
        "fault of the challenger, divided by the odds of a fault of production.",
    )
    max_disagreement: float = Field(
        4.0,
        gt=1,
        description="Maximum mean difference of both arms' predictions on live requests, as a "
        "multiple of their mean difference on the held-out rows. A larger difference rolls back.",
    )
    min_pairs: int = Field(
        100,
        ge=10,
        description="Minimum number of requests that both arms must answer before their "
        "predictions are compared. If predictions are compared at all, no step ends earlier.",
    )
    max_dropped_rate: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="Maximum share of shadow requests that are dropped because the server is busy; "
        "no step ends while the share is larger. In a step without shadow requests, the share of "
        "failed requests that were not repeated on the other arm counts instead.",
    )

    @model_validator(mode="after")
    def _require_consistent(self) -> Self:
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
        """The steps in order; the rollout is complete when the last step has passed."""
        shares = _SHARES[self.strategy] if self.shares is None else self.shares
        return tuple(RolloutStep(share=share) for share in shares)

    @property
    def needs_quality(self) -> bool:
        """Whether the last step requires the verdict PROMOTE on labelled pairs."""
        return self.strategy == "ab" or self.quality == "required"


def _require_shares(strategy: RolloutStrategy, shares: tuple[float, ...]) -> None:
    if strategy in ("shadow", "blue-green"):
        raise ValueError(f"shares is not used with {strategy}, got {shares}; leave it out")
    if not shares or not (shares[0] > 0 and shares[-1] <= 1 and _is_increasing(shares)):
        raise ValueError(f"shares must increase within (0, 1], got {shares}")
    if strategy == "canary" and shares[-1] != 1:
        raise ValueError(f"the last share of a canary must be 1, got {shares}")
    if strategy == "ab" and (len(shares) > 1 or shares[0] == 1):
        raise ValueError(f"ab requires exactly one share, which is below 1, got {shares}")


def _is_increasing(values: tuple[float, ...]) -> bool:
    return all(math.isfinite(v) for v in values) and all(a < b for a, b in pairwise(values))
