"""Are all ids inside the table they are looked up in?"""

import math

from sluice.trace.evidence.losses import LossFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.losses import CLASSES, by_kind, learning_losses, network_name

_ROWS_A_CLASS, _LEAST_ROWS = 20, 200
_MOST_CLASSES = 1000
_LEAST_OF_COLUMN = 10
"""Ones of a class that occurs."""
_CLAMPED = 0.2
"""Of all ids; a row for rare ones is meant."""
_MOST_BUCKETS = 128
"""Rows of a table that may be of a quantity, whose large values are one bucket."""


def _outside(rule: Rule, trace: Trace) -> list[Finding]:
    found = {}
    for fact in trace.ids:
        if fact.kind in found or fact.kind in ("index", "class index", "clamped"):
            continue
        what = "token" if fact.kind == "embedding" else "class"
        last = fact.num_allowed - 1
        found[fact.kind] = rule.finding(
            severity="error",
            step=fact.step + 1,
            what=f"{fact.kind} was given {fact.num_outside} of {fact.num_ids} {what} ids outside 0 "
            f"to {last}: {fact.smallest} to {fact.largest}.",
            cause="The program ends here, or on another device reads what is not its own.",
            fix=f"Make the table {fact.largest + 1} wide, or number the ids from 0."
            if fact.smallest >= 0
            else "Number the ids from 0; mask with ignore_index, not with -1.",
            num_outside=fact.num_outside,
            smallest=fact.smallest,
            largest=fact.largest,
            num_allowed=fact.num_allowed,
        )
    return list(found.values())


def _wrapped(rule: Rule, trace: Trace) -> list[Finding]:
    """Rows that are counted from the end of a table by some ids, from its start by others."""
    shared = [f for f in trace.ids if f.kind == "index" and f.num_shared]
    if not shared:
        return []
    first = shared[0]
    return [
        rule.finding(
            severity="error",
            step=first.step + 1,
            what=f"A table of {first.num_allowed} rows was indexed by {first.num_outside} of "
            f"{first.num_ids} ids below 0, as {first.smallest}: these are rows from its end, and "
            f"{first.num_shared} of them are the rows of other ids, too.",
            cause="An id that means 'none' or 'unknown' has the row of something else: the two are "
            "learned as one.",
            fix="Give unknown ids a row of their own: add 1 to all ids and a row to the table.",
            num_outside=first.num_outside,
            num_shared=first.num_shared,
            num_allowed=first.num_allowed,
        )
    ]


def _clamped(rule: Rule, trace: Trace) -> list[Finding]:
    """Ids beyond a table that the network takes for its last row, many of them."""
    found = []
    facts = [f for f in trace.ids if f.kind == "clamped"]
    for network, rows in sorted({(f.network, f.num_allowed) for f in facts}):
        same = [f for f in facts if (f.network, f.num_allowed) == (network, rows)]
        outside, num = sum(f.num_outside for f in same), sum(f.num_ids for f in same)
        if outside < _CLAMPED * num or num < _LEAST_ROWS:
            continue
        largest = max(f.largest for f in same)
        found.append(
            rule.finding(
                severity="error" if rows > _MOST_BUCKETS else "confirm",
                step=same[0].step + 1,
                what=f"{network_name(trace, network)} was given ids up to {largest} for a table of "
                f"{rows} rows, and took {outside} of {num} of them, those from {rows} on, for row "
                f"{rows - 1}.",
                cause="They all have one row and are learned as the same thing.",
                fix=f"Make the table {largest + 1} rows long, or number the ids without gaps.",
                num_outside=outside,
                num_ids=num,
                num_allowed=rows,
                largest=largest,
            )
        )
    return found


def _from_below(rule: Rule, trace: Trace) -> list[Finding]:
    """Classes -1 to C - 2: where -1 means none, the last class occurs, too."""
    facts = [f for f in trace.ids if f.kind == "class index"]
    if not facts or any(f.num_shared or f.smallest != -1 for f in facts):
        return []
    first, last = facts[0], max(f.largest for f in facts)
    num = sum(f.num_ids for f in facts)
    if last != first.num_allowed - 2 or num < _ROWS_A_CLASS * first.num_allowed:
        return []  # of few rows the last class may be missing by chance
    return [
        rule.finding(
            severity="error",
            step=first.step + 1,
            what=f"Of {first.num_allowed} classes a loss by hand took {first.num_outside} of "
            f"{first.num_ids} as -1, which is the last one, and none as {last + 1}.",
            cause="Classes are numbered one too low: the first one is learned as the last.",
            fix="Number the classes from 0.",
            num_outside=first.num_outside,
            num_allowed=first.num_allowed,
        )
    ]


def _beyond_unit(rule: Rule, trace: Trace) -> list[Finding]:
    """Targets of a binary loss that are no probabilities: 1 and 2 instead of 0 and 1."""
    kinds = ("binary_cross_entropy_with_logits", "binary_cross_entropy")
    found = []
    for (kind, _), facts in by_kind(learning_losses(trace, *kinds)).items():
        wrong = [f for f in facts if f.target_smallest < 0 or f.target_largest > 1]
        if not wrong:
            continue
        low, high = min(f.target_smallest for f in wrong), max(f.target_largest for f in wrong)
        found.append(
            rule.finding(
                severity="error",
                step=wrong[0].step + 1,
                what=f"{kind} was given targets from {low:.4g} to {high:.4g}, outside [0, 1], in "
                f"{len(wrong)} of {len(facts)} calls looked at.",
                cause="The loss has no lower bound there: outputs grow without end.",
                fix="Give the two classes the targets 0 and 1.",
                smallest=low,
                largest=high,
            )
        )
    return found


