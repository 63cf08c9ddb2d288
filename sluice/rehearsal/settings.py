"""How a rollout's patience is shortened so that all of it fits into a minute."""

import math

from sluice.rollout.settings import RolloutSettings
from sluice.serving.settings import ServingSettings

FEWEST_SECONDS = 20.0
"""Less would end before the first step could have seen enough requests."""
MOST_SECONDS = 3600.0
RATE_PER_S = 40.0
"""Requests; two cores answer more than that from both arms."""
LOOK_S = 0.5
FAULTY_SHARE = 0.2
"""Share of the challenger's answers that the faults of a rehearsal spoil."""
_LAG_S = 1.5
"""From a change of the weights to the first counts of the new step that a look can see."""


def shortened(own: RolloutSettings | None, *, seconds: float, patience_s: float) -> RolloutSettings:
    """Return settings with shorter steps; the guards stay as they are.

    A step takes as long as its share of the traffic needs for ``requests_to_breach``: below that,
    no guard could object, and a step that ended would prove nothing.

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
    shares = [step.share for step in settings.steps if not step.shadow]
    smallest = min(shares, default=1.0)
    needed = requests_to_breach(settings, min(shares, default=0.5))
    return settings.model_copy(
        update={
            "quality": "when_known",
            "min_step_s": step_s,
            "min_requests": max(needed, int(0.4 * smallest * RATE_PER_S * step_s)),
            "max_step_s": patience_s,
            "quality_rows": min(settings.quality_rows, 50),
            "min_pairs": max(10, min(settings.min_pairs, int(2 * seconds))),
        }
    )


def requests_to_breach(settings: RolloutSettings, share: float) -> int:
    """Return with how many requests of a faulty challenger the guard of errors rolls back.

    Args:
        settings: Alpha and ratios of the guards.
        share: Of the requests, those that go to the challenger; 0.5 for copies [rate].

    >>> requests_to_breach(RolloutSettings(), 0.05)
    30
    """
    limit = 1 / (settings.errors_part * settings.alpha)
    start = settings.start_part / len(settings.ratios)
    ratio = settings.ratios[-1]
    gain = ratio / (1 + share * (ratio - 1))
    errors = math.ceil(math.log(limit / start) / math.log(gain))
    return math.ceil(errors / FAULTY_SHARE)


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
