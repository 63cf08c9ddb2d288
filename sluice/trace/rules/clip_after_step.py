"""Are gradients clipped before they are used?"""

from dataclasses import dataclass

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.steps import name_of, optimizers_in

_LEAST = 2


@dataclass(slots=True)
class _Clips:
    """Of one optimizer."""

    late: int = 0
    useful: int = 0
    first_step: int = 0


def _clips(trace: Trace) -> dict[int, _Clips]:
    """Count the clips before any backward pass of their step, and those after one."""
    found: dict[int, _Clips] = {}
    for word in trace.words:
        clips = word.find("clip")
        if not clips or word.find("stepped"):
            continue
        backward = min(word.find("backward") + word.find("grad"), default=len(word.marks))
        late = {word.marks[i].subject for i in clips if i < backward}
        for i in clips:
            own = found.setdefault(word.marks[i].subject, _Clips())
            own.useful += word.count * (i > backward)
        for optimizer in late if word.first_step > 1 else ():
            own = found[optimizer]
            own.late += word.count
            own.first_step = own.first_step or word.first_step - 1
    return found


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found, clips = [], _clips(trace)
    for optimizer in optimizers_in(trace):
        own = clips.get(optimizer, _Clips())
        late, useful, first_step = own.late, own.useful, own.first_step
        if late < _LEAST or useful:
            continue
        found.append(
            rule.finding(
                severity="error",
                step=first_step,
                what=f"{name_of(trace, optimizer)}: gradients were clipped {late} times, each "
                "time after the step that used them and before the next backward().",
                cause="The clipping has no effect: steps are made on whole gradients.",
                fix="Clip between backward() and step().",
                num_late=late,
            )
        )
    return tuple(found)


CLIP_AFTER_STEP = Rule(
    name="gradients are clipped before they are used",
    fault="clip after step",
    requirement="TRACE-12",
    requires="Two clippings with clip_grad_norm_ or clip_grad_value_.",
    contradicted_by="A clipping of the same parameters between backward() and step().",
    abstains="Some clippings are in their place.",
    judge=_judge,
)
