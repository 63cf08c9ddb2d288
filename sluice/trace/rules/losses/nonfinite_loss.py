"""Detects non-finite losses in training and in evaluations."""

import math

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.evaluation_series import evaluation_series
from sluice.trace.rules._helpers.loss_calls import network_name
from sluice.trace.rules._helpers.measurements import parameter_names, step_losses
from sluice.trace.rules._helpers.parameters import list_names


class NonfiniteLossSettings(Settings):
    """Thresholds of the rule ``NONFINITE_LOSS``."""

    min_nonfinite_losses: int = Field(
        2,
        ge=1,
        description="Severity 'error' requires at least this number of non-finite losses, "
        "including the last loss of the run. The same holds for evaluations with a "
        "non-finite loss.",
    )


def _judge(rule: Rule[NonfiniteLossSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    losses = step_losses(trace)
    nonfinite_indices = [i for i, (_, value) in enumerate(losses) if not math.isfinite(value)]
    if not nonfinite_indices:
        return _judge_evaluations(rule, trace)
    is_last_nonfinite = nonfinite_indices[-1] == len(losses) - 1
    is_persistent = (
        is_last_nonfinite and len(nonfinite_indices) >= rule.settings.min_nonfinite_losses
    )
    count_text = f"non-finite at {len(nonfinite_indices)} of {len(losses)} recorded steps"
    step, value = losses[nonfinite_indices[0]]
    corrupted_record = next((w for w in trace.corrupted_weights if w.step == step - 1), None)
    if corrupted_record is None:
        what = f"The loss is {value} at step {step}, and {count_text}."
        cause = (
            "An optimizer step with the gradients of this loss makes all weights non-finite."
            if is_last_nonfinite
            else "Later losses are finite, so the weights may be intact."
        )
        steps_text = f"steps {step - 1} and {step}" if step > 1 else "step 1"
        fix = (
            f"Check the batch, the learning rate and the outputs of {steps_text}; resume from an "
            "earlier checkpoint."
        )
    else:
        names = parameter_names(trace)
        names_text = list_names(
            [names.get(p, f"parameter {p}") for p in corrupted_record.parameters]
        )
        what = (
            f"{len(corrupted_record.parameters)} of {corrupted_record.num_parameters} parameters "
            f"became non-finite after step {step - 1}: {names_text}. Their optimizer state is "
            f"finite, so their gradients were finite. The loss is {count_text}."
        )
        cause = (
            "Either the program wrote to the weights between two steps, or the update itself is "
            "non-finite, as with eps=0 or a non-finite learning rate."
        )
        fix = (
            "Check the code that writes to these weights after a step (projection, clamp, weight "
            "averaging, checkpoint loading), and the learning rate and eps of the optimizer; "
            "resume from an earlier checkpoint."
        )
    return (
        rule.finding(
            severity="error" if is_persistent else "warning",
            step=step if corrupted_record is None else step - 1,
            what=what,
            cause=cause,
            fix=fix,
            num_nonfinite=len(nonfinite_indices),
            num_recorded=len(losses),
        ),
    )


def _judge_evaluations(rule: Rule[NonfiniteLossSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    """Report evaluations with a non-finite loss, if all recorded training losses are finite."""
    # Scaled losses are included, because only their finiteness matters.
    losses = [value for record in trace.scalars for value in record.losses]
    if not losses or not all(map(math.isfinite, losses)):
        return ()
    # Losses with the reduction 'none' are skipped: the program may exclude non-finite elements.
    unreduced_losses = {
        (r.network, r.kind) for r in trace.losses if not r.is_learning and r.reduction == "none"
    }
    findings = []
    for evaluations in evaluation_series(trace):
        nonfinite_evaluations = [e for e in evaluations if not math.isfinite(e.mean)]
        if (
            not nonfinite_evaluations
            or (nonfinite_evaluations[0].network, nonfinite_evaluations[0].kind) in unreduced_losses
        ):
            continue
        first_record = nonfinite_evaluations[0]
        is_last_nonfinite = nonfinite_evaluations[-1] is evaluations[-1]
        is_persistent = (
            is_last_nonfinite and len(nonfinite_evaluations) >= rule.settings.min_nonfinite_losses
        )
        findings.append(
            rule.finding(
                severity="error" if is_persistent else "warning",
                step=first_record.step,
                what=f"{network_name(trace, first_record.network)}: the validation loss "
                f"({first_record.kind}) is {first_record.mean} after step "
                f"{first_record.step}, and non-finite in {len(nonfinite_evaluations)} of "
                f"{len(evaluations)} evaluations. All recorded training losses are finite.",
                cause="The validation data or the evaluation code produces the non-finite value, "
                "for example by NaN in the inputs or targets, a batch without targets, or a "
                "division by 0.",
                fix="Find the first validation batch with a non-finite loss. Check its inputs and "
                "targets, and the outputs of the network in evaluation mode.",
                num_nonfinite=len(nonfinite_evaluations),
                num_recorded=len(evaluations),
            )
        )
    return tuple(findings)


NONFINITE_LOSS = Rule(
    name="the loss is finite",
    fault="non-finite loss",
    priority=280,
    requires="The losses of the backward passes. If they are finite, also the losses that are "
    "computed without gradients.",
    contradicted_by="A finite loss at the same step, or a program that excludes non-finite "
    "validation losses.",
    abstains="The training loss went through a gradient scaler, which may overflow; or the "
    "validation loss has the reduction 'none', so that the program may exclude elements.",
    settings=NonfiniteLossSettings(),
    judge=_judge,
)
