"""Is everything that goes into a network finite?"""

import math

from sluice.trace.evidence.inputs import BadNumbersFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.losses import network_name, numbers

_SOON = 10
"""Steps within which a bad number shows in a loss or gradient."""


def _is_bad_soon(trace: Trace, step: int) -> bool:
    """Tell whether a loss or gradient is not finite from a step on, or nothing was seen there."""
    window = range(step, step + _SOON + 1)
    losses = [v for n in trace.numbers if n.step in window for v in n.losses]
    grads = [
        v for m in trace.measures if m.step in window for o in m.optimizers for v in o.grad_norms
    ]
    return not all(map(math.isfinite, (*losses, *grads)))


def _first_other(trace: Trace) -> float:
    """Return the first step of a bad gradient under a good loss, bad weights, or a bad loss.

    After it one network hands bad numbers to the next.
    """
    grads = [g.step for g in trace.gradients if math.isfinite(g.loss)]
    losses = [n.step for n in trace.numbers if not all(map(math.isfinite, n.losses))]
    weights = [s.step for s in trace.spoiled]
    return min([*grads, *weights, *losses], default=math.inf)


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    until = _first_other(trace)
    for what in ("input", "target"):
        facts = [f for f in trace.bad_numbers if f.what == what and f.step < until]
        learning = [f for f in facts if f.is_learning]
        if facts:
            first = (learning or facts)[0]
            comes_out = any(f.reaches_output for f in learning)
            harms = bool(learning) and (comes_out or _is_bad_soon(trace, first.step + 1))
            found.append(_of(rule, trace, first, len(facts), harms=harms))
    return tuple(found)


def _some(word: str, num: int, many: str = "s") -> str:
    return word if num == 1 else word + many


def _of(rule: Rule, trace: Trace, fact: BadNumbersFact, num: int, *, harms: bool) -> Finding:
    kinds = [
        f"{count} {name}"
        for count, name in ((fact.num_nan, "NaN"), (fact.num_infinite, "infinite"))
        if count
    ]
    where = f"{_some('row', fact.num_rows)} {numbers(fact.rows, fact.num_rows)} of {fact.shape[0]}"
    if len(fact.shape) > 1:
        columns = numbers(fact.columns, fact.num_columns)
        where = f"{_some('column', fact.num_columns)} {columns}, {where}"
    owner = network_name(trace, fact.network)
    told = f"{owner} was given" if fact.what == "input" else f"The targets of {owner} hold"
    return rule.finding(
        severity="error" if harms else "confirm" if not fact.is_learning else "warning",
        step=fact.step + 1,
        what=f"{told} {' and '.join(kinds)} {_some('number', fact.num_nan + fact.num_infinite)} in "
        f"the batch at step {fact.step + 1}: {where}; {num} such {_some('batch', num, 'es')} seen.",
        cause="One such number makes the loss, every gradient and then every weight NaN.",
        fix="Fill or leave out what is missing before the first epoch, and check each column.",
        num_nan=fact.num_nan,
        num_infinite=fact.num_infinite,
        num_rows=fact.num_rows,
    )


NON_FINITE_INPUT = Rule(
    name="everything that goes into a network is finite",
    fault="non-finite input",
    requirement="TRACE-2",
    requires="A batch with NaN or infinity, one of the first 64 or one whose loss is not finite.",
    contradicted_by="A network that masks such numbers itself: its outputs stay finite.",
    abstains="Outputs, losses and gradients stay finite (a warning).",
    judge=_judge,
)
