"""Do weights move?"""

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.series import measures_of, moved, values_by_parameter
from sluice.trace.rules.steps import name_of, optimizers_in, own_steps

_LEAST = 8
"""Steps that were made."""


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    now = trace.membership
    if now is None:
        return ()
    values, changed = values_by_parameter(trace), moved(trace)
    found = []
    for optimizer in now.optimizers:
        if optimizer.index not in optimizers_in(trace):
            continue
        held = {p for group in optimizer.groups for p in group.parameters}
        made = [s for s in own_steps(trace, optimizer.index) if s.end.kind == "step"]
        num = sum(s.word.count for s in made)
        measured = measures_of(trace, optimizer.index)
        rates = [max(own.rates, default=0.0) for _, own in measured]
        looks = [len(values.get(p, ())) for p in held]
        if num < _LEAST or held & changed or not looks or min(looks) < 4:
            continue
        if sum(rate > 0 for rate in rates) < 3:  # another rule tells of a rate of zero
            continue
        found.append(
            rule.finding(
                severity="error",
                step=min(s.word.first_step for s in made),
                what=f"{name_of(trace, optimizer.index)}: none of its {len(held)} parameters "
                f"changed in {num} steps, at a learning rate of up to {max(rates):.3g}.",
                cause="The steps have no effect.",
                fix="See whether gradients reach the step, and whether updates are large enough "
                "for the type of the weights.",
                num_parameters=len(held),
                num_steps=num,
            )
        )
    return tuple(found)


WEIGHTS_STILL = Rule(
    name="weights move",
    fault="weights do not move",
    requirement="TRACE-9",
    requires="Eight steps, and four looks at each parameter of the optimizer.",
    contradicted_by="Any number of any parameter that changes.",
    abstains="The learning rate is zero at most measured steps.",
    judge=_judge,
)
