"""Planned and measured shares, requests and the strongest guard reading of each rollout step."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sluice.rollout.state import GuardReading, Transition, TransitionOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedStep:
    """Shares, counts and outcome of one step at its end."""

    number: int
    """Number of the step, from 1."""

    share: float
    """Planned share of the users that the challenger answers."""

    served_share: float
    """Measured share of the requests that the challenger answered; NaN without requests. In a step
    with shadow requests, the planned share."""

    is_shadowed: bool
    """Whether the arm that answers no user got shadow requests."""

    challenger_requests: int
    """Number of the challenger's requests; shadow requests when its share is 0."""

    production_requests: int
    """Number of production's requests; shadow requests when the challenger's share is 1."""

    since: datetime
    until: datetime
    strongest_reading: GuardReading | None
    """Guard reading closest to its limit; None when no guard was read."""

    outcome: TransitionOutcome
    """Outcome with which the step ended."""


def served_steps(transitions: Sequence[Transition]) -> tuple[ServedStep, ...]:
    """Return the steps that ended with a check of their counts, in order.

    Args:
        transitions: All transitions of a rollout, oldest first.
    """
    # State at the first transition of each epoch, which is the last one in reversed order: a dict
    # keeps the last value of equal keys.
    rollout_by_epoch = {
        t.rollout.epoch: t.rollout for t in reversed(transitions) if not t.rollout.is_over
    }
    steps: dict[int, ServedStep] = {}
    for transition in transitions:
        counts = transition.window
        if counts is None or counts.epoch not in rollout_by_epoch:
            continue
        rollout = rollout_by_epoch[counts.epoch]
        step = rollout.current_step
        steps[counts.epoch] = ServedStep(
            number=rollout.step + 1,
            share=step.share,
            served_share=step.share if step.is_shadowed else counts.served_share,
            is_shadowed=step.is_shadowed,
            challenger_requests=counts.challenger.requests,
            production_requests=counts.production.requests,
            since=rollout.step_since,
            until=transition.at,
            strongest_reading=max(
                transition.guards, key=lambda g: g.evidence / g.limit, default=None
            ),
            outcome=transition.outcome,
        )
    return tuple(steps[epoch] for epoch in sorted(steps))
