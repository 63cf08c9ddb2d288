"""Is a loss function given what it is made for?"""

import math

from sluice.trace.evidence.losses import BINARY_BY_HAND, CLASSES_BY_HAND, LossFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.losses import by_kind, learning_losses

_NEAR = 1e-3
_LEAST = 4
"""Calls whose numbers alone tell, when the function behind them is not known."""
_LOG_OFF = 0.1
_KINDS = (
    "cross_entropy",
    "nll_loss",
    "kl_div",
    "binary_cross_entropy_with_logits",
    "binary_cross_entropy",
    CLASSES_BY_HAND,
    BINARY_BY_HAND,
)


def _is_probability(fact: LossFact) -> bool:
    return (
        fact.smallest >= -_NEAR
        and abs(fact.row_sum_low - 1) < _NEAR
        and abs(fact.row_sum_high - 1) < _NEAR
    )


def _is_in_unit(fact: LossFact) -> bool:
    return fact.smallest >= 0 and fact.largest <= 1


def _wrong(fact: LossFact) -> tuple[str, str, bool] | None:
    """Return what a call was given, what it needs, and whether that is certain by one call."""
    by = fact.made_by
    is_sigmoid, is_softmax = by.startswith("Sigmoid"), by.startswith("Softmax")
    if fact.kind in (CLASSES_BY_HAND, BINARY_BY_HAND):
        name = "sigmoid" if is_sigmoid else "softmax"
        return f"outputs of a {name} in [0, 1]", "logits", True
    if fact.kind == "cross_entropy":
        if is_softmax or _is_probability(fact):
            return "probabilities that sum to 1", "logits", is_softmax
        if is_sigmoid:
            return "outputs of a sigmoid in [0, 1]", "logits", True
    if fact.kind == "binary_cross_entropy_with_logits":
        if is_sigmoid or is_softmax:
            name = "sigmoid" if is_sigmoid else "softmax"
            return f"outputs of a {name} in [0, 1]", "logits", True
        if by and fact.smallest != fact.largest and _is_in_unit(fact):
            return "numbers that all lie in [0, 1]", "logits", False
    if fact.kind == "nll_loss" and not by.startswith("LogSoftmax"):
        if is_softmax:
            return "probabilities", "log-probabilities", True
        is_off = fact.row_sum_high > 1 + _LOG_OFF or fact.row_sum_low < 1 - _LOG_OFF
        if fact.largest > _NEAR and is_off:
            return "numbers above 0 whose exponentials do not sum to 1", "log-probabilities", False
    if fact.kind == "kl_div" and (is_softmax or _is_probability(fact)):
        return "probabilities that sum to 1", "log-probabilities", is_softmax
    if fact.kind == "binary_cross_entropy" and (fact.smallest < 0 or fact.largest > 1):
        return "numbers outside [0, 1]", "probabilities", True
    return None


_FIX = {
    "cross_entropy": "Give F.cross_entropy the output of the last linear layer; drop the {made}.",
    "binary_cross_entropy_with_logits": "Drop the {made} before the loss; it has one of its own.",
    "nll_loss": "Give F.nll_loss the output of log_softmax, or use F.cross_entropy on logits.",
    "kl_div": "Give F.kl_div log_softmax of the output.",
    CLASSES_BY_HAND: "Compute it from the output of the last linear layer; drop the {made}.",
    BINARY_BY_HAND: "Compute it from the output of the last linear layer; drop the {made}.",
    "binary_cross_entropy": "Use F.binary_cross_entropy_with_logits, or a sigmoid before the loss.",
}


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for (kind, _), facts in by_kind(learning_losses(trace, *_KINDS)).items():
        wrong = [(f, told) for f in facts if (told := _wrong(f)) is not None]
        if not wrong:
            continue
        fact, (given, needed, is_certain) = wrong[0]
        if not is_certain and (len(wrong) < len(facts) or len(wrong) < _LEAST):
            continue
        by_values_alone = not is_certain and kind == "binary_cross_entropy_with_logits"
        made = "sigmoid" if "sigmoid" in given else "softmax"
        behind = f" (made by {fact.made_by})" if fact.made_by else ""
        sums = (
            f", row sums {fact.row_sum_low:.4g} to {fact.row_sum_high:.4g}"
            if kind == "cross_entropy"
            else ""
        )
        range_ = "" if math.isnan(fact.smallest) else f": {fact.smallest:.4g} to {fact.largest:.4g}"
        found.append(
            rule.finding(
                severity="confirm" if by_values_alone else "error",
                step=fact.step + 1,
                what=f"{kind} was given {given}{behind} in {len(wrong)} of {len(facts)} calls "
                f"looked at{range_}{sums}.",
                cause=f"It needs {needed}: its value has another range, and its gradients are too "
                "small or point elsewhere.",
                fix=_FIX[kind].format(made=made),
                smallest=fact.smallest,
                largest=fact.largest,
                num_wrong=len(wrong),
            )
        )
    return tuple(found)


LOSS_DOMAIN = Rule(
    name="a loss function is given what it is made for",
    fault="loss on wrong domain",
    requirement="TRACE-14",
    requires="A call of a loss function of torch.nn.functional that can be differentiated.",
    contradicted_by="Logits that are meant to be kept in [0, 1].",
    abstains="The numbers fit the function, or fit it in some calls and what made them is unknown.",
    judge=_judge,
)
