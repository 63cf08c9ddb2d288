"""Detects bursts in the first moments of Adam-like optimizers."""

import itertools
from collections.abc import Sequence
from statistics import mean, median, pstdev

from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.optimizer_steps import optimizer_name, stepping_optimizers

_WINDOW_STEPS = 100
"""Measured steps before a burst that define the usual norm."""
_MIN_STEPS = 20
"""Measured steps required before a burst."""
_WARMUP_STEPS = 100
"""Steps after which the moments have settled."""
_MIN_GROWTH = 1.15
_NUM_CONSECUTIVE = 5
"""Number of consecutive measured steps, each larger than the one before by ``_MIN_GROWTH``."""
_MIN_SIGMAS = 3.0
_MIN_RATIO = 10.0
"""Distance from the window: in standard deviations above the mean, and as a ratio to the median."""


def _first_burst(norms: Sequence[tuple[int, float]]) -> int:
    """Return the first step at which a norm grew repeatedly, far above its window; else 0."""
    for end in range(_MIN_STEPS + _NUM_CONSECUTIVE, len(norms)):
        last = [norm for _, norm in norms[end - _NUM_CONSECUTIVE : end + 1]]
        if not all(b > _MIN_GROWTH * a for a, b in itertools.pairwise(last)):
            continue
        before = [
            norm
            for _, norm in norms[
                max(end - _NUM_CONSECUTIVE - _WINDOW_STEPS, 0) : end - _NUM_CONSECUTIVE
            ]
        ]
        far = mean(before) + _MIN_SIGMAS * pstdev(before)
        if last[-1] > far and last[-1] > _MIN_RATIO * median(before):
            return norms[end][0]
    return 0


def _judge(rule: Rule, trace: Trace) -> tuple[TraceFinding, ...]:
    found = []
    for optimizer in stepping_optimizers(trace):
        norms = [
            (m.step, o.moments["exp_avg"])
            for m in trace.statistics
            for o in m.optimizers
            if o.optimizer == optimizer and "exp_avg" in o.moments and o.state_step > _WARMUP_STEPS
        ]
        step = _first_burst(norms)
        if not step:
            continue
        usual = median(norm for at, norm in norms if at < step)
        now = next(norm for at, norm in norms if at == step)
        found.append(
            rule.finding(
                severity="warning",
                step=step,
                what=f"{optimizer_name(trace, optimizer)}: the norm of the first moment grew by "
                f"more than 15 % five times in a row, to {now:.3g}; its median before was "
                f"{usual:.3g}.",
                cause="Gradients grow faster than the optimizer can adapt: the next steps are "
                "too large.",
                fix="Lower the learning rate, clip gradients, or check the batches before this "
                "step.",
                norm=now,
                usual=usual,
            )
        )
    return tuple(found)


UNSTABLE_ADAM_MOMENTS = Rule(
    name="the moments of the optimizer are stable",
    fault="unstable Adam moments",
    priority=340,
    requires="Twenty-five measured steps of an optimizer with first moments, after its first 100.",
    contradicted_by="A loss that continues to decrease.",
    abstains="The norm stays within ten times its usual size.",
    judge=_judge,
)
