"""Are the inputs of an evaluation prepared as those of learning?"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple, TypeVar

from sluice.trace.evidence.inputs import ColumnFact, InputFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.losses import network_name

_LEAST_ROWS = 48
_LEAST_COLUMNS = 1
_SCALE = math.log(2.2)
_SHIFT = 1.0
"""Deviations of the learning inputs."""
_STRETCHED_SHIFT = 2.5
_STILL_SHIFT, _STILL_SCALE = 0.3, math.log(1.5)
_LEAST_OTHERS = 4
"""Columns, by most of which it is told that the rows are those of one world."""
_FAR = 6.0
"""Such deviations of a single column: one that grows evenly comes to 2 in the rows that follow."""


_NEAR = 1.2
"""Change from one sample to the next, in deviations; of independent samples it is 1.4."""
_WANDERS_WIDE, _WANDERS_NARROW = math.log(8), -math.log(50)
"""Where a level wanders: a short evaluation sees little of it."""

T = TypeVar("T")


class _Moved(NamedTuple):
    """Columns or channels, as they were learned and as they were judged."""

    kind: str
    shift: float
    """Median, in deviations of the learning inputs."""
    scale: float
    """Median of the logarithms."""
    pairs: list[tuple[ColumnFact, ColumnFact]]


def latest(trace: Trace, network: int) -> dict[tuple[bool, int], InputFact]:
    """Return the fullest fact of a network by learning or not, and loader."""
    found: dict[tuple[bool, int], InputFact] = {}
    for fact in trace.inputs:
        if fact.network == network and fact.columns:
            found[fact.is_learning, fact.loader] = fact
    return found


def compared(trace: Trace) -> Iterator[tuple[int, InputFact, list[InputFact]]]:
    """Yield each network with what it learned from, and what it was judged on: enough of both."""
    for network in sorted({f.network for f in trace.inputs}):
        facts = [(learning, f) for (learning, _), f in latest(trace, network).items()]
        learned, judged = (
            [f for learning, f in facts if learning == told and f.num_rows >= _LEAST_ROWS]
            for told in (True, False)
        )
        if len(learned) == 1 and judged and not learned[0].is_made:
            yield network, learned[0], judged


def shown_by_all(
    judged: list[InputFact], look: Callable[[InputFact], T | None]
) -> tuple[InputFact, T] | None:
    """Return what a look shows at the first evaluation on data, if it shows something at all.

    Where one evaluation is like learning, another one is meant to be different.
    """
    told = [(f, shown) for f in judged if (shown := look(f)) is not None]
    on_data = [(f, shown) for f, shown in told if not f.is_made]
    return on_data[0] if len(told) == len(judged) and on_data else None


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for _, learned, judged in compared(trace):
        shown = shown_by_all(judged, partial(_moved, learned))
        if shown is not None:
            found.append(_of(rule, trace, learned, *shown))
    return tuple(found)


def _moved(learned: InputFact, judged: InputFact) -> _Moved | None:
    """Return how columns moved, or channels; None when they are alike."""
    if learned.shape[1:] != judged.shape[1:] and (
        learned.by_position or learned.shape[-1:] != judged.shape[-1:]
    ):
        return None
    return _apart("channel", learned.channels, judged.channels) or _apart(
        "column", learned.columns, judged.columns
    )


def _apart(kind: str, one: Sequence[ColumnFact], others: Sequence[ColumnFact]) -> _Moved | None:
    other = {c.column: c for c in others}
    pairs = [
        (c, other[c.column])
        for c in one
        if c.column in other and c.std > 0 and other[c.column].std > 0
    ]
    # Columns that hardly vary, as the border of an image, tell nothing.
    typical = median(c.std for c, _ in pairs) if pairs else 0.0
    pairs = [(c, d) for c, d in pairs if c.std >= typical / 4]
    if len(pairs) < _LEAST_COLUMNS:
        return None
    shift = median(abs(d.mean - c.mean) / c.std for c, d in pairs)
    scale = median(math.log(d.std / c.std) for c, d in pairs)
    if _is_moved(shift, scale, [d for _, d in pairs]):
        return _Moved(kind, shift, scale, pairs)
    far = [(c, d) for c, d in pairs if _is_far(c, d)] or _of_another_unit(pairs)
    if not far:
        return None
    shift = median(abs(d.mean - c.mean) / c.std for c, d in far)
    return _Moved(kind, shift, median(math.log(d.std / c.std) for c, d in far), far)


def _is_moved(shift: float, scale: float, judged: Sequence[ColumnFact]) -> bool:
    """Tell whether columns are elsewhere, or wider or narrower.

    Where each sample is near the one before it, as prices are, the level wanders: where it is in
    the rows that follow those of learning says nothing, within bounds, of how they were prepared.
    """
    told = [d.step / d.std for d in judged if not math.isnan(d.step)]
    if told and median(told) < _NEAR:
        return shift > _FAR or not _WANDERS_NARROW < scale < _WANDERS_WIDE
    return shift > _SHIFT or abs(scale) > _SCALE


def _is_far(one: ColumnFact, other: ColumnFact) -> bool:
    """Tell whether a column has no number in common with learning, by more than any trend."""
    apart = other.smallest > one.largest or other.largest < one.smallest
    return apart and abs(other.mean - one.mean) > _FAR * one.std


def _of_another_unit(
    pairs: list[tuple[ColumnFact, ColumnFact]],
) -> list[tuple[ColumnFact, ColumnFact]]:
    """Return columns that are both shifted and stretched, where most others are as they were.

    As by a logarithm that is taken in one place only. What grows with time is shifted, and varies
    less in the rows that follow; what becomes restless is stretched.
    """
    if len(pairs) < _LEAST_OTHERS:
        return []
    moves = [(abs(d.mean - c.mean) / c.std, math.log(d.std / c.std)) for c, d in pairs]
    still = sum(shift < _STILL_SHIFT and abs(scale) < _STILL_SCALE for shift, scale in moves)
    moved = [
        pair
        for pair, (shift, scale) in zip(pairs, moves, strict=True)
        if shift > _STRETCHED_SHIFT and scale > _SCALE
    ]
    return moved if 2 * still > len(pairs) else []


def _place(kind: str, column: ColumnFact, fact: InputFact) -> str:
    """Return where a column stands in a sample: of a window, its row and its place there."""
    shape = fact.shape[1:]
    if kind != "column" or not fact.by_position or len(shape) < 2:
        return str(column.column)
    places, rest = list[int](), column.column
    for width in reversed(shape):
        rest, place = divmod(rest, width)
        places.append(place)
    return str(places[::-1])


def _of(
    rule: Rule,
    trace: Trace,
    learned: InputFact,
    judged: InputFact,
    moved: _Moved,
) -> Finding:
    kind, shift, scale, pairs = moved
    one, other = max(pairs, key=lambda p: abs(p[1].mean - p[0].mean) / p[0].std)
    return rule.finding(
        severity="error",
        step=judged.first_step,
        what=f"{network_name(trace, learned.network)}: inputs are prepared in another way when it "
        f"is judged. {kind.capitalize()} {_place(kind, one, learned)} has mean {one.mean:.4g} and "
        f"deviation {one.std:.4g} while it learns ({learned.num_rows} rows), {other.mean:.4g} and "
        f"{other.std:.4g} in the evaluation ({judged.num_rows} rows); over "
        f"{len(pairs)} {kind}s the shift is {shift:.2g} deviations and the scale "
        f"{math.exp(scale):.3g}.",
        cause="The scores are those of inputs that the network has never seen.",
        fix="Use one preprocessing for both, fitted on the training rows alone.",
        confidence=0.97,
        shift=shift,
        scale=math.exp(scale),
        num_columns=len(pairs),
    )


SPLITS_DIFFER = Rule(
    name="inputs of an evaluation are prepared as those of learning",
    fault="splits preprocessed differently",
    requirement="TRACE-2",
    requires="48 rows of numbers that a network learned from, and 48 that it was judged on.",
    contradicted_by="An evaluation that is meant to be on data of another kind.",
    abstains="Its samples come in an order in which each is near the one before, as levels in the "
    "order of time, and none lies far outside of what was learned; or another evaluation of the "
    "network has inputs like those of learning, or it learns "
    "from several loaders or from what another network makes; or what it is judged on was made by "
    "a network, or step by step by a sampler.",
    judge=_judge,
)
