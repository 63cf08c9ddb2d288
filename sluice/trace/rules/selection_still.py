"""Does the best checkpoint follow the validation loss?"""

import re
from collections.abc import Sequence
from pathlib import PurePath

from sluice.trace.evidence.losses import EvaluationFact
from sluice.trace.evidence.surroundings import SaveFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule

_LEAST = 4
_LEAST_OWN = 2
_BETTER = 3
"""Evaluations, each better than all before it, that went by unsaved."""
_MANY, _HARDLY = 5, 0.7
"""Such evaluations, and share of the first loss that is left, where the second was saved, too."""
_FALL = 0.8
_DRAWN = re.compile(r"tmp[a-z0-9_]{8}$")
"""The end of a path, as ``tempfile`` draws it."""
_NEAR = 0.99


def _series(trace: Trace) -> list[tuple[EvaluationFact, ...]]:
    # What follows at the same step is of other weights that were loaded.
    found: dict[tuple[int, int, str], dict[int, EvaluationFact]] = {}
    for e in trace.evaluations:
        found.setdefault((e.network, e.loader, e.kind), {}).setdefault(e.step, e)
    return [tuple(told.values()) for told in found.values() if len(told) >= _LEAST]


def _falls(evaluations: Sequence[EvaluationFact]) -> bool:
    losses = [e.mean for e in evaluations]
    better = _records(losses[1:], losses[0])
    return better >= _BETTER and 0 < min(losses) < _FALL * losses[0]


def _records(losses: Sequence[float], best: float) -> int:
    """Return how often a loss was clearly the smallest so far."""
    num = 0
    for loss in losses:
        if loss < _NEAR * best:
            best, num = loss, num + 1
    return num


def _places(trace: Trace, since: int) -> list[tuple[SaveFact, ...]]:
    """Return what was saved since a step, by its place; names that differ in numbers are one.

    So are those that were drawn for a file that is renamed when it is whole. A copy that another
    network begins with at once is none that is kept.
    """
    handed = {(x.step, x.content) for x in trace.loads if x.what == "network" and x.content}
    found: dict[tuple[str, str], list[SaveFact]] = {}
    for save in trace.saves:
        if save.step >= since and (save.step, save.content) not in handed:
            place = re.sub(r"\d+", "#", _DRAWN.sub("tmp#", save.path))
            found.setdefault((save.to, place), []).append(save)
    return [tuple(saves) for saves in found.values()]


def _is_wrong_side(evaluations: Sequence[EvaluationFact], saved: set[int]) -> bool:
    """Tell whether a state was saved at the first evaluation, later at none of the better ones.

    Accuracy may stand still while the loss falls: at some of the better ones it does not. It may
    also be lower once, early, where the loss is a little better: long before it stands still.
    """
    at = [i for i, e in enumerate(evaluations) if e.step in saved]
    # The next evaluation has not come yet, and no step was made since this one.
    if len(at) != len(saved) or at[:1] != [0] or at[-1] >= len(evaluations) / 2:
        return False
    losses = [e.mean for e in evaluations]
    worse = all(losses[i] >= min(losses[:i]) for i in at[1:])
    early = at == [0, 1] and losses[1] > _HARDLY * losses[0]
    later = _records(losses[at[-1] + 1 :], min(losses[: at[-1] + 1]))
    return later >= (_BETTER if worse else _MANY) and (worse or early)


