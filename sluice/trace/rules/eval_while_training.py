"""Do networks learn in training mode?"""

from sluice.trace.evidence.membership import NetworkFact
from sluice.trace.evidence.order import StepWord
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.modes import learning_networks, learns_from

_LEAST = 2


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for network in learning_networks(trace):
        training = evaluating = first_step = 0
        for word in trace.words:
            flags = {flag for mark in learns_from(word, network.index) for flag in mark.flags}
            if {"evaluating", "sensitive evaluating"} <= flags:
                evaluating += word.count
                first_step = first_step or word.first_step
            elif "training" in flags:
                training += word.count
        stayed = any(_stayed(word, network.index) for word in trace.words)
        inherited = not training and not any(
            _is_switched_off(word, network.index)
            for word in trace.words
            if word.first_step <= first_step
        )
        is_chosen = not (training and stayed) and _is_partly_frozen(trace, network)
        if evaluating < _LEAST or is_chosen:
            continue
        found.append(
            rule.finding(
                severity="error" if training or stayed or inherited else "confirm",
                step=first_step,
                what=f"{network.name} made {evaluating} of {evaluating + training} of its steps "
                f"in evaluation mode, the first at step {first_step}.",
                cause="Dropout is off and batch norm does not learn its statistics"
                + (": train() is not called after an evaluation." if training or stayed else "")
                + (": it was made in that mode, as a copy is." if inherited else "."),
                fix="Call model.train() at the start of each epoch and after each evaluation.",
                num_evaluating=evaluating,
                num_training=training,
            )
        )
    return tuple(found)


def _is_switched_off(word: StepWord, network: int) -> bool:
    return any(
        m.kind == "mode" and m.subject in (network, -1) and "eval" in m.flags for m in word.marks
    )


def _stayed(word: StepWord, network: int) -> bool:
    """Tell whether evaluation mode, switched on to judge, is still on when learning goes on."""
    learning = {id(mark) for mark in learns_from(word, network)}
    is_on = has_judged = False
    for mark in word.marks:
        if mark.kind == "mode" and mark.subject in (network, -1):
            # One that is restored to what it is leaves it as it was switched on to judge.
            has_judged = has_judged and is_on and "restored" in mark.flags
            is_on = "eval" in mark.flags
        elif mark.kind == "forward" and mark.subject == network:
            if id(mark) in learning:
                return has_judged and "training" not in mark.flags
            has_judged = has_judged or (is_on and "grad" not in mark.flags)
    return False


def _is_partly_frozen(trace: Trace, network: NetworkFact) -> bool:
    now = trace.membership
    resting = set() if now is None else {p.index for p in now.parameters if not p.is_trainable}
    return bool(resting & set(network.parameters))


EVAL_WHILE_TRAINING = Rule(
    name="networks learn in training mode",
    fault="training in evaluation mode",
    requirement="TRACE-16",
    requires="Two steps from a forward pass of a network that an optimizer has, with dropout or "
    "batch norm in it.",
    contradicted_by="A fine-tuning that is meant to leave dropout off and statistics as they are.",
    abstains="Only parts of the network are in evaluation mode, as frozen batch norm is; or parts "
    "of it are frozen, and it never was in training mode or was not left so by an evaluation.",
    judge=_judge,
)
