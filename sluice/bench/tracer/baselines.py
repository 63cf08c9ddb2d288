"""What others would say of the same runs: monitors of the loss, a debugger's default rules.

Each baseline is a function of what ordinary hooks show of an untraced run. None of them names a
cause; here only counts whether it raises an alarm, and at which step.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from pydantic import Field

from sluice.base.settings import Record

_WINDOW, _SPIKE = 10, 2.0
_VANISHING = 1e-7
_DEAD_SHARE = 0.5
_STILL_STEPS = 3
_LARGE_UPDATE, _SMALL_UPDATE = 10.0, 1e-8
_OVERFIT = 0.1
_IMBALANCE = 10.0


class StepSight(Record):
    """What hooks see of one optimizer step. A number is 0 where nothing stands behind it."""

    step: int
    losses: tuple[float, ...] = Field(description="Of each backward pass before it, unscaled.")
    smallest_gradient: float = Field(description="Smallest mean |g| of a parameter; NaN for none.")
    has_non_finite: bool = Field(description="A gradient or loss is NaN or infinite.")
    all_zero: int = Field(description="Gradients and module outputs that are zero throughout.")
    unmoved: tuple[int, ...] = Field(
        description="Places of the weights that the step left within a relative 1e-5."
    )
    smallest_update: float = Field(description="Smallest mean |change| / mean |w|; NaN for none.")
    largest_update: float
    dead_share: float = Field(description="Largest share of units of a ReLU on in < 1 % of rows.")


class ScoreSight(Record):
    """One pass without gradients, between two learning steps."""

    step: int = Field(description="Steps before it.")
    training: float = Field(description="Mean loss of the steps since the pass before.")
    validation: float


class Sight(Record):
    """What hooks see of one run."""

    steps: tuple[StepSight, ...]
    scores: tuple[ScoreSight, ...]
    labels: dict[int, int] = Field(description="How often each label was learned from.")


def _losses(sight: Sight) -> list[tuple[int, float]]:
    return [(seen.step, loss) for seen in sight.steps for loss in seen.losses]


def _not_a_number(sight: Sight) -> int | None:
    return _first(step for step, loss in _losses(sight) if not math.isfinite(loss))


def _spike(sight: Sight) -> int | None:
    losses = _losses(sight)
    for at in range(_WINDOW, len(losses)):
        mean = statistics.fmean(loss for _, loss in losses[at - _WINDOW : at])
        if mean and losses[at][1] / mean > _SPIKE:
            return losses[at][0]
    return None


def _vanishing(sight: Sight) -> int | None:
    return _first(seen.step for seen in sight.steps if seen.smallest_gradient < _VANISHING)


def _exploding(sight: Sight) -> int | None:
    return _first(seen.step for seen in sight.steps if seen.has_non_finite)


def _dead(sight: Sight) -> int | None:
    return _first(seen.step for seen in sight.steps if seen.dead_share > _DEAD_SHARE)


def _unchanged(sight: Sight) -> int | None:
    still: dict[int, int] = {}
    for seen in sight.steps:
        still = {place: still.get(place, 0) + 1 for place in seen.unmoved}
        if max(still.values(), default=0) >= _STILL_STEPS:
            return seen.step
    return None


def _update(sight: Sight) -> int | None:
    return _first(
        seen.step
        for seen in sight.steps
        if seen.largest_update > _LARGE_UPDATE or seen.smallest_update < _SMALL_UPDATE
    )


def _not_falling(sight: Sight) -> int | None:
    losses = _losses(sight)
    return _first(
        losses[at][0]
        for at in range(_WINDOW, len(losses))
        if not losses[at][1] < losses[at - _WINDOW][1]
    )


def _overfit(sight: Sight) -> int | None:
    return _first(
        score.step
        for score in sight.scores
        if score.training and (score.validation - score.training) / score.training > _OVERFIT
    )


def _all_zero(sight: Sight) -> int | None:
    return _first(seen.step for seen in sight.steps if seen.all_zero)


def _imbalance(sight: Sight) -> int | None:
    counts = sight.labels.values()
    return 1 if len(counts) > 1 and max(counts) / min(counts) > _IMBALANCE else None


DEBUGGER: Mapping[str, Callable[[Sight], int | None]] = {
    "vanishing gradient": _vanishing,
    "exploding tensor": _exploding,
    "dead ReLU": _dead,
    "unchanged tensor": _unchanged,
    "weight update ratio": _update,
    "loss not falling": _not_falling,
    "overfit": _overfit,
    "all-zero tensor": _all_zero,
    "class imbalance": _imbalance,
}
"""Rules of the managed debugger, with their published default thresholds, at every step."""

ANOMALY = "detect_anomaly"
DEBUGGER_ANY = "managed debugger, any rule"
ALWAYS, NEVER = "always alarm", "never alarm"

BASELINES: tuple[str, ...] = (
    ANOMALY,
    "loss is NaN",
    "loss spike",
    DEBUGGER_ANY,
    *(f"debugger: {name}" for name in DEBUGGER),
    ALWAYS,
    NEVER,
)


def alarms_in(sight: Sight, *, anomaly: int | None) -> dict[str, int]:
    """Return the baselines that raise an alarm, with the step.

    Args:
        sight: Of an untraced run.
        anomaly: Step at which autograd's anomaly mode ended the program; None when it did not.
    """
    ours = {f"debugger: {name}": rule(sight) for name, rule in DEBUGGER.items()}
    steps = [step for step in ours.values() if step is not None]
    found = {
        ANOMALY: anomaly,
        "loss is NaN": _not_a_number(sight),
        "loss spike": _spike(sight),
        DEBUGGER_ANY: min(steps, default=None),
        **ours,
        ALWAYS: 1,
        NEVER: None,
    }
    return {name: step for name, step in found.items() if step is not None}


def _first(steps: Iterator[int] | Sequence[int]) -> int | None:
    return next(iter(steps), None)
