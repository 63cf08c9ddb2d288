"""Are the moments of the optimizer steady?"""

import itertools
from collections.abc import Sequence
from statistics import mean, median, pstdev

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.steps import name_of, optimizers_in

_WINDOW = 100
"""Measured steps."""
_LEAST = 20
_WARM = 100
"""Steps after which moments have settled."""
_GROWTH = 1.15
_TIMES = 5
_SIGMAS = 3.0
_FAR = 10.0


def _first_burst(norms: Sequence[tuple[int, float]]) -> int:
    """Return the first step at which a norm grew five times running, far out of its window."""
    for end in range(_LEAST + _TIMES, len(norms)):
        last = [norm for _, norm in norms[end - _TIMES : end + 1]]
        if not all(b > _GROWTH * a for a, b in itertools.pairwise(last)):
            continue
        before = [norm for _, norm in norms[max(end - _TIMES - _WINDOW, 0) : end - _TIMES]]
        far = mean(before) + _SIGMAS * pstdev(before)
        if last[-1] > far and last[-1] > _FAR * median(before):
            return norms[end][0]
    return 0


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for optimizer in optimizers_in(trace):
        norms = [
            (m.step, o.moments["exp_avg"])
            for m in trace.measures
            for o in m.optimizers
            if o.optimizer == optimizer and "exp_avg" in o.moments and o.state_step > _WARM
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
                what=f"{name_of(trace, optimizer)}: the first moment grew by more than 15 % five "
                f"times running, to {now:.3g}; it was {usual:.3g} as a rule.",
                cause="Gradients grow faster than the optimizer can follow: the next steps are "
                "too large.",
                fix="Lower the learning rate, clip gradients, or look at the batches before it.",
                norm=now,
                usual=usual,
            )
        )
    return tuple(found)


MOMENTS_UNSTABLE = Rule(
    name="the moments of the optimizer are steady",
    fault="moments unstable",
    requirement="TRACE-13",
    requires="Twenty-five measured steps of an optimizer with first moments, after its first 100.",
    contradicted_by="A loss that falls on as before.",
    abstains="The norm stays within ten times its usual size.",
    judge=_judge,
)
