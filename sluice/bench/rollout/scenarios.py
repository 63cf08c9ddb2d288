"""The scenarios of ``sluice bench rollout``: harm of known size, and no harm."""

from sluice.bench.rollout.simulation import RolloutScenario
from sluice.bench.rollout.traffic import Traffic
from sluice.rollout.settings import RolloutSettings

_HOUR_S = 3600.0
_CONSTANT_CANARY = RolloutSettings(min_step_s=2 * _HOUR_S, max_step_s=3 * _HOUR_S)
"""A canary whose first step, 5 % of the traffic, is longer than the simulation."""
_HOUR_LONG_CANARY = RolloutSettings(min_step_s=_HOUR_S / 4, max_step_s=_HOUR_S)
"""A canary with four steps in an hour."""

_NO_HARM_S = float("inf")
"""Value of ``harm_at_s`` without harm."""


def scenarios() -> tuple[RolloutScenario, ...]:
    """Return all scenarios with their targets."""
    return (*_harmful_scenarios(), *_healthy_scenarios())


def _harmful_scenarios() -> tuple[RolloutScenario, ...]:
    error_jumps = [
        RolloutScenario(
            name=f"errors 1 % to {factor} %, {start_text}",
            traffic=Traffic(error_factor=factor, harm_at_s=at_s),
            settings=_CONSTANT_CANARY,
            seconds=at_s + 600,
            max_median_s=median_s,
            max_p90_s=p90_s,
        )
        for factor, median_s, p90_s in ((5, 60.0, 120.0), (20, 15.0, None))
        for start_text, at_s in (("from the start", 0.0), ("after 5 min", 300.0))
    ]
    slow_responses = RolloutScenario(
        name="slow responses x 3, varying load",
        traffic=Traffic(slow_response_factor=3, shared_effect_sd=0.5),
        settings=_CONSTANT_CANARY,
        seconds=600,
    )
    return (*error_jumps, slow_responses)


def _healthy_scenarios() -> tuple[RolloutScenario, ...]:
    return tuple(
        RolloutScenario(
            name=f"A/A for an hour, {kind}",
            traffic=Traffic(shared_effect_sd=shared_effect_sd, harm_at_s=_NO_HARM_S),
            settings=settings,
            seconds=_HOUR_S,
            max_rollback_rate=0.01,
        )
        for kind, shared_effect_sd, settings in (
            ("at 5 %", 0.0, _CONSTANT_CANARY),
            ("four steps", 0.0, _HOUR_LONG_CANARY),
            ("four steps, varying load", 0.5, _HOUR_LONG_CANARY),
        )
    )
