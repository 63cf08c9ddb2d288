"""Are the rows that judge a network apart from those it learns from?"""

from collections.abc import Iterable
from dataclasses import dataclass

from sluice.trace.evidence.inputs import RowsFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.losses import network_name
from sluice.trace.rules.steps import optimizers_in

_LEAST = 3
_LEAST_SHARE = 0.005
_WHOLE = 0.85
_TIMES = 3.0
"""So many more rows are shared than by chance."""
_MOSTLY = 0.5
_PART = 0.6
_HOLDS = 2
"""Times as many rows as were learned: no held-out part of these is so large."""
_LEAST_IN_LOOP = 8
"""Steps in a row with calls on other rows each: these make targets, and judge nothing. Of calls on
single rows the steps, and how many calls each of them has at most."""


@dataclass(frozen=True, slots=True)
class _Overlap:
    loader: int
    shared: frozenset[int]
    num_judged: int
    num_held: int
    """Rows of the largest call."""
    share: float
    """Of the judged rows, as it would be had all rows of learning been looked at."""
    first_step: int
    by_chance: float


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for network in sorted({f.network for f in trace.rows}):
        learned = [f for f in trace.rows if f.network == network and f.is_learning]
        looked = [f for f in trace.rows if f.network == network and not f.is_learning]
        turns = max(len(optimizers_in(trace)), 1)
        facts = [*learned, *_without_loop(_without_acting(looked), turns=turns)]
        loaders = {f.loader for f in learned}
        if not learned:
            continue
        overlaps = [
            _overlap(
                trace,
                learned,
                _without_training(
                    [f for f in facts if not f.is_learning and f.loader == loader], learned
                ),
            )
            for loader in sorted({f.loader for f in facts if not f.is_learning})
            if loader not in loaders or loader == -1
        ]
        for overlap in overlaps:
            others = [o for o in overlaps if o is not overlap and not o.shared]
            finding = _of(rule, trace, network, learned, overlap, is_only=not others)
            if finding is not None:
                found.append(finding)
    return tuple(found)


def _without_acting(judged: list[RowsFact]) -> list[RowsFact]:
    """Leave out calls on one row, few of them at each of many steps: choices of what to do next.

    A validation row by row has all of its calls at few steps.
    """
    alone = [fact for fact in judged if fact.num_rows == 1]
    steps = {fact.step for fact in alone}
    if len(steps) < _LEAST_IN_LOOP or len(alone) > _LEAST_IN_LOOP * len(steps):
        return judged
    return [fact for fact in judged if fact.num_rows > 1]


def _without_loop(judged: list[RowsFact], *, turns: int) -> list[RowsFact]:
    """Leave out calls that belong to learning: made at one step after the other on other rows.

    So are the answers to the next states in reinforcement learning, and a decoder's own words.
    Where several optimizers take turns, the next of these calls comes so many steps later.
    """
    rows: dict[int, set[int]] = {}
    for fact in judged:
        rows.setdefault(fact.step, set()).update(fact.rows)
    inside = {
        step
        for step in rows
        for beside in range(step - turns, step + turns + 1)
        if beside in rows and rows[beside] != rows[step]
    }
    if len(inside) < _LEAST_IN_LOOP:
        return judged
    return [fact for fact in judged if fact.step not in inside]


def _without_training(judged: list[RowsFact], learned: list[RowsFact]) -> list[RowsFact]:
    """Leave out calls on the training set, where others are on something else.

    They are made of rows that were learned, and hold most of these; rows that leaked are few of
    those that were learned.
    """
    known = {row for f in learned for row in f.rows}
    rest: list[RowsFact] = []
    covered: set[int] = set()
    for fact in judged:
        shared = known.intersection(fact.rows)
        if len(shared) < _MOSTLY * len(set(fact.rows)):
            rest.append(fact)
        else:
            covered |= shared
    return rest if rest and len(covered) >= _MOSTLY * len(known) else judged


