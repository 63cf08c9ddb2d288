"""Does a step use the gradients that backward brought?"""

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.series import moved, values_by_parameter
from sluice.trace.rules.steps import OwnStep, first, name_of, optimizers_in, own_steps, total

_LEAST = 2
"""Steps; one alone may be the answer to a batch that is given up."""


def _is_emptied(step: OwnStep) -> bool:
    emptied = {"none", "zero"} & set(step.end.flags)
    # Of zeros that no zero_grad() made it is known that backward had brought something else.
    zeros = max((at for at in step.before("zero") if at > step.last_backward), default=-1)
    if zeros < 0 and "zero" in step.end.flags:
        zeros = step.at
    forward = max(step.before("forward"), default=-1)
    # A forward pass after it makes it the beginning of the next batch.
    return bool(emptied) and 0 <= step.last_backward < zeros and forward < step.last_backward


def _closures(trace: Trace, optimizer: int) -> tuple[OwnStep, ...]:
    """Return the steps whose closure clears what its backward pass brought; weights stand still."""
    kept = {o.index: o for m in trace.memberships for o in m.optimizers}.get(optimizer)
    own = {p for g in kept.groups for p in g.parameters} if kept is not None else set[int]()
    looked = {p for p, values in values_by_parameter(trace).items() if len(values) > 1} & own
    if not looked or looked & moved(trace):
        return ()  # an optimizer may clear gradients itself, after its update
    found = []
    for word in trace.words:
        for at in word.find("stepped"):
            marks = word.marks[:at]
            backward = max((i for i, m in enumerate(marks) if m.kind == "backward"), default=-1)
            cleared = any(m.kind == "zero" for m in marks[backward + 1 :])
            if word.marks[at].subject == optimizer and backward >= 0 and cleared:
                found.append(OwnStep(word, word.marks[at], at))
    return tuple(found)


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for optimizer in optimizers_in(trace):
        steps = own_steps(trace, optimizer)
        emptied = tuple(filter(_is_emptied, steps))
        if not steps:
            steps = emptied = _closures(trace, optimizer)
        if total(emptied) < _LEAST:
            continue
        found.append(
            rule.finding(
                severity="error",
                step=first(emptied),
                what=f"{name_of(trace, optimizer)}: in {total(emptied)} of {total(steps)} steps "
                "gradients were cleared after backward() and before step(), which found none.",
                cause="The step throws the batch away: weights do not follow the loss.",
                fix="Clear gradients before backward() or after step(), by hand, too.",
                num_emptied=total(emptied),
                num_steps=total(steps),
            )
        )
    return tuple(found)


ZERO_GRAD_MISPLACED = Rule(
    name="a step uses the gradients that backward brought",
    fault="gradients cleared before the step",
    requirement="TRACE-13",
    requires="Two steps with a backward pass before them.",
    contradicted_by="A gradient that is there when the step begins.",
    abstains="The optimizer has a closure, and its weights move.",
    judge=_judge,
)
