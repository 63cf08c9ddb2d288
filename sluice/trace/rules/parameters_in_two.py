"""Is every parameter moved by one optimizer?"""

from collections.abc import Iterator

from sluice.base.pluralize import counted
from sluice.trace.evidence.membership import Membership
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.membership import listing
from sluice.trace.rules.steps import first, name_of, optimizers_in, own_steps, total

_LEAST = 2


def _held(membership: Membership) -> dict[int, set[int]]:
    held: dict[int, set[int]] = {}
    for fact in membership.optimizers:
        for group in fact.groups:
            held.setdefault(fact.index, set()).update(group.parameters)
    return held


def _at_once(trace: Trace) -> Iterator[tuple[int, int]]:
    """Yield pairs of optimizers of which neither follows the other.

    A program may make a new one for every task: only those that take turns are compared.
    """
    spans = []
    for optimizer in optimizers_in(trace):
        steps = own_steps(trace, optimizer)
        if steps:
            spans.append((first(steps), max(s.word.last_step for s in steps), optimizer))
    running = list[tuple[int, int]]()
    for begun, last, optimizer in sorted(spans):
        running = [(end, other) for end, other in running if end >= begun]
        yield from ((min(other, optimizer), max(other, optimizer)) for _, other in running)
        running.append((last, optimizer))


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    now = trace.membership
    if now is None:
        return ()
    found, held = [], _held(now)
    for one, other in sorted(_at_once(trace)):
        shared = sorted(held.get(one, set()) & held.get(other, set()))
        if not shared:
            continue
        steps = own_steps(trace, one), own_steps(trace, other)
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
                what=f"{counted(len(shared), 'parameter')} "
                f"{'is' if len(shared) == 1 else 'are'} in "
                f"{name_of(trace, one)} and in "
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


PARAMETERS_IN_TWO = Rule(
    name="every parameter is moved by one optimizer",
    fault="parameters in two optimizers",
    requirement="TRACE-9",
    requires="The membership at a step, and steps of two optimizers.",
    contradicted_by="Losses that are meant to take turns on the same parameters.",
    abstains="One optimizer follows the other, as in two phases of a training.",
    judge=_judge,
)
