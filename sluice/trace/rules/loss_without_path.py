"""Does the loss lead back to the parameters?"""

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.gradient_cut import never_reached
from sluice.trace.rules.steps import OwnStep, first, name_of, optimizers_in, own_steps, total

_LEAST = 2
_LEAST_LATE = 20
"""Steps to the end of the run, where the ones before them learned."""


def _is_rearmed(step: OwnStep) -> bool:
    """Every backward pass began at a tensor without a history, and brought nothing."""
    passes = step.before("backward", "grad")
    marks = step.word.marks
    leaf = passes and all("leaf" in marks[i].flags for i in passes)
    return bool(leaf) and "fresh" not in step.end.flags


def _is_lost(step: OwnStep) -> bool:
    """There was a forward and a backward pass, nothing was cleared after it, and no gradient."""
    cleared = max(step.before("zero"), default=-1)
    return (
        cleared < step.last_backward
        and "none" in step.end.flags
        and bool(step.before("forward"))
        and not step.before("grad")
    )


def _lost_since(steps: tuple[OwnStep, ...]) -> tuple[OwnStep, ...]:
    """Return the words that lost their loss, if no step learned since the first of them."""
    lost = tuple(filter(_is_lost, steps))
    if total(lost) < _LEAST_LATE:
        return ()
    learned = [s.word.last_step for s in steps if s not in lost]
    return lost if max(learned, default=0) < first(lost) else ()


def _reached_others(trace: Trace, since: int) -> bool:
    """Whether a gradient reached any parameter, from a step on in which no optimizer found one.

    Of those that an optimizer holds the gradient may be from before that step.
    """
    return any(
        parameter.has_had_gradient and (since == 1 or parameter.index not in taken.optimized)
        for taken in trace.memberships
        if taken.step >= since or taken is trace.membership
        for parameter in taken.parameters
    )


def _left_behind(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    """Tell of networks whose outputs a loss function was given, and that never get a gradient."""
    now, left = trace.membership, never_reached(trace)
    learning = {f.network: f for f in reversed(trace.losses) if f.is_learning}
    found = []
    for network in now.networks if now is not None else ():
        own = set(network.parameters) & left
        loss = learning.get(network.index)
        if now is None or loss is None or not own:
            continue
        if own != set(network.parameters) & now.optimized:
            continue
        found.append(
            rule.finding(
                severity="error",
                step=loss.step + 1,
                what=f"{network.name}: {loss.kind} is computed from its outputs with gradients, "
                f"and no backward pass reaches one of its {len(own)} parameters; others of the "
                "same optimizer get gradients.",
                cause="The loss that backward() is called on was made anew from the numbers "
                "(item(), torch.tensor, detach()): the network does not learn.",
                fix="Add losses up as tensors, with torch.stack or +, as the functions gave them.",
                num_parameters=len(own),
            )
        )
    return tuple(found)


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = [*_left_behind(rule, trace)]
    lost_all = all(
        all(_is_lost(s) for s in own_steps(trace, o)) and own_steps(trace, o)
        for o in optimizers_in(trace)
    )
    for optimizer in optimizers_in(trace):
        steps = own_steps(trace, optimizer)
        rearmed = tuple(filter(_is_rearmed, steps))
        shown = rearmed or (tuple(filter(_is_lost, steps)) if lost_all else ())
        if not shown and len(optimizers_in(trace)) == 1:
            shown = _lost_since(steps)
        if total(shown) < _LEAST or (not rearmed and _reached_others(trace, first(shown))):
            continue
        why = "at a tensor without a history" if rearmed else "and reached no parameter"
        found.append(
            rule.finding(
                severity="error",
                step=first(shown),
                what=f"{name_of(trace, optimizer)}: in {total(shown)} of {total(steps)} steps "
                f"backward() began {why}; the step found no new gradient.",
                cause="The loss was cut from the network (detach(), item(), a new tensor) and "
                "made to require a gradient again: nothing learns.",
                fix="Call backward() on the loss as the network gave it; remove "
                "requires_grad_() and detach() from it.",
                num_lost=total(shown),
                num_steps=total(steps),
            )
        )
    return tuple(found)


LOSS_WITHOUT_PATH = Rule(
    name="the loss leads back to the parameters",
    fault="loss without path",
    requirement="TRACE-16",
    requires="Two steps with a backward pass before them.",
    contradicted_by="A new gradient at the step.",
    abstains="Some optimizer found gradients, they were cleared between backward and step, or a "
    "parameter that no optimizer holds got one.",
    judge=_judge,
)
