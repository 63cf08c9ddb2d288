"""Has every batch a target that counts?"""

import math

from sluice.trace.evidence.batches import FieldFact
from sluice.trace.evidence.losses import MASKED_BY_HAND
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.losses import CLASSES, by_kind, learning_losses, network_name
from sluice.trace.tokens import IGNORED

_OFTEN, _OFTEN_SHARE = 3, 0.2
"""Batches without a target, and their share, from which answers are lost rather than rare."""

_MANY_ROWS = 8
"""Of text in one batch: that none of them has an answer is no chance."""


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for (kind, _), facts in by_kind(learning_losses(trace, *CLASSES, MASKED_BY_HAND)).items():
        empty = [f for f in facts if f.num_targets and not f.num_supervised]
        if not empty:
            continue
        fact = empty[0]
        # A sum over nothing is 0 and does no harm now and then.
        often = len(empty) >= _OFTEN and len(empty) >= _OFTEN_SHARE * len(facts)
        rows_of = [f.tokens.num_rows for f in empty if f.tokens is not None]
        often = often or max(rows_of, default=0) >= _MANY_ROWS
        harms = fact.reduction == "mean" or len(empty) == len(facts) or often
        rows = [f.tokens for f in facts if f.tokens is not None]
        num_rows = sum(t.num_rows for t in rows)
        bare = sum(t.num_unsupervised for t in rows)
        share = f"; {bare} of {num_rows} rows have none" if num_rows else ""
        value = "NaN" if fact.reduction == "mean" or math.isnan(fact.value) else f"{fact.value:.3g}"
        found.append(
            rule.finding(
                severity="error" if harms else "warning",
                step=fact.step + 1,
                what=f"{kind}: all {fact.num_targets:,} targets of the batch at step "
                f"{fact.step + 1} are ignored, {len(empty)} of {len(facts)} batches looked at"
                f"{share}; the loss is {value}.",
                cause="A mean over nothing is NaN, and one such batch ends the training.",
                fix="Cut prompts, not answers, when rows are too long, and leave out rows without "
                "a target.",
                num_empty=len(empty),
                num_rows_empty=bare,
            )
        )
    sure = tuple(f for f in found if f.severity == "error")
    return sure or _in_batches(rule, trace) or _in_inputs(rule, trace) or tuple(found)


def _in_batches(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    """Tell of batches of which a field that marks ignored places is nothing but these.

    So what a loss by hand is given is known, too.
    """
    learned = {f.loader for f in trace.inputs if f.is_learning}
    by_field: dict[tuple[int, int], list[tuple[int, FieldFact]]] = {}
    for batch in trace.batches:
        if batch.loader in learned:
            for place, told in enumerate(batch.fields):
                by_field.setdefault((batch.loader, place), []).append((batch.step, told))
    for (loader, _), fields in by_field.items():
        marked = [(at, f) for at, f in fields if f.smallest == IGNORED and "int" in f.dtype]
        empty = [(at, f) for at, f in marked if f.largest == IGNORED]
        if not empty or len(empty) == len(fields):
            continue
        step, field = min(empty, key=lambda e: e[0])
        return (
            rule.finding(
                severity="error",
                step=step + 1,
                what=f"Loader {loader}: {len(empty)} of {len(fields)} batches looked at have a "
                f"field of shape {field.shape} that is {IGNORED} throughout, the first at step "
                f"{step + 1}: no target counts.",
                cause="Such a batch teaches nothing; a mean over nothing is NaN.",
                fix="Cut prompts, not answers, when rows are too long, and leave out rows without "
                "a target.",
                num_empty=len(empty),
                num_batches=len(fields),
            ),
        )
    return ()


def _in_inputs(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    """Tell of labels that a network was given to compute its loss, and that all are ignored."""
    for fact in reversed(trace.inputs):
        for tokens in fact.more_tokens if fact.is_learning else ():
            if tokens.num_ignored and tokens.smallest == IGNORED and tokens.largest >= 0:
                return (
                    rule.finding(
                        severity="error",
                        step=fact.first_step + 1,
                        what=f"{network_name(trace, fact.network)}: of {fact.num_calls} batches "
                        f"looked at, {tokens.num_ignored} have labels that are {IGNORED} "
                        "throughout: no target counts.",
                        cause="Such a batch teaches nothing; a mean over nothing is NaN.",
                        fix="Cut prompts, not answers, when rows are too long, and leave out rows "
                        "without a target.",
                        num_empty=tokens.num_ignored,
                        num_batches=fact.num_calls,
                    ),
                )
    return ()


NOTHING_SUPERVISED = Rule(
    name="every batch has a target that counts",
    fault="nothing supervised",
    requirement="TRACE-2",
    requires="A call of cross_entropy or nll_loss with class ids that can be differentiated, or "
    "batches of a loader with -100 in a field.",
    contradicted_by="A program that leaves such a batch out before its backward pass.",
    abstains="Some targets count, however few.",
    judge=_judge,
)
