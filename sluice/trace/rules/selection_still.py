"""Does the best checkpoint follow the validation loss?"""

from collections.abc import Sequence
from pathlib import PurePath

from sluice.trace.evidence.losses import EvaluationFact
from sluice.trace.evidence.surroundings import SaveFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.loaders import learned_from

_LEAST = 4
_BETTER = 3
"""Evaluations, each better than all before it, that went by unsaved."""
_FALL = 0.8
_NEAR = 0.99


def _series(trace: Trace) -> list[tuple[EvaluationFact, ...]]:
    learned = learned_from(trace)
    keys = dict.fromkeys((e.network, e.loader, e.kind) for e in trace.evaluations)
    found = [
        tuple(e for e in trace.evaluations if (e.network, e.loader, e.kind) == key) for key in keys
    ]
    return [es for es in found if len(es) >= _LEAST and es[0].loader not in learned]


def _records(losses: Sequence[float], best: float) -> int:
    """Return how often a loss was clearly the smallest so far."""
    num = 0
    for loss in losses:
        if loss < _NEAR * best:
            best, num = loss, num + 1
    return num


def _places(trace: Trace) -> list[tuple[SaveFact, ...]]:
    places = dict.fromkeys((save.to, save.path) for save in trace.saves)
    return [tuple(s for s in trace.saves if (s.to, s.path) == place) for place in places]


def _is_chosen(trace: Trace, saves: Sequence[SaveFact]) -> bool:
    """The file is called the best, or what was kept is loaded after the last step."""
    if "best" in PurePath(saves[0].path).name.lower():
        return True
    last = trace.num_steps
    return any(load.what == "network" and load.step == last for load in trace.loads)


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for evaluations in _series(trace):
        losses = [e.mean for e in evaluations]
        first = evaluations[0]
        better = _records(losses[1:], losses[0])
        if not (better >= _BETTER and 0 < min(losses) < _FALL * losses[0]):
            continue
        for saves in _places(trace):
            # The next evaluation has not come yet, and no step was made since this one.
            if {save.step for save in saves} != {first.step}:
                continue
            place = saves[0].path or "the copy in memory"
            found.append(
                rule.finding(
                    severity="error" if _is_chosen(trace, saves) else "confirm",
                    step=next(e.step for e in evaluations[1:] if e.mean < _NEAR * losses[0]),
                    what=f"{place} was written at the first of {len(evaluations)} evaluations and "
                    f"never again, while the validation loss fell {better} times, from "
                    f"{losses[0]:.4g} to {min(losses):.4g}.",
                    cause="The best checkpoint is chosen by another number, or by the wrong side "
                    "of it: what is kept is the worst network.",
                    fix="Compare the validation loss of this epoch with the smallest so far.",
                    num_evaluations=len(evaluations),
                    num_better=better,
                )
            )
    return tuple(found[:1])


SELECTION_STILL = Rule(
    name="the best checkpoint follows the validation loss",
    fault="selection never moves",
    requirement="TRACE-16",
    requires="Four evaluations of one loss, and a state that is saved right after the first.",
    contradicted_by="A score that was best at the first evaluation, though the loss fell.",
    abstains="It is saved at a later evaluation, too, or the loss falls by less than a fifth.",
    judge=_judge,
)
