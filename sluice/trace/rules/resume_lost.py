"""Does training go on with the state that it had?"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from sluice.trace.evidence.membership import GroupFact, Membership, OptimizerFact
from sluice.trace.evidence.trace import SchedulerFact, Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.loaders import learned_from
from sluice.trace.rules.rates import rates_of, schedule_steps
from sluice.trace.rules.steps import OwnStep, own_steps, total

_LEAST_BEFORE = 5
"""Steps that built up a state."""
_FEW = 5
_SMOOTH = 1.1
"""Ratio of the rates of two steps, one after the other."""
_REPEATED, _JUMP = 8, 1.5
"""Rates that are those of the first steps again, and how far they move."""


@dataclass(frozen=True, slots=True)
class _Life:
    """One optimizer from its first step to its last."""

    fact: OptimizerFact
    at: Membership
    """The first that has it."""
    steps: tuple[OwnStep, ...]

    @property
    def first(self) -> int:
        return min(s.word.first_step for s in self.steps)

    @property
    def last(self) -> int:
        return max(s.word.last_step for s in self.steps)

    @property
    def parameters(self) -> frozenset[int]:
        """Those that it can move."""
        still = {p.index for p in self.at.parameters if not p.is_trainable}
        return frozenset(p for g in self.fact.groups for p in g.parameters if p not in still)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        known = {p.index: p.shape for p in self.at.parameters}
        return tuple(known[p] for g in self.fact.groups for p in g.parameters)

    @property
    def has_state(self) -> bool:
        groups = self.fact.groups
        return self.fact.kind != "SGD" or any(g.options.get("momentum") for g in groups)


def _lives(trace: Trace) -> tuple[_Life, ...]:
    found: dict[int, _Life] = {}
    for membership in trace.memberships:
        for fact in membership.optimizers:
            steps = own_steps(trace, fact.index)
            if fact.index not in found and steps:
                found[fact.index] = _Life(fact, membership, steps)
    return tuple(sorted(found.values(), key=lambda life: life.first))


def _settings(groups: Iterable[GroupFact]) -> list[dict[str, Any]]:
    """Return the settings of groups as they were made, before a schedule moved the rate."""
    told = []
    for group in groups:
        options = dict(group.options)
        begun = options.pop("initial_lr", None)
        told.append({**options, "lr": options.get("lr") if begun is None else begun})
    return told


def _are_alike(before: _Life, after: _Life, *, but_for_rate: bool) -> bool:
    told = [_settings(life.fact.groups) for life in (before, after)]
    if but_for_rate:
        told = [[{k: v for k, v in one.items() if k != "lr"} for one in some] for some in told]
    return told[0] == told[1]


def _strayed(trace: Trace, before: _Life, after: _Life) -> bool:
    """Tell whether a state was loaded between them, and not into the one that goes on."""
    loads = [x for x in trace.loads if x.what == "optimizer"]
    loads = [x for x in loads if before.last <= x.step < after.first]
    return bool(loads) and all(x.subject != after.fact.index for x in loads)


def _goes_on(trace: Trace, before: _Life, after: _Life) -> bool:
    """Tell whether the rate, set by hand at every step, goes on where it was."""
    old, new = rates_of(trace, before.fact.index), rates_of(trace, after.fact.index)
    if old is None or new is None or not (old.values[-1] > 0 and new.values[0] > 0):
        return False
    return 1 / _SMOOTH < new.values[0] / old.values[-1] < _SMOOTH


def _data(trace: Trace, life: _Life) -> frozenset[str]:
    """Return what the steps of an optimizer learned from, as equal for loaders made alike."""
    learned = learned_from(trace)
    used = {m.about for s in life.steps for m in s.word.marks if m.kind == "forward"} & learned
    return frozenset(
        repr(x.model_copy(update={"index": 0, "seed": 0})) for x in trace.loaders if x.index in used
    )


def _begins_anew(trace: Trace, before: _Life, after: _Life) -> bool:
    """Tell whether the loss is back where it began: another training, not the same one."""
    told = [(n.step, n.losses[-1]) for n in trace.numbers if n.losses]
    begun = [loss for step, loss in told if before.first <= step < before.first + _FEW]
    last = [loss for step, loss in told if before.last - 2 * _FEW < step <= before.last]
    now = [loss for step, loss in told if after.first <= step < after.first + _FEW][:1]
    if not (begun and last and now):
        return False
    fell = begun[0] - median(last)
    if fell <= max(last) - min(last):  # too little to tell
        return False
    return now[0] - median(last) > fell / 2


def _lost_schedule(trace: Trace, before: _Life, after: _Life) -> SchedulerFact | None:
    """Return the schedule that was begun again before it had ended."""
    loaded = {load.subject for load in trace.loads if load.what == "scheduler"}
    old = [s for s in trace.schedulers if s.optimizer == before.fact.index]
    for new in trace.schedulers:
        if new.optimizer != after.fact.index or new.index in loaded or new.start:
            continue
        if schedule_steps(trace, new.index, before=after.first + 1):  # wound forward
            continue
        for one in old:
            made = schedule_steps(trace, one.index, before=after.first + 1)
            same = (one.kind, one.options) == (new.kind, new.options)
            if same and made >= 2 and not (one.end and made >= one.end):
                return new
    return None


def _is_wound_back(trace: Trace, before: _Life, after: _Life) -> bool:
    """Tell whether rates that are set by hand run through those of the first steps again."""
    old, new = rates_of(trace, before.fact.index), rates_of(trace, after.fact.index)
    led = {fact.optimizer for fact in trace.schedulers}
    if old is None or new is None or led & {before.fact.index, after.fact.index}:
        return False
    # The rate that the optimizer was made with may stand at the first step.
    told = list(zip(new.steps, new.values, strict=True))[:_REPEATED]
    again = [old.at(before.first + step - after.first) for step, _ in told]
    values = [value for _, value in told]
    moves = len(told) == _REPEATED and 0 < _JUMP * min(values) < max(values)
    is_jump = old.values[-1] > 0 and not 1 / _JUMP < values[0] / old.values[-1] < _JUMP
    return moves and is_jump and all(map(math.isclose, values, again))


def _is_same_training(trace: Trace, before: _Life, after: _Life) -> bool:
    between = range(before.last, after.first)
    was_loaded = any(x.what == "network" and x.step in between for x in trace.loads)
    if before.parameters == after.parameters:
        is_same = was_loaded or _data(trace, before) == _data(trace, after)
    else:
        gone = not before.parameters & after.parameters
        is_same = was_loaded and gone and before.shapes == after.shapes
    return is_same and not _begins_anew(trace, before, after)


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    lives = _lives(trace)
    found = []
    for before, after in itertools.pairwise(lives):
        if before.fact.kind != after.fact.kind or after.first <= before.last:
            continue
        if total(before.steps) < _LEAST_BEFORE:
            continue
        loaded = any(x.what == "optimizer" and x.subject == after.fact.index for x in trace.loads)
        strayed = _strayed(trace, before, after)
        made_alike = _are_alike(
            before, after, but_for_rate=strayed and _goes_on(trace, before, after)
        )
        schedule = _lost_schedule(trace, before, after) if loaded or made_alike else None
        state = made_alike and not loaded and before.has_state
        wound_back = loaded and _is_wound_back(trace, before, after)
        if not (state or schedule or wound_back) or not _is_same_training(trace, before, after):
            continue
        old, new = rates_of(trace, before.fact.index), rates_of(trace, after.fact.index)
        jump = (
            f"; the rate went from {old.values[-1]:.3g} to {new.values[0]:.3g}"
            if old and new
            else ""
        )
        lost = [
            *[f"the moments and the count of steps of {after.fact.kind}"] * state,
            *([f"the place in {schedule.kind}"] if schedule else []),
            *["the place in the schedule that is set by hand"] * wound_back,
        ]
        # Whoever makes a new one in every round means it, unless what was saved went astray.
        is_habit = len([x for x in lives if x.fact.kind == after.fact.kind]) > 2 and not strayed
        found.append(
            rule.finding(
                severity="confirm" if is_habit else "error",
                step=after.first,
                what=f"After {total(before.steps)} steps of {before.fact.kind} a new one went on "
                f"with the same weights and settings; lost are {' and '.join(lost)}{jump}.",
                cause="Training goes on as if it had just begun: the first steps are too large or "
                "the schedule runs a second time.",
                fix="Save and load the state_dict() of the optimizer and of the scheduler with "
                "that of the network.",
                num_before=total(before.steps),
                num_after=total(after.steps),
            )
        )
    return tuple(found[:1])


RESUME_LOST = Rule(
    name="training goes on with the state that it had",
    fault="resume lost state",
    requirement="TRACE-13",
    requires="Two optimizers of one class, one after the other, over the same weights, or over "
    "weights that were loaded in between.",
    contradicted_by="A second phase that is meant to begin anew.",
    abstains="The new one has other settings, parameters or data, its state was loaded, or the "
    "loss is back where it began.",
    judge=_judge,
)
