"""Shortens a rollout's timing so that it fits into a rehearsal of a minute."""

import math

from sluice.rollout.settings import RolloutSettings
from sluice.serving.settings import ServingSettings

MIN_SECONDS = 20.0
"""Minimum planned duration of a rollout [s]. In a shorter rollout no step would get enough
requests."""
MAX_SECONDS = 3600.0
"""Maximum planned duration of a rollout [s]."""
RATE_PER_S = 40.0
"""Rate of the requests [1/s]. Two cores can answer a higher rate from both arms."""
RECONCILE_INTERVAL_S = 0.5
"""Interval between two reconciliations of the rollout [s]."""
FAULTY_SHARE = 0.2
"""Share of the challenger's responses that the faults ``errors`` and ``nan`` affect."""
_SYNC_LAG_S = 1.5
"""Time from a change of the traffic split until a check can read counts of the new step [s]."""


def shorten_steps(
    pipeline_settings: RolloutSettings | None, *, seconds: float, step_timeout_s: float
) -> RolloutSettings:
    """Return settings with shorter steps; the guards stay the same.

    A step lasts at least until the challenger has the number of requests that
    ``count_requests_to_breach`` returns. With fewer requests, no guard could trigger, and passing
    the step would prove nothing.

    The challenger is a clone, so labels cannot prove that it is better. Therefore no step waits for
    labels, and the strategy ``ab`` becomes ``canary``. A REJECT still rolls back.

    Args:
        pipeline_settings: Settings of the pipeline; None takes the default settings.
        seconds: Planned duration of a rollout without a fault [s].
        step_timeout_s: Longest time of a step [s].
    """
    settings = RolloutSettings() if pipeline_settings is None else pipeline_settings
    if settings.strategy == "ab":
        settings = settings.model_copy(update={"strategy": "canary", "shares": None})
    # Three quarters of the time are divided among the steps.
    step_s = max(0.3, 0.75 * seconds / len(settings.steps) - _SYNC_LAG_S)
    shares = [step.share for step in settings.steps if not step.is_shadowed]
    # A step with shadow requests sends every request to both arms. The challenger then gets all
    # requests of the users (1.0), which are half of the requests of both arms (0.5).
    smallest_share = min(shares, default=1.0)
    min_requests = count_requests_to_breach(settings, min(shares, default=0.5))
    return settings.model_copy(
        update={
            "quality": "when_known",
            "min_step_s": step_s,
            # 40 % of the requests that the challenger gets in ``step_s`` at the planned rate.
            "min_requests": max(min_requests, int(0.4 * smallest_share * RATE_PER_S * step_s)),
            "max_step_s": step_timeout_s,
            "quality_rows": min(settings.quality_rows, 50),
            "min_pairs": max(10, min(settings.min_pairs, int(2 * seconds))),
        }
    )


def count_requests_to_breach(settings: RolloutSettings, share: float) -> int:
    """Return the number of requests to a faulty challenger after which its errors cause a rollback.

    Args:
        settings: Alpha and ratios of the guards.
        share: Share of all requests that the challenger gets, from 0 to 1; 0.5 for shadow requests,
            which both arms answer.

    >>> count_requests_to_breach(RolloutSettings(), 0.05)
    30
    """
    limit = 1 / (settings.errors_alpha_share * settings.alpha)
    initial_evidence = settings.initial_alpha_share / len(settings.odds_ratios)
    ratio = settings.odds_ratios[-1]
    # Factor by which each error of the challenger increases the evidence.
    likelihood_ratio = ratio / (1 + share * (ratio - 1))
    num_errors = math.ceil(math.log(limit / initial_evidence) / math.log(likelihood_ratio))
    return math.ceil(num_errors / FAULTY_SHARE)


def shorten_intervals(pipeline_settings: ServingSettings) -> ServingSettings:
    """Return settings of a server that reads the split and reports several times a second."""
    return pipeline_settings.model_copy(
        update={
            "poll_interval_s": 0.1,
            "report_interval_s": 0.25,
            "samples_per_s": 20.0,
            "max_shadow_queue": 512,
            "load_retry_s": 1.0,
            "drain_delay_s": 0.2,
            "drain_timeout_s": 5.0,
            # Generous deadlines: a busy machine is not the fault of the challenger, and hangs are
            # not rehearsed.
            "deadline_s": 10.0,
            "challenger_deadline_s": 5.0,
            "shadow_deadline_s": 5.0,
        }
    )
