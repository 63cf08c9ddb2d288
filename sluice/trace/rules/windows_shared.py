"""Is what a network is to predict where it is judged new to it, when windows overlap?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sluice.trace.evidence.batches import EpochPrint, FieldPrint, SketchFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.losses import network_name
from sluice.trace.sketches import limit_of, share_below, up_to

_SHARED = 0.95
_LEAST = 30
"""Numbers that are compared."""
_LEAST_ROWS = 5
"""Rows in common, had the network been judged on rows that it learned from."""


@dataclass(frozen=True, slots=True)
class _Known:
    num: int
    of: int


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for network in sorted({f.network for f in trace.rows}):
        learned, judged = (_epochs(trace, network, is_learning=told) for told in (True, False))
        loaders = {e.loader for e in learned}
        for epoch in judged:
            if epoch.loader in loaders:
                continue
            target = _known(trace, epoch, [e for e in learned if e.step < epoch.step])
            if target is not None:
                loaders.add(epoch.loader)  # told once
                found.append(_of(rule, trace, network, epoch, target))
    return tuple(found)


def _epochs(trace: Trace, network: int, *, is_learning: bool) -> list[EpochPrint]:
    """Return the epochs of which the network was given the first batch.

    Loaders that are made anew for each fold are one.
    """
    calls = {
        (f.loader, f.step)
        for f in trace.rows
        if f.network == network and f.is_learning == is_learning
    }
    return [e for e in trace.epochs if (e.loader, e.step) in calls]


def _known(trace: Trace, epoch: EpochPrint, learned: Sequence[EpochPrint]) -> _Known | None:
    """Return a target of an epoch of which the learned epochs have all; None when all is well."""
    inputs = [f for f in epoch.fields if not f.place]
    others = [f for f in epoch.fields if f.place and _is_continuous(f, learned)]
    targets = [f for f in others if not inputs or f.values != inputs[0].values]
    if not targets or not _are_other_rows(trace, epoch, learned):
        return None
    # Inputs that are new make all of it new, whatever their numbers.
    known = [_best(field, learned) for field in (*targets, *inputs)]
    return None if any(k.of < _LEAST or k.num < _SHARED * k.of for k in known) else known[0]


def _is_continuous(field: FieldPrint, learned: Sequence[EpochPrint]) -> bool:
    """Tell whether equal numbers of a field are copies: they do not repeat in their columns.

    Numbers of few levels do, and so do those that are looked up for each row.
    """
    same = [f for e in learned for f in e.fields if f.place == field.place]
    return bool(same) and all(f.is_continuous for f in (field, *same))


def _are_other_rows(trace: Trace, epoch: EpochPrint, learned: Sequence[EpochPrint]) -> bool:
    """Tell whether an epoch has none of the rows that were learned, and would if it were of these.

    What is judged on rows that were learned is the matter of another rule. As many rows as were
    learned are the training set, in other windows perhaps.
    """
    loaders = {e.loader for e in learned}
    sizes = [f.num_rows for f in trace.loaders if f.index in loaders]
    whole = {e.num_indices for e in learned if e.is_finished and e.num_indices}
    if min(sizes) < 1 or epoch.num_indices in whole:
        return False
    rows, known = _both(epoch.contents, [e.contents for e in learned])
    share = share_below(limit_of([epoch.contents, *(e.contents for e in learned)]))
    coverage = min(len(known) / share / sum(sizes), 1.0)
    return not rows & known and coverage * len(rows) >= _LEAST_ROWS


def _best(field: FieldPrint, learned: Sequence[EpochPrint]) -> _Known:
    """Return how many numbers of a field one field of what was learned has.

    Inputs are compared with inputs: those of an evaluation may lack noise that targets lack, too.
    """
    pairs = [_both(field.values, some) for some in _by_field(learned, is_input=not field.place)]
    num, of = max(
        ((len(mine & known), len(mine)) for mine, known in pairs),
        key=lambda pair: pair[0] / pair[1] if pair[1] >= _LEAST else 0.0,
        default=(0, 0),
    )
    return _Known(num, of)


def _by_field(learned: Sequence[EpochPrint], *, is_input: bool) -> Iterator[list[SketchFact]]:
    places = {(e.loader, f.place) for e in learned for f in e.fields}
    for loader, place in sorted(p for p in places if not (is_input and p[1])):
        yield [
            f.values for e in learned if e.loader == loader for f in e.fields if f.place == place
        ]


def _both(mine: SketchFact, others: Sequence[SketchFact]) -> tuple[frozenset[int], frozenset[int]]:
    """Return one set and the union of others, as far as all are known."""
    limit = limit_of([mine, *others])
    return up_to(limit, mine), frozenset().union(*(up_to(limit, o) for o in others))


def _of(rule: Rule, trace: Trace, network: int, epoch: EpochPrint, target: _Known) -> Finding:
    return rule.finding(
        severity="error",
        step=epoch.step + 1,
        what=f"{network_name(trace, network)}: {target.num} of {target.of} different numbers "
        f"looked at that it is to predict for loader {epoch.loader} are, bit for bit, in windows "
        "that it learned from, though no window is equal.",
        cause="Windows of one series overlap: what they predict was learned with their neighbours, "
        "and scores say nothing about new days.",
        fix="Split the series by time, a window apart, before windows are cut from it.",
        num_shared=target.num,
        num_judged=target.of,
        loader=epoch.loader,
    )


WINDOWS_SHARED = Rule(
    name="windows that judge a network do not overlap those it learns from",
    fault="validation rows in training",
    requirement="TRACE-2",
    requires="Batches of loaders with targets of continuous numbers, to learn from and, later, to "
    "judge by.",
    contradicted_by="A series that repeats itself bit by bit.",
    abstains="An input is new; rows are equal, or as many as are learned; the targets are the "
    "inputs, or repeat in their column; or too few rows were looked at.",
    judge=_judge,
)
