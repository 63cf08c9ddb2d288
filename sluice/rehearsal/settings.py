"""How a rollout's patience is shortened so that all of it fits into a minute."""

from sluice.rollout.settings import RolloutSettings
from sluice.serving.settings import ServingSettings

FEWEST_SECONDS = 10.0
"""Less would end before the steps could."""
MOST_SECONDS = 3600.0
RATE_PER_S = 40.0
"""Requests; two cores answer more than that from both arms."""
LOOK_S = 0.5
_LAG_S = 1.5
"""From a change of the weights to the first counts of the new step that a look can see."""


def shortened(own: RolloutSettings | None, *, seconds: float, patience_s: float) -> RolloutSettings:
    """Return settings with shorter steps; the guards stay as they are.

    A twin is never proven better on labels, so no step waits for that, and a canary stands in for
    ab. A REJECT still rolls back.

    Args:
        own: The pipeline's; None takes a canary's.
        seconds: What a healthy rollout should need at most [s].
        patience_s: Longest time at a step [s].
    """
    settings = RolloutSettings() if own is None else own
    if settings.strategy == "ab":
        settings = settings.model_copy(update={"strategy": "canary", "shares": None})
    step_s = max(0.3, 0.75 * seconds / len(settings.steps) - _LAG_S)
    smallest = min((step.share for step in settings.steps if not step.shadow), default=1.0)
    return settings.model_copy(
        update={
            "quality": "when_known",
            "min_step_s": step_s,
            "min_requests": max(3, int(0.4 * smallest * RATE_PER_S * step_s)),
            "max_step_s": patience_s,
            "quality_rows": min(settings.quality_rows, 50),
            "min_pairs": max(10, min(settings.min_pairs, int(2 * seconds))),
        }
    )


def quicker(own: ServingSettings) -> ServingSettings:
    """Return settings of a server that follows and reports several times a second."""
    return own.model_copy(
        update={
            "poll_s": 0.1,
            "report_s": 0.25,
            "samples_per_s": 20.0,
            "shadow_waiting": 512,
            "retry_s": 1.0,
            "notice_s": 0.2,
            "drain_s": 5.0,
            # A busy machine is not the challenger's fault, and hangs are not rehearsed.
            "deadline_s": 10.0,
            "challenger_deadline_s": 5.0,
            "shadow_deadline_s": 5.0,
        }
    )
