"""Do the columns of an evaluation stand in the order in which they were learned?

Standardised columns all look alike; what they have to do with each other tells which is which.
"""

import itertools
import math
from collections.abc import Sequence
from functools import partial

from sluice.trace.evidence.inputs import InputFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.losses import network_name
from sluice.trace.rules.splits_differ import compared, shown_by_all

_LEAST_COLUMNS, _LEAST_CHANNELS = 4, 3
"""Fewer correlations are those of another order by chance, as of series that wander."""
_FAR = 6.0
"""Squared difference of all correlations, over that by chance, from which they have changed."""
_NEAR, _EXPLAINED = 3.0, 0.15
"""The same in the order that is found, over that by chance and over that before."""

Order = Sequence[int]
"""For each column of the evaluation the one of the learning that it is."""


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for network, learned, judged in compared(trace):
        shown = shown_by_all(judged, partial(_order, learned))
        if shown is not None:
            found.append(_of(rule, trace, network, learned, *shown))
    return tuple(found)


def _order(learned: InputFact, judged: InputFact) -> Order | None:
    """Return the order that explains the correlations; None when they are as they were."""
    least = _LEAST_CHANNELS if learned.channels else _LEAST_COLUMNS
    one, other = _table(learned.correlations), _table(judged.correlations)
    if (
        len(one) != len(other)
        or len(one) < least
        or bool(learned.channels) != bool(judged.channels)
    ):
        return None
    num, pairs = len(one), [*itertools.combinations(range(len(one)), 2)]
    rows = 1 / learned.num_rows + 1 / judged.num_rows
    chance = sum((1 - other[i][j] ** 2) ** 2 * rows for i, j in pairs)
    order = [*range(num)]
    before = misfit = _misfit(one, other, order)
    if before < _FAR * chance:
        return None
    while True:
        tried = [(_misfit(one, other, swapped := _swapped(order, *p)), swapped) for p in pairs]
        best, swapped = min(tried)
        if best >= misfit:
            break
        misfit, order = best, swapped
    is_told = misfit < _NEAR * chance and misfit < _EXPLAINED * before
    return order if is_told else None


def _table(above: Sequence[float]) -> list[list[float]]:
    """Return the whole matrix from what stands above its diagonal."""
    num = (1 + math.isqrt(1 + 8 * len(above))) // 2 if above else 0
    table = [[1.0] * num for _ in range(num)]
    for (i, j), value in zip(itertools.combinations(range(num), 2), above, strict=True):
        table[i][j] = table[j][i] = value
    return table


def _misfit(one: list[list[float]], other: list[list[float]], order: Order) -> float:
    return sum(
        (one[order[i]][order[j]] - other[i][j]) ** 2
        for i, j in itertools.combinations(range(len(order)), 2)
    )


def _swapped(order: list[int], i: int, j: int) -> list[int]:
    found = [*order]
    found[i], found[j] = found[j], found[i]
    return found


def _of(
    rule: Rule, trace: Trace, network: int, learned: InputFact, judged: InputFact, order: Order
) -> Finding:
    kind = "channel" if learned.channels else "column"
    facts = learned.channels or learned.columns
    moved = [(facts[i].column, facts[j].column) for i, j in enumerate(order) if i != j]
    listed = ", ".join(f"{was} as {now}" for now, was in moved[:4])
    return rule.finding(
        severity="error",
        step=judged.first_step,
        what=f"{network_name(trace, network)}: {len(moved)} of its {len(order)} input {kind}s "
        f"stand in another order when it is judged: by their correlations, {kind} {listed}"
        f"{' and so on' if len(moved) > 4 else ''} ({learned.num_rows} rows learned, "
        f"{judged.num_rows} judged).",
        cause="The network takes each of them for another one.",
        fix=f"Take the {kind}s by name, from one list, wherever rows are prepared.",
        confidence=0.95,
        num_columns=len(moved),
    )


COLUMNS_REORDERED = Rule(
    name="columns of an evaluation stand in the order of those learned",
    fault="splits preprocessed differently",
    requirement="TRACE-2",
    requires="48 rows of four columns, or images of three channels, that a network learned from, "
    "and as many that it was judged on; columns that depend on each other.",
    contradicted_by="An evaluation whose columns depend on each other in another way.",
    abstains="Another evaluation of the network is like learning, or it learns from several "
    "loaders or from what another network makes.",
    judge=_judge,
)
