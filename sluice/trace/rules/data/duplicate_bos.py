"""Detects input rows that start with two BOS tokens."""

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.loss_calls import network_name


class DuplicateBosSettings(Settings):
    """Thresholds of the rule ``DUPLICATE_BOS``."""

    min_bos_share: float = Field(
        0.98,
        gt=0,
        le=1,
        description="The most frequent first token counts as the BOS token only if at least this "
        "share of the rows start with it.",
    )
    min_double_bos_rows: int = Field(
        3,
        ge=1,
        description="A finding requires at least this number of rows that start with two BOS "
        "tokens.",
    )
    min_double_bos_share: float = Field(
        0.02,
        gt=0,
        le=1,
        description="A finding requires that at least this share of the rows start with two BOS "
        "tokens.",
    )
    min_double_bos_share_for_error: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Severity 'error' requires that at least this share of the rows start with "
        "two BOS tokens. For a lower share, the finding needs confirmation.",
    )


def _judge(rule: Rule[DuplicateBosSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    latest_records = {r.network: r for r in trace.inputs if r.is_learning and r.num_rows}
    token_inputs = [
        (record, tokens)
        for record in latest_records.values()
        for tokens in (record.tokens, *record.other_tokens)
        if tokens is not None
    ]
    findings = []
    for record, tokens in token_inputs:
        double_bos_share = tokens.num_doubled / max(tokens.num_rows, 1)
        if (
            # rows that start with the token three or more times, as with left padding
            tokens.num_longer
            or tokens.num_first < rule.settings.min_bos_share * tokens.num_rows
            or tokens.num_doubled < rule.settings.min_double_bos_rows
            or double_bos_share < rule.settings.min_double_bos_share
        ):
            continue
        is_error = double_bos_share >= rule.settings.min_double_bos_share_for_error
        first_rows_text = "All" if tokens.num_first == tokens.num_rows else str(tokens.num_first)
        findings.append(
            rule.finding(
                severity="error" if is_error else "confirm",
                step=record.first_step + 1,
                what=f"{network_name(trace, record.network)}: {tokens.num_doubled} of "
                f"{tokens.num_rows} rows ({double_bos_share:.0%}) start with token {tokens.first} "
                f"twice. {first_rows_text} rows start with this token. The affected rows contain "
                "it at no later position.",
                cause="A BOS token was added to texts that already contain a BOS token. So "
                "training rows differ from prompts, which start with a single BOS token.",
                fix="Tokenize text from a chat template with add_special_tokens=False.",
                num_doubled=tokens.num_doubled,
                num_rows=tokens.num_rows,
                token=tokens.first,
            )
        )
    return tuple(findings)


DUPLICATE_BOS = Rule(
    name="a text starts with one BOS token",
    fault="duplicate BOS token",
    priority=450,
    requires="Token inputs in training, at least 98% of whose rows start with the same token. At "
    "least three rows, and at least 2% of the rows, start with this token twice.",
    contradicted_by="Texts that intentionally start with the same token twice.",
    abstains="Some rows start with the token three or more times, as with left padding.",
    settings=DuplicateBosSettings(),
    judge=_judge,
)
