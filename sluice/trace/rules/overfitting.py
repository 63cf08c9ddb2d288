"""Does the validation loss stay within reach of the training loss?"""

import math
import statistics

from sluice.trace.evidence.losses import EvaluationFact, LossFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.losses import CLASSES, learning_losses, network_name
from sluice.trace.rules.series import losses_of

_MIN_MATCHES, _MATCHED, _EQUAL = 3, 0.9, 1e-3
"""Calls of the loss function whose value is that of the backward pass, their share, and up to what
relative difference."""
_RECENT = 0.75
"""From this share of the steps on training losses count."""
_MIN_EVALUATIONS = 4
_MIN_RATIO, _MIN_RATIO_AT_ONCE = 10.0, 100.0
"""Of the validation loss to the training loss; where it was not seen to rise. In one healthy run of
301 it was 48 times as large, of inputs that a batch normalization scaled by rare values."""
_MIN_RISE = 1.5
"""Of the last two validation losses to the lowest."""
_MIN_LEFT = 0.25
"""Share of the first validation loss: less has been learned, whatever the training loss is."""
_BINARY = ("binary_cross_entropy", "binary_cross_entropy_with_logits")


def _learned_from(trace: Trace, last: EvaluationFact) -> list[LossFact]:
    """Return the calls of the function and network of an evaluation whose losses are minimized.

    Nothing where the backward passes begin at other numbers: sums, parts or other losses.
    """
    calls = [
        fact
        for fact in learning_losses(trace, last.kind)
        if fact.network == last.network and math.isfinite(fact.value)
    ]
    minimized = dict(losses_of(trace))
    known = [fact for fact in calls if fact.step + 1 in minimized]
    same = [
        fact for fact in known if math.isclose(fact.value, minimized[fact.step + 1], rel_tol=_EQUAL)
    ]
    return same if len(same) >= max(_MIN_MATCHES, _MATCHED * len(known)) else []


def _constant_loss(kind: str, calls: list[LossFact]) -> float:
    """Return the largest loss of equal probabilities for all classes; infinity when unknown."""
    if kind in _BINARY:
        return math.log(2)
    shape = calls[-1].input_shape
    return math.log(shape[1]) if kind in CLASSES and len(shape) > 1 else math.inf


def _series(trace: Trace) -> list[list[EvaluationFact]]:
    # At one step the first counts: what follows is of other weights that were loaded.
    found: dict[tuple[int, int, str], dict[int, EvaluationFact]] = {}
    for fact in trace.evaluations:
        found.setdefault((fact.network, fact.loader, fact.kind), {}).setdefault(fact.step, fact)
    return [list(by_step.values()) for by_step in found.values()]


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    if any(load.what == "network" and load.step == trace.num_steps for load in trace.loads):
        return ()
    for evaluations in _series(trace):
        last = evaluations[-1]
        calls = _learned_from(trace, last)
        since = _RECENT * trace.num_steps
        losses = [v for step, v in losses_of(trace) if step >= since and math.isfinite(v)]
        if not calls or not losses or last.step < since:
            continue
        training = statistics.median(losses)
        if training < 0 or last.mean < _MIN_RATIO * training:
            continue
        best = min(evaluations, key=lambda fact: fact.mean)
        constant = _constant_loss(last.kind, calls)
        rose = (
            len(evaluations) >= _MIN_EVALUATIONS
            and min(fact.mean for fact in evaluations[-2:]) >= _MIN_RISE * best.mean > 0
            and last.mean >= _MIN_LEFT * evaluations[0].mean
        )
        above = last.mean > max(constant, _MIN_RATIO_AT_ONCE * training)
        if not rose and not above:
            continue
        lowest = f"; its lowest was {best.mean:.3g} after step {best.step}" if rose else ""
        guess = (
            f"; equal probabilities for all classes would have {constant:.3g}"
            if last.mean > constant
            else ""
        )
        return (
            rule.finding(
                severity="warning",
                step=(best if rose else last).step + rose,
                what=f"{network_name(trace, last.network)}: the validation loss ({last.kind}) is "
                f"{last.mean:.3g} after step {last.step}, the training loss "
                f"{training:.3g}{lowest}{guess}.",
                cause="The network memorizes the training rows, or the validation rows are "
                "prepared or drawn differently.",
                fix="Keep the weights of the lowest validation loss and stop there; more data, "
                "weight decay, dropout or a smaller network narrow the gap. Compare one row of "
                "both sets first.",
                validation_loss=last.mean,
                training_loss=training,
                lowest_validation_loss=best.mean,
            ),
        )
    return ()


OVERFITTING = Rule(
    name="the validation loss stays within reach of the training loss",
    fault="overfitting",
    requirement="TRACE-9",
    requires="A loss function that one optimizer minimizes as it is, and that is evaluated without "
    "gradients: in four passes, or in one with more than the loss of equal probabilities and a "
    "hundred times the training loss.",
    contradicted_by="A validation loss as low as any before, or a training loss of that size.",
    abstains="Losses are negative or scaled; the validation loss is below ten times the training "
    "loss or a quarter of the first; or weights are loaded after the last step.",
    judge=_judge,
)
