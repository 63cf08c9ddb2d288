"""Detects end-of-sequence tokens that are masked out of the targets."""

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.losses import MANUAL_MASKED_LOSS, NextTokenTargets
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
        description="A finding requires that at least this share of the supervised targets are "
        "the next tokens of the input.",
    )
    min_rows: int = Field(
        24, ge=1, description="A finding requires at least this number of sampled rows."
    )
    min_distinct_last_tokens: int = Field(
        4,
        ge=2,
        description="A finding requires at least this number of distinct last supervised tokens "
        "in one batch. Fewer distinct tokens probably are end tokens, which are then not masked. "
        "The requirement does not apply if exactly the last position of the longest row is "
        "ignored in every batch.",
    )
    max_last_share: float = Field(
        0.75,
        gt=0,
        le=1,
        description="A finding requires that at most this share of the rows have the same last "
        "supervised token. A token that more rows share probably is the end token, which is then "
        "not masked. The exception of min_distinct_last_tokens also applies to this requirement.",
    )


_NUM_SHIFTED_POSITIONS = 1
"""Number of positions at the end of each row that have no target if the network itself shifts the
targets."""


def _judge(rule: Rule[EosMaskedSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    # Networks whose outputs do not depend on the token at the same position: they shift the inputs
    # or the targets themselves.
    shifting_networks = {
        p.network for p in trace.probes if p.probe == "own tokens" and not p.largest_effect
    }
    for (kind, network), records in group_by_function(
        training_loss_calls(trace, *CLASS_LOSSES, MANUAL_MASKED_LOSS)
    ).items():
        calls = [(r.step, r.tokens) for r in records if r.tokens is not None]
        targets = [tokens for _, tokens in calls]
        if not calls or any(t.next_share < rule.settings.min_next_share for t in targets):
            continue
        # Skip a network that does not shift and whose targets equal its inputs: it reconstructs the
        # inputs and needs no end token.
        if network not in shifting_networks and any(t.targets_are_inputs for t in targets):
            continue
        finding = _detect_missing_end(rule, kind, targets, first_step=calls[0][0] + 1)
        if finding is not None:
            findings.append(finding)
    return tuple(findings)


def _detect_missing_end(
    rule: Rule[EosMaskedSettings], kind: str, targets: list[NextTokenTargets], *, first_step: int
) -> TraceFinding | None:
    """Detect that end tokens are missing from the targets of the sampled batches.

    The ignored targets at the end of a row are called its tail.
    """
    num_rows = sum(t.num_rows for t in targets)
    num_rows_with_tail = sum(t.num_tails for t in targets)
    num_distinct_last_tokens = max(t.num_last for t in targets)
    last_share = sum(t.last_share * t.num_tails for t in targets) / max(num_rows_with_tail, 1)
    # Every row must have a tail, even the longest row of a batch. The longest row needs no padding,
    # so an ignored target at its end may be the end token.
    if num_rows < rule.settings.min_rows or num_rows_with_tail < num_rows:
        return None
    # A last token that most rows share may be the end token, which is then a target.
    has_common_last_token = (
        num_distinct_last_tokens < rule.settings.min_distinct_last_tokens
        or last_share > rule.settings.max_last_share
    )
    if has_common_last_token and not _ignores_end_of_longest_row(targets):
        return None
    shortest_tail = min(t.shortest_tail for t in targets)
    longest_tail = max(t.longest_tail for t in targets)
    # If only one position per row is ignored, no row is padded: a network that shifts the targets
    # itself has no target for the last position.
    if longest_tail == 1:
        return None
    last_tokens_text = (
        ""
        if num_distinct_last_tokens < rule.settings.min_distinct_last_tokens
        else f"; one batch has {num_distinct_last_tokens} distinct last supervised tokens"
    )
    # If all batches have the same width, the program may omit the last target intentionally.
    may_omit_last_target = has_common_last_token and len({t.num_positions for t in targets}) == 1
    is_end_token_masked = (
        not may_omit_last_target
        and shortest_tail < longest_tail
        and shortest_tail <= 1 + _NUM_SHIFTED_POSITIONS  # the end token, and shifted positions
    )
    return rule.finding(
        severity="error" if is_end_token_masked else "confirm",
        step=first_step,
        what=f"{kind}: in all {num_rows} sampled rows the last target is ignored, also in the "
        f"longest row of each batch{last_tokens_text}.",
        cause="The end token is masked out as padding: the network never learns to stop.",
        fix="Use a separate padding token, or mask targets by the length of each row.",
        num_rows=num_rows,
        num_distinct_last=num_distinct_last_tokens,
        shortest_tail=shortest_tail,
    )


def _ignores_end_of_longest_row(targets: list[NextTokenTargets]) -> bool:
    """Whether exactly the last position of the longest row is ignored in every batch.

    The end token is then masked, even if the token before it is the same in every text, such as a
    full stop.
    """
    return (
        all((t.is_shifted or t.targets_are_inputs) and t.shortest_tail == 1 for t in targets)
        and max(t.longest_tail for t in targets) > 1
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
