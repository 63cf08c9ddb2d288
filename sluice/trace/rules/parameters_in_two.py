"""Is every parameter moved by one optimizer?"""

from itertools import combinations

from sluice.trace.evidence.membership import Membership
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.membership import listing
from sluice.trace.rules.steps import OwnStep, first, name_of, optimizers_in, own_steps, total

_LEAST = 2


def _held(membership: Membership, optimizer: int) -> set[int]:
    return {
        parameter
        for fact in membership.optimizers
        if fact.index == optimizer
        for group in fact.groups
        for parameter in group.parameters
    }


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    now = trace.membership
    if now is None:
        return ()
    found = []
    for one, other in combinations(optimizers_in(trace), 2):
        shared = sorted(_held(now, one) & _held(now, other))
        steps = own_steps(trace, one), own_steps(trace, other)
        if not shared or not all(steps) or _is_one_after_other(*steps):
            continue
        # The second of two steps on one gradient has no backward pass of its own.
        again = tuple(
            s for own in steps for s in own if s.last_backward < 0 and "fresh" in s.end.flags
        )
        twice = total(again) >= _LEAST
        names = [now.name_of(parameter) for parameter in shared]
        found.append(
            rule.finding(
                severity="error" if twice else "confirm",
                step=first(again) if twice else max(first(own) for own in steps),
                what=f"{len(shared)} parameters are in {name_of(trace, one)} and in "
                f"{name_of(trace, other)}: {listing(names)}."
                + (f" {total(again)} times both stepped on one gradient." if twice else ""),
                cause="They are moved twice, by two sets of moments that know nothing of each "
                "other.",
                fix="Give each parameter to one optimizer.",
                num_shared=len(shared),
                num_twice=total(again),
            )
        )
    return tuple(found)


def _is_one_after_other(one: tuple[OwnStep, ...], other: tuple[OwnStep, ...]) -> bool:
    ends = [max(s.word.last_step for s in own) for own in (one, other)]
    return ends[0] < first(other) or ends[1] < first(one)


PARAMETERS_IN_TWO = Rule(
    name="every parameter is moved by one optimizer",
    fault="parameters in two optimizers",
    requirement="TRACE-9",
    requires="The membership at a step, and steps of two optimizers.",
    contradicted_by="Losses that are meant to take turns on the same parameters.",
    abstains="One optimizer follows the other, as in two phases of a training.",
    judge=_judge,
)
