"""Does a text begin once?"""

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.losses import network_name

_ALWAYS = 0.98
"""Of the rows begin with a begin token."""
_LEAST_ROWS, _LEAST_SHARE, _SURE_SHARE = 3, 0.02, 0.1


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    latest = {f.network: f for f in trace.inputs if f.is_learning and f.num_rows}
    found = []
    told = [(f, tokens) for f in latest.values() for tokens in (f.tokens, *f.more_tokens)]
    for fact, tokens in told:
        if tokens is None or tokens.num_longer or tokens.num_first < _ALWAYS * tokens.num_rows:
            continue
        share = tokens.num_doubled / max(tokens.num_rows, 1)
        if tokens.num_doubled < _LEAST_ROWS or share < _LEAST_SHARE:
            continue
        found.append(
            rule.finding(
                severity="error" if share >= _SURE_SHARE else "confirm",
                step=fact.first_step + 1,
                what=f"{network_name(trace, fact.network)}: {tokens.num_doubled} of "
                f"{tokens.num_rows} rows ({share:.0%}) begin with token {tokens.first} twice; all "
                "rows begin with it, and it stands nowhere else in these.",
                cause="A text that has its begin token already was given another one: what is "
                "learned fits no prompt that has one.",
                fix="Tokenize text from a template with add_special_tokens=False.",
                num_doubled=tokens.num_doubled,
                num_rows=tokens.num_rows,
                token=tokens.first,
            )
        )
    return tuple(found)


BEGIN_DOUBLED = Rule(
    name="a text begins once",
    fault="begin token doubled",
    requirement="TRACE-3",
    requires="Inputs of whole numbers that all begin with the same one.",
    contradicted_by="Texts that are meant to begin with the same token twice.",
    abstains="Some rows begin with three or more of it, as padding on the left does.",
    judge=_judge,
)
