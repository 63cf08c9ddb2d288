"""Are networks judged in evaluation mode?"""

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.modes import forwards, learning_networks, learns_from


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for network in learning_networks(trace):
        learned = {m.about for word in trace.words for m in learns_from(word, network.index)}
        wrong = right = first_step = 0
        for word in trace.words:
            held_out = [
                mark
                for _, mark in forwards(word, network.index)
                if "grad" not in mark.flags and mark.about not in learned | {-1}
            ]
            wrong_here = any({"training", "sensitive training"} <= set(m.flags) for m in held_out)
            right += word.count * any("evaluating" in m.flags for m in held_out)
            if wrong_here:
                wrong += word.count
                first_step = first_step or word.first_step
        if not wrong or right:
            continue
        found.append(
            rule.finding(
                severity="confirm",
                step=first_step,
                what=f"{network.name} was called without gradients on data it does not learn "
                f"from, in training mode, {wrong} times; never in evaluation mode.",
                cause="Dropout makes the score noisy, and batch norm learns from the data that "
                "should judge it.",
                fix="Call model.eval() before an evaluation and model.train() after it.",
                num_wrong=wrong,
            )
        )
    return tuple(found)


TRAIN_WHILE_EVALUATING = Rule(
    name="networks are judged in evaluation mode",
    fault="evaluating in training mode",
    requirement="TRACE-16",
    requires="A forward pass without gradients on a DataLoader that no step learns from.",
    contradicted_by="Dropout that is meant to be on, as for an ensemble by chance.",
    abstains="The network is also judged in evaluation mode, or has no dropout or batch norm.",
    judge=_judge,
)
