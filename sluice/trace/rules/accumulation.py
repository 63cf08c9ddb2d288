"""Is the loss divided when the gradients of several batches are added up?"""

from collections import Counter

from sluice.trace.evidence.order import Mark
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.steps import OwnStep, first, name_of, optimizers_in, own_steps, total

_MANY = 3
"""Backward passes before a step."""
_SHARED = 0.25
"""Of the rows of a batch: as many may be drawn again for another one."""


def _groups(step: OwnStep) -> list[list[Mark]]:
    """Return the marks up to each backward pass of a step, since the gradients were cleared.

    A block that stood there several times is returned twice.
    """
    marks: list[Mark] = []
    for mark in step.word.marks[: step.at]:
        marks.append(mark)
        if mark.block:
            marks += marks[-mark.block :]
    groups: list[list[Mark]] = [[]]
    for mark in marks:
        groups[-1].append(mark)
        if mark.kind == "backward":
            groups.append([])
        elif mark.kind in ("zero", "step", "skip") and mark.subject in (-1, step.end.subject):
            groups = [[]]
    return groups[:-1]


def _is_undivided(step: OwnStep) -> bool:
    return "edited" not in step.end.flags and all(
        "raw mean" in group[-1].flags for group in _groups(step)
    )


def _is_summed(step: OwnStep, *, may_lack_loader: bool) -> bool:
    """Several backward passes on raw means, each of one network on a batch of its own."""
    groups = _groups(step)
    if len(groups) < 2 or not _is_undivided(step):
        return False
    alike = set()
    for group in groups:
        batches = {m.subject for m in group if m.kind == "batch"}
        called = [m.subject for m in group if m.kind == "forward"]
        learning = [m for m in group if m.kind == "forward" and "grad" in m.flags]
        # Of two calls and one loss, the loss compares them.
        if len(batches) > 1 or len(learning) != 1:
            return False
        alike.add((frozenset(batches), tuple(called)))
    if len(alike) > 1:
        return False
    ((loaders, _),) = alike
    networks = {m.subject for m in step.word.marks if m.kind == "forward"}
    return bool(loaders) or (may_lack_loader and len(networks) == 1)


def _rows_differ(trace: Trace) -> bool:
    """Tell whether the batches before a step were of other rows, not the same for several tasks."""
    by_step: dict[tuple[int, int], list[set[int]]] = {}
    for fact in trace.rows:
        if fact.is_learning:
            by_step.setdefault((fact.step, fact.network), []).append(set(fact.rows))
    several = [rows for rows in by_step.values() if len(rows) > 1]
    return bool(several) and all(
        len(one & other) <= _SHARED * len(one)
        for rows in several
        for i, one in enumerate(rows)
        for other in rows[:i]
    )


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    learning = [f for f in trace.losses if f.is_learning]
    kinds = {f.kind for f in learning}
    # Real and made rows, say, have one target each.
    has_targets = any(f.target_smallest < f.target_largest for f in learning)
    by_hand = not learning
    may_lack_loader = (has_targets or by_hand) and _rows_differ(trace)
    for optimizer in optimizers_in(trace):
        steps = own_steps(trace, optimizer)
        summed = tuple(s for s in steps if _is_summed(s, may_lack_loader=may_lack_loader))
        several = tuple(s for s in steps if len(_groups(s)) > 1)
        # A step after an evaluation has other marks, and is of the same kind all the same.
        if len(kinds) > 1 or not all(map(_is_undivided, several)):
            continue
        counts = Counter(len(n.losses) for n in trace.numbers if len(n.losses) > 1)
        most = counts.most_common(1)[0][0] if counts else 2
        # Of two losses by hand one may be of real rows and one of made ones.
        if not summed or total(summed) < total(several) / 2 or (by_hand and most < _MANY):
            continue
        found.append(
            rule.finding(
                severity="error",
                step=first(summed),
                what=f"{name_of(trace, optimizer)}: {total(summed)} of {total(steps)} steps were "
                f"made on the sum of the gradients of {most} batches, each of an undivided "
                "mean loss.",
                cause=f"The gradient is {most} times that of the mean over all their rows: the "
                "rate, the clipping and the weight decay mean something else.",
                fix=f"Divide the loss by the number of batches: (loss / {most}).backward().",
                num_batches=most,
                num_steps=total(summed),
            )
        )
    return tuple(found)


ACCUMULATION = Rule(
    name="the loss is divided when gradients of several batches are added up",
    fault="accumulation not normalised",
    requirement="TRACE-9",
    requires="Steps after several backward passes of one network, each on a batch of its own.",
    contradicted_by="A learning rate that was divided by the number of batches on purpose.",
    abstains="The loss is divided, weighted or a sum, the gradients are changed before the step, "
    "the passes are of several tasks or networks, or take turns with other steps.",
    judge=_judge,
)
