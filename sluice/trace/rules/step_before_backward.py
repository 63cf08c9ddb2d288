"""Does backward come before the step?"""

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.steps import OwnStep, first, name_of, optimizers_in, own_steps, total

_LEAST = 2
_MOST = 0.9
"""Share of all steps: a rare one may have a reason, as a batch that is given up."""


def _has_nothing_new(step: OwnStep) -> bool:
    """No gradient came since the last step."""
    return bool({"none", "stale"} & set(step.end.flags)) and step.last_backward < 0


def _splits_a_pass(step: OwnStep) -> bool:
    """The step stands between a forward pass and its backward pass."""
    forwards = [
        i for i in step.before("forward") if {"grad", "training"} <= set(step.word.marks[i].flags)
    ]
    # A hook of a gradient steps inside of the backward pass, whose mark comes when it is over.
    is_inside = "in backward" in step.end.flags
    return bool(forwards) and step.last_backward < forwards[-1] and not is_inside


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for optimizer in optimizers_in(trace):
        steps = tuple(s for s in own_steps(trace, optimizer) if s.end.kind == "step")
        empty = tuple(filter(_has_nothing_new, steps))
        split = tuple(s for s in steps if _splits_a_pass(s) and not s.before("grad"))
        early = empty if total(empty) >= total(split) else split
        if total(early) < max(_LEAST, _MOST * (total(steps) - 1)):
            continue
        new = "no gradient that is new" if early is empty else "the gradients of the batch before"
        found.append(
            rule.finding(
                severity="error",
                step=first(early),
                what=f"{name_of(trace, optimizer)}: {total(early)} of {total(steps)} steps were "
                f"made before backward(), on {new}.",
                cause="The step does not use the loss of its own batch.",
                fix="Order each batch as zero_grad(), forward, backward(), step().",
                num_early=total(early),
                num_steps=total(steps),
            )
        )
    return tuple(found)


STEP_BEFORE_BACKWARD = Rule(
    name="backward comes before the step",
    fault="step before backward",
    requirement="TRACE-11",
    requires="Two steps.",
    contradicted_by="A backward pass, or gradients set by hand, between two steps.",
    abstains="The optimizer has a closure, or fewer than nine steps of ten are early.",
    judge=_judge,
)
