"""Detects end-of-sequence tokens that are masked out of the targets."""

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.losses import MANUAL_MASKED_LOSS, LossRecord, NextTokenTargets
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.loss_calls import (
    CLASS_LOSSES,
    group_by_function,
    training_loss_calls,
)


class EosMaskedSettings(Settings):
    """Thresholds of the rule ``EOS_MASKED``."""

    min_next_share: float = Field(
        0.9,
        gt=0,
        le=1,
        description="Minimum share of the targets that are the next tokens of the input, for a "
        "finding.",
    )
    min_rows: int = Field(24, ge=1, description="Minimum number of sampled rows for a finding.")
    min_distinct_last_tokens: int = Field(
        4,
        ge=2,
        description="Minimum number of distinct last supervised tokens of the rows. If there "
        "are fewer, they are taken as end tokens, which are then not masked.",
    )
    max_last_share: float = Field(
        0.75,
        gt=0,
        le=1,
        description="Maximum share of the rows with the same last supervised token. If more "
        "rows share a token, it is taken as the end token, which is then not masked.",
    )


_NUM_SHIFTED_POSITIONS = 1
"""Number of last positions without a target in each row if the network shifts the targets."""


def _judge(rule: Rule[EosMaskedSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    # The outputs of these networks do not depend on the token at their own position: they shift
    # inputs or targets themselves.
    shifting_networks = {
        p.network for p in trace.probes if p.probe == "own tokens" and not p.largest_effect
    }
    for (kind, network), records in group_by_function(
        training_loss_calls(trace, *CLASS_LOSSES, MANUAL_MASKED_LOSS)
    ).items():
        calls = [(r, r.tokens) for r in records if r.tokens is not None]
        if not calls or any(t.next_share < rule.settings.min_next_share for _, t in calls):
            continue
        # Another network whose targets equal its inputs does not generate text, and needs no end.
        if network not in shifting_networks and any(t.targets_are_inputs for _, t in calls):
            continue
        finding = _detect_missing_end(rule, kind, calls)
        if finding is not None:
            findings.append(finding)
    return tuple(findings)


def _detect_missing_end(
    rule: Rule[EosMaskedSettings], kind: str, calls: list[tuple[LossRecord, NextTokenTargets]]
) -> TraceFinding | None:
    num_rows = sum(t.num_rows for _, t in calls)
    num_ignored_ends = sum(t.num_tails for _, t in calls)
    num_distinct_last = max(t.num_last for _, t in calls)
    last_share = sum(t.last_share * t.num_tails for _, t in calls) / max(num_ignored_ends, 1)
    # The longest row of a batch needs no padding: if it has ignored targets at the end, they
    # include its end token.
    if num_rows < rule.settings.min_rows or num_ignored_ends < num_rows:
        return None
    has_common_last_token = (
        num_distinct_last < rule.settings.min_distinct_last_tokens
        or last_share > rule.settings.max_last_share
    )
    if has_common_last_token and not _ignores_end_of_longest(calls):
        return None
    shortest = min(t.shortest_tail for _, t in calls)
    longest = max(t.longest_tail for _, t in calls)
    # If only one position per row is ignored, nothing is padded: a network that shifts the targets
    # itself has no target for the last input.
    if longest == 1:
        return None
    last_tokens_text = (
        ""
        if num_distinct_last < rule.settings.min_distinct_last_tokens
        else f"; the last supervised tokens of the rows have {num_distinct_last} different values"
    )
    # If all batches have the same width, the last position may be unused intentionally.
    is_last_position_used = (
        not has_common_last_token or len({t.num_positions for _, t in calls}) > 1
    )
    is_end_token_masked = (
        is_last_position_used and shortest < longest and shortest <= 1 + _NUM_SHIFTED_POSITIONS
    )
    return rule.finding(
        severity="error" if is_end_token_masked else "confirm",
        step=calls[0][0].step + 1,
        what=f"{kind}: in all {num_rows} sampled rows the last target is ignored, also in the "
        f"longest row of each batch{last_tokens_text}.",
        cause="The end token is masked out as padding: the network never learns to stop.",
        fix="Use a separate padding token, or mask targets by the length of each row.",
        num_rows=num_rows,
        num_last=num_distinct_last,
        shortest_tail=shortest,
    )


def _ignores_end_of_longest(calls: list[tuple[LossRecord, NextTokenTargets]]) -> bool:
    """Whether exactly the last position of the longest row is ignored in every batch.

    The rule needs this if the token before the masked end token is the same in every text, such as
    a full stop.
    """
    tokens = [t for _, t in calls]
    return (
        all((t.is_shifted or t.targets_are_inputs) and t.shortest_tail == 1 for t in tokens)
        and max(t.longest_tail for t in tokens) > 1
    )


EOS_MASKED = Rule(
    name="the end-of-sequence token is among the targets",
    fault="EOS token masked",
    priority=470,
    requires="24 rows whose targets are the next tokens of the network's input.",
    contradicted_by="Texts without an end, such as padded windows of one long stream.",
    abstains="A row has a target at its last position, one token ends most rows, or no row is "
    "padded.",
    settings=EosMaskedSettings(),
    judge=_judge,
)
