"""Does every column of the inputs vary?"""

from collections.abc import Mapping
from itertools import pairwise
from statistics import correlation, median

from sluice.trace.evidence.inputs import ColumnFact, InputFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.losses import network_name, numbers
from sluice.trace.rules.splits_differ import latest

_LEAST_ROWS = 200
_MANY_ROWS, _LEAST_BLANK, _BLANK = 1000, 3, 0.3
"""Rows, columns and their share of the table that tell of a table of which a part is lost."""
_LIKE_MEAN, _LIKE_STD = 0.5, 1.5
"""Deviations, and ratio of these, within which a column is like itself."""
_VARIES = 0.15
"""Deviation over range of a column in which more than a few rows differ."""
_PAIR = 2
_NARROW = 32
"""Columns of a table of which a single one stands still."""
_STANDARD_MEAN, _STANDARD_STD = 0.3, (0.6, 1.6)
_LEAST_COLUMNS = 5
_SMOOTH, _LEAST_SMOOTH = 0.3, 16
_LEAST_SIDE = 6
"""Of an image."""
_LIVELY = 0.4
"""Of the median deviation."""
_SHOWN = 8


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for network in sorted({f.network for f in trace.inputs}):
        facts = latest(trace, network)
        learned = [f for (learning, _), f in facts.items() if learning]
        judged = [f for (learning, _), f in facts.items() if not learning]
        if len(learned) != 1 or learned[0].num_rows < _LEAST_ROWS or learned[0].may_be_made:
            continue
        finding = _of(rule, trace, learned[0], judged)
        if finding is not None:
            found.append(finding)
    return tuple(found)


def _of(rule: Rule, trace: Trace, learned: InputFact, judged: list[InputFact]) -> Finding | None:
    ends = {0, max((c.column for c in learned.columns), default=0)}
    still = [
        c
        for c in learned.columns
        # A column of ones at one end is an intercept.
        if c.smallest == c.largest and not (c.smallest == 1 and c.column in ends)
    ]
    if not still or len(learned.columns) < _LEAST_COLUMNS or len(still) == len(learned.columns):
        return None
    is_narrow = len(learned.columns) <= _NARROW
    is_table = len(learned.shape) == 2 and _is_blank(still, learned)
    for reason, certain in (
        ("so are other columns, each at a number of its own", still if is_table else []),
        ("it varies when the network is judged", _moving(still, learned, judged)),
        ("all others are standardised", still if _others_are_standard(learned) else []),
        ("those on both sides are standardised", [c for c in still if _is_between(c, learned)]),
        ("no other does", still if _is_alone(still, learned) else []),
        ("those beside it vary", [c for c in still if _is_hole(c, learned)]),
    ):
        if certain:
            # A scaler leaves a 0 where pixels or words never occur, too.
            may_be_meant = "standardised" in reason and len(certain) > 1 and not is_narrow
            column = certain[0]
            listed = numbers([c.column for c in certain[:_SHOWN]], len(certain))
            return rule.finding(
                severity="confirm" if may_be_meant else "error",
                step=learned.first_step + 1,
                what=f"{network_name(trace, learned.network)}: column {listed} of "
                f"{learned.shape[-1] if not learned.by_position else len(learned.columns)} is "
                f"{column.smallest:.4g} in all {learned.num_rows} rows looked at, since the first "
                f"batch, and {reason}.",
                cause="What this column could tell is lost to the network.",
                fix="Look for the step of the preprocessing that fills or drops this column.",
                confidence=0.5 if may_be_meant else 0.9,
                column=column.column,
                num_columns=len(certain),
                num_rows=learned.num_rows,
            )
    return None


def _is_blank(still: list[ColumnFact], fact: InputFact) -> bool:
    """Tell whether much of a narrow table is the same in very many rows, and not only 0 or only 1.

    A column of ones may be meant, as may be zeros where nothing was counted.
    """
    values = {c.smallest for c in still}
    return (
        fact.num_rows >= _MANY_ROWS
        and len(fact.columns) == fact.shape[-1]
        and len(still) >= max(_LEAST_BLANK, _BLANK * len(fact.columns))
        and len(values) > 1
        and bool(values - {0.0})
    )


def _moving(
    still: list[ColumnFact], learned: InputFact, judged: list[InputFact]
) -> list[ColumnFact]:
    """Return those that vary where the network is judged on rows that are like the others."""
    for fact in judged:
        columns = {c.column: c for c in fact.columns}
        if fact.num_rows < _LEAST_ROWS // 4 or not _is_alike(learned, columns):
            continue
        return [c for c in still if c.column in columns and _varies(columns[c.column])]
    return []