def _shifted(rule: Rule, trace: Trace) -> list[Finding]:
    """Classes 1 to C - 1 that all occur, and class 0 never: numbered from 1, perhaps."""
    found = []
    for (kind, _), facts in by_kind(learning_losses(trace, *CLASSES)).items():
        plain = [f for f in facts if _is_plain(f)]
        if not plain or len(plain) < len(facts):
            continue
        classes = plain[0].input_shape[1]
        rows = sum(f.num_supervised for f in plain)
        low, high = min(f.target_smallest for f in plain), max(f.target_largest for f in plain)
        if low != 1 or high != classes - 1 or rows < max(_ROWS_A_CLASS * classes, _LEAST_ROWS):
            continue
        found.append(
            rule.finding(
                severity="confirm",
                step=plain[0].step + 1,
                what=f"{kind}: {rows} targets are 1 to {high:.0f} and never 0, for {classes} "
                "outputs.",
                cause="Classes that are numbered from 1 leave one output without meaning, and a "
                "list of names is read one place off.",
                fix="Number the classes from 0.",
                num_targets=rows,
                num_classes=classes,
            )
        )
    return found


def _classless(rule: Rule, trace: Trace) -> list[Finding]:
    """One-hot targets of which some rows have no class: one class has no column."""
    found = []
    for (kind, network), facts in by_kind(learning_losses(trace, *CLASSES)).items():
        judged = [
            f for f in trace.losses if f.kind == kind and f.network == network and not f.is_learning
        ]
        # Rows without a label may be left out on purpose; those that judge a network are not, and
        # nothing mixes them.
        of = judged or facts
        empty = sum(f.num_classless for f in of)
        rows = sum(f.target_shape[0] for f in of if f.target_shape)
        if not 0 < empty < rows:
            continue
        where = "that judge it" if judged else "that it learns from"
        found.append(
            rule.finding(
                severity="error" if judged else "confirm",
                step=facts[0].step + 1,
                what=f"{kind}: {empty} of {rows} rows of one-hot targets {where} have no 1 in any "
                f"of the {of[0].target_shape[1]} columns.",
                cause="One class has no column, as with drop_first=True: its rows teach nothing, "
                "and no answer can name it.",
                fix="Give every class a column, or the loss the numbers of the classes.",
                num_rows=empty,
                num_columns=of[0].target_shape[1],
            )
        )
    return found


def _shifted_columns(rule: Rule, trace: Trace) -> list[Finding]:
    """One column of one-hot targets at an end is never 1, and rows without any 1 are a class."""
    found = []
    kinds = ("binary_cross_entropy_with_logits", "binary_cross_entropy")
    for (kind, network), facts in by_kind(learning_losses(trace, *kinds)).items():
        tables = [f for f in facts if f.column_counts]
        widths = {len(f.column_counts) for f in tables}
        if len(tables) < len(facts) or len(widths) != 1:
            continue
        counts = [*map(sum, zip(*(f.column_counts for f in tables), strict=True))]
        rows, blank = sum(f.target_shape[0] for f in tables), sum(f.num_classless for f in tables)
        (*inner,) = counts[1:-1]
        ends = sorted((counts[0], counts[-1]))
        others = [*inner, ends[1]]
        is_missing = not ends[0] and min(others) >= _LEAST_OF_COLUMN
        if not is_missing or not min(others) / 2 <= blank <= 2 * max(others):
            continue
        place, beyond = (0, len(counts)) if not counts[0] else (len(counts) - 1, -1)
        found.append(
            rule.finding(
                severity="error",
                step=tables[0].step + 1,
                what=f"{network_name(trace, network)}, {kind}: column {place} of one-hot targets "
                f"is never 1 in {rows} rows, though each of the {len(others)} others is, and "
                f"{blank} rows have no 1 at all.",
                cause=f"Classes are numbered one place off: those of class {beyond} match no "
                f"column, and output {place} learns of nothing.",
                fix="Number the classes from 0.",
                num_rows=blank,
                num_columns=len(counts),
            )
        )
    return found


def _is_plain(fact: LossFact) -> bool:
    return (
        fact.target_is_integer
        and len(fact.input_shape) == 2
        and fact.tokens is None
        and fact.num_supervised == fact.num_targets
        and 2 < fact.input_shape[1] <= _MOST_CLASSES
        and not math.isnan(fact.target_smallest)
    )


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    return (
        *_outside(rule, trace),
        *_wrapped(rule, trace),
        *_clamped(rule, trace),
        *_from_below(rule, trace),
        *_beyond_unit(rule, trace),
        *_shifted(rule, trace),
        *_classless(rule, trace),
        *_shifted_columns(rule, trace),
    )


ID_RANGE = Rule(
    name="ids are inside the table they are looked up in",
    fault="id out of range",
    requirement="TRACE-2",
    requires="A call of embedding, cross_entropy, nll_loss or a binary loss, or a parameter that "
    "was indexed, or looked up by ids that a network was given.",
    contradicted_by="Class 0 is kept for what occurs later; the last row for ids unknown.",
    abstains="An id that is outside was ignored by ignore_index.",
    judge=_judge,
)
