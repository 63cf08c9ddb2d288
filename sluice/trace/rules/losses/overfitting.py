"""Detects a validation loss far above the training loss."""

import math
import statistics

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.losses import EvaluationPassRecord, LossRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.evaluation_series import evaluation_series
from sluice.trace.rules._helpers.loss_calls import CLASS_LOSSES, network_name, training_loss_calls
from sluice.trace.rules._helpers.measurements import step_losses


class OverfittingSettings(Settings):
    """Thresholds of the rule ``OVERFITTING``.

    The rule compares the validation loss with the loss of the backward passes. The comparison is
    valid only if both come from the same loss function. Therefore, training calls of the validation
    loss function must match: their results must equal the loss of the backward pass in their step.
    """

    min_matches: int = Field(
        3,
        ge=1,
        description="A finding requires at least this number of matching calls. A training call of "
        "the validation loss function matches if its result equals the loss of the backward pass "
        "in the same step.",
    )
    min_match_share: float = Field(
        0.9,
        gt=0,
        le=1,
        description="A finding requires that at least this share of the training calls of the "
        "validation loss function match. Calls that do not match show that the program minimizes "
        "another loss.",
    )
    equal_tolerance: float = Field(
        1e-3,
        gt=0,
        description="The result of a call and the loss of a backward pass count as equal up to "
        "this relative difference.",
    )
    recent_start_share: float = Field(
        0.75,
        gt=0,
        le=1,
        description="Fraction of all steps at which the last part of the run begins. Only training "
        "losses of this part are compared. The last evaluation must be in this part, too.",
    )
    min_evaluations: int = Field(
        4,
        ge=2,
        description="A rise of the validation loss counts only with at least this number of "
        "evaluations.",
    )
    min_ratio_after_rise: float = Field(
        10.0,
        gt=1,
        description="If the validation loss has risen, a finding requires that the validation loss "
        "is at least this factor times the training loss.",
    )
    min_ratio_without_rise: float = Field(
        100.0,
        gt=1,
        description="If the validation loss has not risen, a finding requires that the validation "
        "loss exceeds both this factor times the training loss and the loss of equal probabilities "
        "for all classes. The highest ratio of the two losses in 301 healthy runs was 48.",
    )
    min_rise: float = Field(
        1.5,
        gt=1,
        description="The validation loss counts as risen if each of the last two values is at "
        "least this factor times the lowest value.",
    )
    min_remaining_share: float = Field(
        0.25,
        gt=0,
        le=1,
        description="A rise does not count if the last validation loss is below this share of the "
        "first validation loss, because the network is then still far better than at the start.",
    )


_BINARY_LOSSES = ("binary_cross_entropy", "binary_cross_entropy_with_logits")


def _calls_of_minimized_loss(
    settings: OverfittingSettings, trace: Trace, evaluation: EvaluationPassRecord
) -> list[LossRecord]:
    """Return the training calls whose result is the loss of the backward pass in the same step.

    Only calls with the loss function and the network of the evaluation count. [] if fewer than
    ``min_matches`` results are equal, or if too many differ from the loss of the backward pass: the
    program then minimizes a sum of losses, a part of this loss, or another loss.
    """
    calls = [
        record
        for record in training_loss_calls(trace, evaluation.kind)
        if record.network == evaluation.network and math.isfinite(record.value)
    ]
    backward_losses = dict(step_losses(trace))
    compared_calls = [record for record in calls if record.step + 1 in backward_losses]
    equal_calls = [
        record
        for record in compared_calls
        if math.isclose(
            record.value, backward_losses[record.step + 1], rel_tol=settings.equal_tolerance
        )
    ]
    min_matches = max(settings.min_matches, settings.min_match_share * len(compared_calls))
    return equal_calls if len(equal_calls) >= min_matches else []


def _uniform_loss(kind: str, calls: list[LossRecord]) -> float:
    """Return the loss of equal probabilities for all classes; infinity if it is unknown."""
    if kind in _BINARY_LOSSES:
        return math.log(2)
    shape = calls[-1].input_shape
    return math.log(shape[1]) if kind in CLASS_LOSSES and len(shape) > 1 else math.inf


def _judge(rule: Rule[OverfittingSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    # If weights were loaded after the last step, the last evaluation may be that of a checkpoint.
    if any(load.role == "network" and load.step == trace.num_steps for load in trace.loads):
        return ()
    for evaluations in evaluation_series(trace):
        last_evaluation = evaluations[-1]
        calls = _calls_of_minimized_loss(rule.settings, trace, last_evaluation)
        recent_start_step = rule.settings.recent_start_share * trace.num_steps
        recent_losses = [
            v for step, v in step_losses(trace) if step >= recent_start_step and math.isfinite(v)
        ]
        if not calls or not recent_losses or last_evaluation.step < recent_start_step:
            continue
        training_loss = statistics.median(recent_losses)
        if (
            training_loss < 0
            or last_evaluation.mean < rule.settings.min_ratio_after_rise * training_loss
        ):
            continue
        best_evaluation = min(evaluations, key=lambda record: record.mean)
        uniform_loss = _uniform_loss(last_evaluation.kind, calls)
        has_risen = (
            len(evaluations) >= rule.settings.min_evaluations
            and min(record.mean for record in evaluations[-2:])
            >= rule.settings.min_rise * best_evaluation.mean
            > 0
            and last_evaluation.mean >= rule.settings.min_remaining_share * evaluations[0].mean
        )
        is_far_above = last_evaluation.mean > max(
            uniform_loss, rule.settings.min_ratio_without_rise * training_loss
        )
        if not has_risen and not is_far_above:
            continue
        lowest_text = (
            f"; the lowest validation loss was {best_evaluation.mean:.3g} after step "
            f"{best_evaluation.step}"
            if has_risen
            else ""
        )
        uniform_text = (
            f"; equal probabilities for all classes would give {uniform_loss:.3g}"
            if last_evaluation.mean > uniform_loss
            else ""
        )
        return (
            rule.finding(
                severity="warning",
                step=best_evaluation.step + 1 if has_risen else last_evaluation.step,
                what=f"{network_name(trace, last_evaluation.network)}: the validation loss "
                f"({last_evaluation.kind}) is {last_evaluation.mean:.3g} after step "
                f"{last_evaluation.step}; the training loss is {training_loss:.3g}"
                f"{lowest_text}{uniform_text}.",
                cause="The network memorizes the training rows, or the validation rows are "
                "preprocessed or sampled differently.",
                fix="First compare a training row with a validation row. Then keep the weights "
                "with the lowest validation loss and stop there. More data, weight decay, dropout "
                "or a smaller network narrow the gap.",
                validation_loss=last_evaluation.mean,
                training_loss=training_loss,
                lowest_validation_loss=best_evaluation.mean,
            ),
        )
    return ()


OVERFITTING = Rule(
    name="the validation loss stays close to the training loss",
    fault="overfitting",
    priority=590,
    requires="A loss function whose result is the loss of the backward passes, and that is also "
    "called in at least four evaluations without gradients. One evaluation suffices if its loss "
    "exceeds both the loss of equal probabilities and a hundred times the training loss.",
    contradicted_by="A later validation loss that is as low as the lowest one, or a training loss "
    "that is close to the validation loss.",
    abstains="Losses are negative or scaled; the validation loss is below ten times the training "
    "loss; the validation loss rose, but is below a quarter of the first validation loss; or "
    "weights are loaded after the last step.",
    settings=OverfittingSettings(),
    judge=_judge,
)