def _overlap(trace: Trace, learned: list[RowsFact], judged: list[RowsFact]) -> _Overlap:
    since: dict[int, int] = {}
    for fact in learned:
        for row in fact.rows:
            since.setdefault(row, fact.step)
    rows = {row for f in judged for row in f.rows}
    # A row that was judged first and learned later may have been chosen for that, as those are
    # that a network gives labels to; before its first step it chooses nothing.
    chosen: set[int] = set()
    for fact in judged:
        chosen |= {row for row in fact.rows if 0 < fact.step <= since.get(row, -1)}
    shared = {
        row
        for f in judged
        for row in f.rows
        if row in since and since[row] < f.step and row not in chosen
    }
    coverage = _coverage(trace, learned, len(since))
    pairs, twins = _twins([*learned, *judged])
    extra = 3.0 if any(f.is_whole for f in learned) else 0.0
    return _Overlap(
        loader=judged[0].loader,
        shared=frozenset(shared),
        num_judged=len(rows),
        num_held=max((f.num_rows for f in judged), default=0),
        share=len(shared) / max(len(rows), 1) / coverage,
        first_step=min((since[row] for row in shared), default=0),
        by_chance=0.0
        if all(f.is_continuous for f in learned)
        else len(rows) * len(since) * (twins + extra) / max(pairs, 1),
    )


def _coverage(trace: Trace, learned: list[RowsFact], num_seen: int) -> float:
    """Return the share of the rows of learning that were looked at."""
    loaders = {f.loader for f in learned}
    sizes = [f.num_rows for f in trace.loaders if f.index in loaders and f.num_rows > 0]
    if len(loaders) == len(sizes) and sizes:
        return min(num_seen / sum(sizes), 1.0)
    return 1.0


def _twins(facts: Iterable[RowsFact]) -> tuple[int, int]:
    """Return the pairs of rows within batches, and how many of these are equal."""
    pairs = twins = 0
    for fact in facts:
        num = len(fact.rows)
        pairs += num * (num - 1) // 2
        counts: dict[int, int] = {}
        for row in fact.rows:
            counts[row] = counts.get(row, 0) + 1
        twins += sum(n * (n - 1) // 2 for n in counts.values())
    return pairs, twins


def _of(
    rule: Rule,
    trace: Trace,
    network: int,
    learned: list[RowsFact],
    overlap: _Overlap,
    *,
    is_only: bool,
) -> Finding | None:
    num = len(overlap.shared)
    if num < _LEAST or overlap.share < _LEAST_SHARE or num <= _TIMES * overlap.by_chance:
        return None
    rows = {row for f in learned for row in f.rows}
    if len(overlap.shared) > _WHOLE * len(rows):
        return None  # judged on everything there is, the training set in it
    held = overlap.num_held
    if held > _HOLDS * len(rows) and num / overlap.num_judged * held > _MOSTLY * len(rows):
        return None  # so it is, in one call of which the first rows were looked at
    is_whole = overlap.share >= _WHOLE
    # Some of the rows that were learned, held out for nothing.
    is_part = is_only and is_whole and num < _PART * len(rows)
    if is_whole and not is_only:
        return None  # how well the training set is learned, beside a validation set
    loader = f" of loader {overlap.loader}" if overlap.loader >= 0 else ""
    return rule.finding(
        severity="confirm" if is_whole and not is_part else "error",
        step=overlap.first_step + 1,
        what=f"{network_name(trace, network)}: {num} of {overlap.num_judged} rows that judge it"
        f"{loader} are, number for number, among the {len(rows)} rows looked at that it learned "
        f"from, the first at step {overlap.first_step + 1}.",
        cause="Scores on rows that were learned by heart say nothing about new ones."
        if not is_whole
        else "All of them are: this is the score of the training set.",
        fix="Split before rows are copied or drawn again, and remove duplicates across the splits.",
        num_shared=num,
        num_judged=overlap.num_judged,
        num_learned=len(rows),
        by_chance=overlap.by_chance,
    )


ROWS_LEAKED = Rule(
    name="the rows that judge a network are apart from those it learns from",
    fault="validation rows in training",
    requirement="TRACE-2",
    requires="Rows that a network learned from, and rows it was judged on later.",
    contradicted_by="Rows of few different values, of which equal ones occur by chance.",
    abstains="As many rows within a batch are equal, of numbers that repeat; all rows are shared "
    "and another evaluation is on new ones; the evaluation holds all rows there are; or it is on "
    "other rows at one step after the other, or on single ones at many steps.",
    judge=_judge,
)
