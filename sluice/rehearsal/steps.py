"""What each step of a rollout was served: planned and measured share, requests, strongest guard."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sluice.rollout.state import GuardReading, Outcome, Transition


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedStep:
    """One step, as it was when it ended."""

    number: int
    """Counts from 1."""

    share: float
    """Planned share of the users that the challenger answers [rate]."""

    served: float
    """Measured share of the requests that the challenger answered; NaN without requests [rate]."""

    is_copied: bool
    """Whether the arm that answers no user got copies of the requests."""

    challenger: int
    """Requests of the challenger; copies when its share is 0."""

    production: int
    """Requests of production; copies when the challenger's share is 1."""

    since: datetime
    until: datetime
    strongest: GuardReading | None
    """Reading closest to its limit; None when no guard was read."""

    outcome: Outcome
    """How the step ended."""


def served_steps(transitions: Sequence[Transition]) -> tuple[ServedStep, ...]:
    """Return the steps that ended with a look at their counts, in their order.

    Args:
        transitions: All of a rollout, oldest first.
    """
    at = {t.rollout.epoch: t.rollout for t in reversed(transitions) if not t.rollout.is_over}
    found: dict[int, ServedStep] = {}
    for transition in transitions:
        window = transition.window
        if window is None or window.epoch not in at:
            continue
        rollout = at[window.epoch]
        step = rollout.current_step
        found[window.epoch] = ServedStep(
            number=rollout.step + 1,
            share=step.share,
            served=step.share if step.shadow else window.served_share,
            is_copied=step.shadow,
            challenger=window.challenger.requests,
            production=window.production.requests,
            since=rollout.step_since,
            until=transition.at,
            strongest=max(transition.guards, key=lambda g: g.evidence / g.limit, default=None),
            outcome=transition.outcome,
        )
    return tuple(found[epoch] for epoch in sorted(found))