def _varies(column: ColumnFact) -> bool:
    width = column.largest - column.smallest
    return width > 0 and column.std / width > _VARIES


def _is_alike(learned: InputFact, judged: Mapping[int, ColumnFact]) -> bool:
    """Tell whether most columns are distributed as where it learns: not those of another task."""
    pairs = [(c, judged[c.column]) for c in learned.columns if c.std and c.column in judged]
    alike = [
        abs(d.mean - c.mean) < _LIKE_MEAN * c.std and 1 / _LIKE_STD < d.std / c.std < _LIKE_STD
        for c, d in pairs
    ]
    return 2 * sum(alike) > len(alike)


def _others_are_standard(fact: InputFact) -> bool:
    others = [c for c in fact.columns if c.largest > c.smallest]
    low, high = _STANDARD_STD
    return all(abs(c.mean) < _STANDARD_MEAN and low < c.std < high for c in others)


def _is_between(column: ColumnFact, fact: InputFact) -> bool:
    """Tell whether a column of a table stands between two standardised ones, others being 0 or 1.

    One that no row has of a category stands among such.
    """
    if len(fact.shape) != 2 or column.smallest:
        return False
    low, high = _STANDARD_STD
    plain = {
        c.column
        for c in fact.columns
        if abs(c.mean) < _STANDARD_MEAN and low < c.std < high and c.smallest < 0
    }
    flags = {c.column for c in fact.columns if (c.smallest, c.largest) == (0, 1)}
    still = {c.column for c in fact.columns if c.smallest == c.largest}
    others = {c.column for c in fact.columns} - plain - flags - still
    return not others and {column.column - 1, column.column + 1} <= plain


def _is_alone(still: list[ColumnFact], fact: InputFact) -> bool:
    """Tell whether one column of a narrow table from a loader is 0 in very many rows, or two are.

    Two as the sine and the cosine of an hour that is always midnight: one beside the other, and
    the second may be any number. Beside a column of 0 and 1 they may be categories no row has.
    """
    places, values = [c.column for c in still], {c.smallest for c in still}
    if len(still) > _PAIR or 0 not in values or len(fact.shape) != 2 or fact.loader < 0:
        return False
    if max(places) - min(places) != len(values) - 1:
        return False
    all_there = len(fact.columns) == fact.shape[1] <= _NARROW
    near = {place + side for place in places for side in (-1, 1)} - set(places)
    beside = [c for c in fact.columns if c.column in near]
    has_flag = any((c.smallest, c.largest) == (0, 1) for c in beside)
    return all_there and fact.num_rows >= _MANY_ROWS and not has_flag


def _is_hole(column: ColumnFact, fact: InputFact) -> bool:
    """Tell whether a position of an image or a curve is still and both beside it vary.

    Positions whose deviations change gradually are such; the border of an image has one side only
    that varies.
    """
    if len(fact.shape) > 2 and min(fact.shape[-2:]) < _LEAST_SIDE:
        return False  # patches or short vectors one after the other, of which neighbours are none
    stds = {c.column: c.std for c in fact.columns}
    beside = [stds.get(column.column - 1), stds.get(column.column + 1)]
    sides = [s for s in beside if s is not None]
    columns = sorted(stds)
    follow = [(stds[a], stds[b]) for a, b in pairwise(columns) if stds[a] and stds[b]]
    if len(sides) < 2 or len(follow) < _LEAST_SMOOTH:
        return False
    one, other = [a for a, _ in follow], [b for _, b in follow]
    if len(set(one)) < 2 or len(set(other)) < 2 or correlation(one, other) < _SMOOTH:
        return False
    return min(sides) > _LIVELY * median(s for s in stds.values() if s)


CONSTANT_COLUMN = Rule(
    name="every column of the inputs varies",
    fault="constant column",
    requirement="TRACE-2",
    requires="200 rows of numbers in five columns or more that a network learned from.",
    contradicted_by="A column that is kept for what occurs later.",
    abstains="Another network returns rows of this shape, as an encoder whose features have a unit "
    "that rests; or the column is one of a raw table, or at the border of an image, as pixels are "
    "that no image uses. Several of more than 32 standardised ones are a question.",
    judge=_judge,
)
