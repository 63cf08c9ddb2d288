"""Detects networks that are evaluated in training mode."""

from sluice.base.pluralize import pluralize
from sluice.trace.finding import NoThresholds, Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.forward_passes import (
    forward_events,
    trained_networks,
    training_forwards,
)


def _judge(rule: Rule[NoThresholds], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for network in trained_networks(trace):
        training_loaders = {
            event.related_id
            for sequence in trace.sequences
            for event in training_forwards(sequence, network.index)
        }
        num_evaluations_in_train_mode = first_step = 0
        has_evaluation_in_eval_mode = False
        for sequence in trace.sequences:
            evaluation_passes = [
                event
                for _, event in forward_events(sequence, network.index)
                if "grad" not in event.flags and event.related_id not in training_loaders | {-1}
            ]
            has_evaluation_in_eval_mode |= any(
                "evaluating" in event.flags for event in evaluation_passes
            )
            # "sensitive training": dropout or batch norm is in training mode.
            if any(
                {"training", "sensitive training"} <= set(event.flags)
                for event in evaluation_passes
            ):
                num_evaluations_in_train_mode += sequence.count
                first_step = first_step or sequence.first_step
        if not num_evaluations_in_train_mode or has_evaluation_in_eval_mode:
            continue
        findings.append(
            rule.finding(
                severity="confirm",
                step=first_step,
                what=f"{network.name} was evaluated "
                f"{pluralize(num_evaluations_in_train_mode, 'time')} without gradients, on batches "
                "of a loader that is not used for its training. It was in training mode each time.",
                cause="Dropout makes the score noisy, and batch norm updates its statistics with "
                "evaluation data.",
                fix="Call model.eval() before an evaluation and model.train() after it.",
                num_evaluations_in_train_mode=num_evaluations_in_train_mode,
            )
        )
    return tuple(findings)


EVALUATING_IN_TRAIN_MODE = Rule(
    name="networks are evaluated in evaluation mode",
    fault="evaluation in training mode",
    priority=110,
    requires="A forward pass without gradients on a DataLoader that is not used for training.",
    contradicted_by="Dropout that is intentionally on, as for Monte Carlo dropout.",
    abstains="The network is also evaluated in evaluation mode, or has no dropout or batch norm.",
    settings=NoThresholds(),
    judge=_judge,
)
