"""Do outputs and targets of a loss have the same shape?"""

import math

from sluice.trace.evidence.losses import BY_HAND
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.losses import by_kind, learning_losses

_KINDS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "poisson_nll_loss", BY_HAND)


def _together(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return how many pairs are compared."""
    width = max(len(one), len(other))
    padded = [(1,) * (width - len(s)) + s for s in (one, other)]
    return math.prod(max(a, b) for a, b in zip(*padded, strict=True))


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for (kind, _), facts in by_kind(learning_losses(trace, *_KINDS)).items():
        wrong = [
            f
            for f in facts
            if _together(f.input_shape, f.target_shape)
            > max(math.prod(f.input_shape), math.prod(f.target_shape))
        ]
        if not wrong:
            continue
        fact = wrong[0]
        pairs = _together(fact.input_shape, fact.target_shape)
        found.append(
            rule.finding(
                severity="error",
                step=fact.step + 1,
                what=f"{kind} compared outputs of shape {fact.input_shape} with targets of shape "
                f"{fact.target_shape}: {pairs:,} pairs instead of {max(fact.input_shape):,}, in "
                f"{len(wrong)} of {len(facts)} calls looked at.",
                cause="Every output is drawn to every target, so all outputs end at their mean.",
                fix="Give both one shape: output.squeeze(-1), or target.unsqueeze(-1).",
                num_pairs=pairs,
                num_wrong=len(wrong),
            )
        )
    return tuple(found)


LOSS_BROADCASTS = Rule(
    name="outputs and targets of a loss have one shape",
    fault="loss broadcasts",
    requirement="TRACE-14",
    requires="A call of a regression loss of torch.nn.functional that can be differentiated, or a "
    "difference by hand of outputs and numbers that do not learn.",
    contradicted_by="A loss over all pairs that is meant.",
    abstains="One of the two is merely repeated, as one target for all outputs.",
    judge=_judge,
)
