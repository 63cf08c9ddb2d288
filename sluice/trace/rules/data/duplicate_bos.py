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
        description="Minimum share of the rows that start with one token, for the token to count "
        "as the BOS token.",
    )
    min_doubled_rows: int = Field(
        3, ge=1, description="Minimum number of rows that start with two BOS tokens, for a finding."
    )
    min_doubled_share: float = Field(
        0.02,
        gt=0,
        le=1,
        description="Minimum share of rows that start with two BOS tokens, for a finding.",
    )
    min_error_share: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Minimum share of rows that start with two BOS tokens, for an error.",
    )


def _judge(rule: Rule[DuplicateBosSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    latest_records = {r.network: r for r in trace.inputs if r.is_learning and r.num_rows}
    findings = []
    statistics = [
        (r, tokens) for r in latest_records.values() for tokens in (r.tokens, *r.other_tokens)
    ]
    for record, tokens in statistics:
        if (
            tokens is None
            or tokens.num_longer  # three or more times: left padding
            or tokens.num_first < rule.settings.min_bos_share * tokens.num_rows
        ):
            continue
        doubled_share = tokens.num_doubled / max(tokens.num_rows, 1)
        if (
            tokens.num_doubled < rule.settings.min_doubled_rows
            or doubled_share < rule.settings.min_doubled_share
        ):
            continue
        first_rows = "All" if tokens.num_first == tokens.num_rows else tokens.num_first
        findings.append(
            rule.finding(
                severity="error" if doubled_share >= rule.settings.min_error_share else "confirm",
                step=record.first_step + 1,
                what=f"{network_name(trace, record.network)}: {tokens.num_doubled} of "
                f"{tokens.num_rows} rows ({doubled_share:.0%}) start with token {tokens.first} "
                f"twice. {first_rows} rows start with it, and it occurs nowhere else in the "
                "affected rows.",
                cause="A BOS token was added to texts that already contain one: the learned "
                "sequences differ from prompts with a single BOS token.",
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
    requires="Integer inputs of which at least 98% of the rows start with the same token. At "
    "least three rows, and at least 2% of the rows, start with it twice.",
    contradicted_by="Texts that intentionally start with the same token twice.",
    abstains="Some rows start with the token three or more times, as with left padding.",
    settings=DuplicateBosSettings(),
    judge=_judge,
)