def _restored(trace: Trace, evaluations: Sequence[EvaluationFact]) -> str:
    """Return where the state of the first evaluation was put, when it is back after the last step.

    Or one of before, if what is evaluated with it is no better than the first evaluation was: it
    is no part of another training. A file that was copied is told by what is in it.
    """
    after = [x for x in trace.loads if x.what == "network" and x.step == trace.num_steps]
    wanted = {load.content for load in after} - {0}
    # The first that is like it: the same weights may be saved again.
    first: dict[int, SaveFact] = {}
    for save in trace.saves:
        first.setdefault(save.content, save)
    found = [first[content] for content in wanted if content in first]
    losses = [e.mean for e in evaluations]
    alike = (evaluations[0].network, evaluations[0].kind)
    last = [e for e in trace.evaluations if (e.network, e.kind) == alike][-1]
    is_used = last.step == trace.num_steps and last.mean >= losses[0]
    begin = evaluations[0].step
    place = next((s for s in found if s.step == begin or (s.step < begin and is_used)), None)
    if place is None or _records(losses[1:], losses[0]) < _BETTER:
        return ""
    when = "at" if place.step == begin else "before"
    return f"{place.path or 'the copy in memory'}, was written {when}"


def _is_chosen(trace: Trace, saves: Sequence[SaveFact]) -> bool:
    """The file is called the best, or what was kept is loaded after the last step."""
    if "best" in PurePath(saves[0].path).name.lower():
        return True
    last = trace.num_steps
    return any(load.what == "network" and load.step == last for load in trace.loads)


def _kept_alive(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    """Tell of weights that were kept without a copy: every later step changed them, too."""
    kept = [s.step for s in trace.saves if s.to == "memory"]
    for load in trace.loads:
        since = [step for step in kept if step < load.step]
        # A state of this very step is what the network has; to load it does no harm.
        if load.num_own < max(_LEAST_OWN, load.num_keys / 2) or not since or load.step in kept:
            continue
        return (
            rule.finding(
                severity="error",
                step=since[-1],
                what=f"{load.num_own} of {load.num_keys} tensors that {load.kind} was given back "
                f"after step {load.step} are its own weights: they were kept at step {since[-1]} "
                "or before without a copy, and have changed with every step since.",
                cause="state_dict() refers to the weights themselves: what is restored as the best "
                "is the last.",
                fix="Keep copy.deepcopy(model.state_dict()), or clone every tensor.",
                num_own=load.num_own,
                num_keys=load.num_keys,
            ),
        )
    return ()


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    return _kept_alive(rule, trace) or _still(rule, trace)


def _still(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    series = _series(trace)
    # Any number of the validation may be the one to choose by.
    if not all(map(_falls, series)):
        return ()
    for evaluations in series:
        losses = [e.mean for e in evaluations]
        first, better = evaluations[0], _records(losses[1:], losses[0])
        told = [
            (f"{saves[0].path or 'the copy in memory'} was written at", _is_chosen(trace, saves))
            for saves in _places(trace, first.step)
            if _is_wrong_side(evaluations, {save.step for save in saves})
        ]
        restored = _restored(trace, evaluations)
        if restored:
            told.append((f"What was loaded in the end, at first in {restored}", True))
        found += [
            rule.finding(
                severity="error" if is_chosen else "confirm",
                step=next(e.step for e in evaluations[1:] if e.mean < _NEAR * losses[0]),
                what=f"{place} the first of {len(evaluations)} evaluations and "
                f"at none that was better, while the validation loss fell {better} times, from "
                f"{losses[0]:.4g} to {min(losses):.4g}.",
                cause="The best checkpoint is chosen by another number, or by the wrong side "
                "of it: what is kept is the worst network.",
                fix="Compare the validation loss of this epoch with the smallest so far.",
                num_evaluations=len(evaluations),
                num_better=better,
            )
            for place, is_chosen in told
        ]
    return tuple(found[:1])


SELECTION_STILL = Rule(
    name="the best checkpoint follows the validation loss",
    fault="selection never moves",
    requirement="TRACE-16",
    requires="Four evaluations of one loss, and a state that is saved right after the first, or "
    "before it and evaluated in the end; or one that is loaded after it was kept in memory.",
    contradicted_by="A score that was best at the first evaluation, though the loss fell.",
    abstains="It is saved at a later evaluation, too, or the loss falls by less than a fifth.",
    judge=_judge,
)
