"""Detects batches in which every target is ignored."""

import math

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.inspection.token_statistics import IGNORE_INDEX
from sluice.trace.records.batches import FieldRecord
from sluice.trace.records.losses import MANUAL_MASKED_LOSS
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.loss_calls import (
    CLASS_LOSSES,
    group_by_function,
    network_name,
    training_loss_calls,
)


class AllTargetsIgnoredSettings(Settings):
    """Thresholds of the rule ``ALL_TARGETS_IGNORED``."""

    min_empty_batches: int = Field(
        3,
        ge=1,
        description="If the loss is not a mean, severity 'error' requires at least this number of "
        "sampled batches without a target. Fewer batches are harmless, unless no sampled batch "
        "has a target.",
    )
    min_empty_share: float = Field(
        0.2,
        gt=0,
        le=1,
        description="If the loss is not a mean, severity 'error' requires that at least this "
        "share of the sampled batches have no target.",
    )
    min_text_rows: int = Field(
        8,
        ge=1,
        description="A single batch without a target suffices for severity 'error' if it has at "
        "least this number of text rows. In a batch of this size, missing targets are no "
        "coincidence.",
    )


_FIX = "Truncate prompts, not answers, when rows are too long, and drop rows without a target."


def _judge(rule: Rule[AllTargetsIgnoredSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for (kind, _), records in group_by_function(
        training_loss_calls(trace, *CLASS_LOSSES, MANUAL_MASKED_LOSS)
    ).items():
        empty_batches = [r for r in records if r.num_targets and not r.num_supervised]
        if not empty_batches:
            continue
        record = empty_batches[0]
        # If the loss is a sum, a few batches without a target are harmless: their loss is 0.
        min_harmful_batches = max(
            rule.settings.min_empty_batches, rule.settings.min_empty_share * len(records)
        )
        text_row_counts = [r.tokens.num_rows for r in empty_batches if r.tokens is not None]
        is_harmful = (
            record.reduction == "mean"
            or len(empty_batches) == len(records)
            or len(empty_batches) >= min_harmful_batches
            or max(text_row_counts, default=0) >= rule.settings.min_text_rows
        )
        text_targets = [r.tokens for r in records if r.tokens is not None]
        num_rows = sum(targets.num_rows for targets in text_targets)
        num_rows_empty = sum(targets.num_unsupervised for targets in text_targets)
        rows_text = f"; {num_rows_empty} of {num_rows} rows have no target" if num_rows else ""
        loss_text = (
            "NaN"
            if record.reduction == "mean" or math.isnan(record.value)
            else f"{record.value:.3g}"
        )
        findings.append(
            rule.finding(
                severity="error" if is_harmful else "warning",
                step=record.step + 1,
                what=f"{kind}: all targets are ignored in {len(empty_batches)} of {len(records)} "
                f"sampled batches, first at step {record.step + 1} ({record.num_targets:,} targets)"
                f"{rows_text}; the loss is {loss_text}.",
                cause="A mean over no targets is NaN, and a step with this loss makes all weights "
                "NaN."
                if loss_text == "NaN"
                else "Such a batch does not train the network.",
                fix=_FIX,
                num_empty=len(empty_batches),
                num_rows_empty=num_rows_empty,
            )
        )
    # Without a finding of severity 'error' about loss calls, the tensors of batches and the labels
    # that networks receive are inspected.
    errors = tuple(f for f in findings if f.severity == "error")
    return (
        errors
        or _detect_ignored_fields(rule, trace)
        or _detect_ignored_labels(rule, trace)
        or tuple(findings)
    )


def _detect_ignored_fields(
    rule: Rule[AllTargetsIgnoredSettings], trace: Trace
) -> tuple[TraceFinding, ...]:
    """Detect batches in which a tensor contains only the ignore index, unlike in other batches.

    The targets of a custom loss are thus checked, too. A tensor that contains only the ignore index
    in every batch is not used as a target.
    """
    training_loaders = {r.loader for r in trace.inputs if r.is_learning}
    fields_by_index: dict[tuple[int, int], list[tuple[int, FieldRecord]]] = {}
    for batch in trace.batches:
        if batch.loader in training_loaders:
            for index, field in enumerate(batch.fields):
                fields_by_index.setdefault((batch.loader, index), []).append((batch.step, field))
    for (loader, _), fields in fields_by_index.items():
        ignored_fields = [
            (step, field)
            for step, field in fields
            if field.smallest == field.largest == IGNORE_INDEX and "int" in field.dtype
        ]
        if not ignored_fields or len(ignored_fields) == len(fields):
            continue
        step, field = ignored_fields[0]
        return (
            rule.finding(
                severity="error",
                step=step + 1,
                what=f"Loader {loader}: {len(ignored_fields)} of {len(fields)} sampled batches "
                f"have a tensor of shape {field.shape} with only {IGNORE_INDEX}, the first at step "
                f"{step + 1}: every target is ignored.",
                cause="Such a batch does not train the network; a mean over no targets is NaN.",
                fix=_FIX,
                num_empty=len(ignored_fields),
                num_batches=len(fields),
            ),
        )
    return ()


def _detect_ignored_labels(
    rule: Rule[AllTargetsIgnoredSettings], trace: Trace
) -> tuple[TraceFinding, ...]:
    """Detect batches with only ignored labels, for networks that compute the loss themselves."""
    # Begin with the last record of a network, which covers all inspected calls.
    for record in reversed(trace.inputs):
        for tokens in record.other_tokens if record.is_learning else ():
            num_empty = tokens.num_ignored  # number of batches, not of tokens
            if num_empty and tokens.smallest == IGNORE_INDEX and tokens.largest >= 0:
                return (
                    rule.finding(
                        severity="error",
                        step=record.first_step + 1,
                        what=f"{network_name(trace, record.network)}: of {record.num_calls} "
                        f"sampled batches, {num_empty} have labels with only "
                        f"{IGNORE_INDEX}: every target is ignored.",
                        cause="Such a batch does not train the network; a mean over no targets "
                        "is NaN.",
                        fix=_FIX,
                        num_empty=num_empty,
                        num_batches=record.num_calls,
                    ),
                )
    return ()


ALL_TARGETS_IGNORED = Rule(
    name="every batch has a target that is not ignored",
    fault="all targets ignored",
    priority=540,
    requires="One of: a call of cross_entropy or nll_loss with class ids and with gradients "
    "enabled; a custom masked loss; batches of a training loader with -100 in a tensor; labels "
    "with -100 that a network receives.",
    contradicted_by="A program that drops such a batch before its backward pass.",
    abstains="A tensor contains only -100 in every sampled batch, so it is not used as a target.",
    settings=AllTargetsIgnoredSettings(),
    judge=_judge,
)
