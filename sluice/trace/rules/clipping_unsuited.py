"""Does the bound of clipping suit the gradients?"""

from statistics import median

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.steps import name_of, optimizers_in

_LEAST = 30
_OFTEN = 0.98
_FAR = 100.0
_SCALING = frozenset({"SGD", "LBFGS", "ASGD", "Rprop"})
"""Kinds whose step grows with the gradient; others divide its size away."""


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    known = () if trace.membership is None else trace.membership.optimizers
    kinds = {o.index: o.kind for o in known}
    found = []
    for optimizer in optimizers_in(trace):
        clips = [
            (n.step, c.norm, c.max_norm)
            for n in trace.numbers
            for c in n.clips
            if c.optimizer == optimizer and c.max_norm > 0
        ]
        if len(clips) < _LEAST or kinds.get(optimizer) not in _SCALING:
            continue
        bitten = [step for step, norm, most in clips if norm > most]
        typical = median(norm / most for _, norm, most in clips)
        if not (len(bitten) >= _OFTEN * len(clips) and typical > _FAR):
            continue
        found.append(
            rule.finding(
                severity="warning",
                step=bitten[0],
                what=f"{name_of(trace, optimizer)}: {len(bitten)} of {len(clips)} steps that were "
                f"looked at were clipped; the norm is {typical:.3g} times the bound as a rule.",
                cause="Every step has the same length: the bound is a second learning rate, and "
                "the size of the gradient says nothing any more.",
                fix="Raise the bound to about the usual norm (0.5 to 1 for transformers, 5 to 10 "
                "for recurrent networks), or average the loss instead of summing it.",
                num_clipped=len(bitten),
                num_clips=len(clips),
                ratio=typical,
            )
        )
    return tuple(found)


CLIPPING_UNSUITED = Rule(
    name="the bound of clipping suits the gradients",
    fault="clipping unsuited",
    requirement="TRACE-12",
    requires="Thirty clippings by norm.",
    contradicted_by="A bound that is meant to fix the length of every step.",
    abstains="The optimizer divides by the size of gradients, as Adam does.",
    judge=_judge,
)
