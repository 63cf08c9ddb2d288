"""Are gradients clipped before they are used?"""

from sluice.trace.evidence.order import StepWord
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.steps import name_of, optimizers_in

_LEAST = 2


def _clips(word: StepWord, optimizer: int) -> tuple[int, int]:
    """Return how many clips of an optimizer a word has before any backward pass, and after one."""
    backward = min(word.find("backward") + word.find("grad"), default=len(word.marks))
    own = [i for i in word.find("clip") if word.marks[i].subject == optimizer]
    return sum(i < backward for i in own), sum(i > backward for i in own)


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for optimizer in optimizers_in(trace):
        late = useful = 0
        first_step = 0
        for word in trace.words:
            if word.find("stepped"):
                continue
            before, after = _clips(word, optimizer)
            useful += after * word.count
            if before and word.first_step > 1:
                late += word.count
                first_step = first_step or word.first_step - 1
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
