"""Two rules that stop a weak trial: pure functions of the losses others had at the same epoch."""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

MEDIAN_NEEDS = 4
"""With fewer other trials, half of them being better is no evidence."""


class Rule(Protocol):
    """(loss of the trial, losses of the others at the same epoch) to the reason to stop, or ''."""

    def __call__(self, loss: float, others: Sequence[float]) -> str:
        """Return why the trial is stopped; empty when it goes on."""
        ...


def asha_rule(reduction: int) -> Rule:
    """Return ASHA's rule: go on among the best 1/reduction of those that came to the rung before.

    The first at a rung goes on. A loss that is not a number never does.

    Source: Li et al. (2020), "A System for Massively Parallel Hyperparameter Tuning", MLSys;
    the variant that stops rather than pauses, as in Ray Tune.
    """

    def rule(loss: float, others: Sequence[float]) -> str:
        if not math.isfinite(loss):
            return f"Its loss is {loss}."
        if not others:
            return ""
        cutoff = float(np.quantile(np.asarray(others), 1 / reduction))
        if loss <= cutoff:
            return ""
        return f"Loss {loss:.6g} is above {cutoff:.6g}, the best 1/{reduction} of {len(others)}."

    return rule


def median_rule() -> Rule:
    """Return the median rule: go on unless the loss is above the median of at least four others.

    Source: Golovin et al. (2017), "Google Vizier: A Service for Black-Box Optimization", KDD.
    """

    def rule(loss: float, others: Sequence[float]) -> str:
        if not math.isfinite(loss):
            return f"Its loss is {loss}."
        if len(others) < MEDIAN_NEEDS:
            return ""
        median = float(np.median(np.asarray(others)))
        if loss <= median:
            return ""
        return f"Loss {loss:.6g} is above {median:.6g}, the median of {len(others)}."

    return rule


def never(loss: float, others: Sequence[float]) -> str:  # noqa: ARG001 - one of the rules
    """Stop no trial whose loss is a number."""
    return "" if math.isfinite(loss) else f"Its loss is {loss}."


def rule_named(scheduler: str, *, reduction: int) -> Rule:
    """Return the rule of a scheduler that is not PBT."""
    rules: Mapping[str, Rule] = {
        "asha": asha_rule(reduction),
        "median": median_rule(),
        "none": never,
    }
    return rules[scheduler]
