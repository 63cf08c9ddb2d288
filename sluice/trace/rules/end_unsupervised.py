"""Is the token that ends a text among the targets?"""

from sluice.trace.evidence.losses import MASKED_BY_HAND, LossFact, NextTokens
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.losses import CLASSES, by_kind, learning_losses

_NEXT = 0.9
_LEAST_ROWS, _LEAST_KINDS = 24, 4
_VARIED = 0.75
"""A word that ends more of the rows than this may be an end token."""

_SHIFTED = 1
"""Places at the end of each row that have no target, where a network shifts them itself."""


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    blind = {p.network for p in trace.probes if p.probe == "own tokens" and not p.largest_effect}
    for (kind, network), facts in by_kind(learning_losses(trace, *CLASSES, MASKED_BY_HAND)).items():
        told = [(f, f.tokens) for f in facts if f.tokens is not None]
        if not told or any(t.next_share < _NEXT for _, t in told):
            continue
        # What sees the tokens that it names is a tagger, and has no end to learn.
        if network not in blind and any(t.is_own for _, t in told):
            continue
        finding = _of(rule, kind, told)
        if finding is not None:
            found.append(finding)
    return tuple(found)


def _of(rule: Rule, kind: str, told: list[tuple[LossFact, NextTokens]]) -> Finding | None:
    rows = sum(t.num_rows for _, t in told)
    tails = sum(t.num_tails for _, t in told)
    kinds = max(t.num_last for _, t in told)
    last_share = sum(t.last_share * t.num_tails for _, t in told) / max(tails, 1)
    # The longest row of a batch needs no padding: where it has a tail all the same, its own end
    # is what is ignored.
    if rows < _LEAST_ROWS or tails < rows:
        return None
    is_one_word = kinds < _LEAST_KINDS or last_share > _VARIED
    if is_one_word and not _ends_at_the_longest(told):
        return None
    shortest, longest = min(t.shortest_tail for _, t in told), max(t.longest_tail for _, t in told)
    # Nothing is padded, and nothing follows the last token of the input: its target is none where
    # the targets are shifted inside of the network.
    if longest == 1:
        return None
    any_of = "" if kinds < _LEAST_KINDS else f", where the last one that counts is any of {kinds}"
    # A place that no row of a fixed width uses may be meant as room.
    has_width = not is_one_word or len({t.num_positions for _, t in told}) > 1
    is_padded = has_width and shortest < longest and shortest <= 1 + _SHIFTED
    return rule.finding(
        severity="error" if is_padded else "confirm",
        step=told[0][0].step + 1,
        what=f"{kind}: in all {rows} of {rows} rows looked at the last target is ignored, also in "
        f"the longest of each batch{any_of}.",
        cause="The end of a text is masked out as padding: the network never learns to stop.",
        fix="Give padding a token of its own, or mask targets by the length of each row.",
        num_rows=rows,
        num_last=kinds,
        shortest_tail=shortest,
    )


def _ends_at_the_longest(told: list[tuple[LossFact, NextTokens]]) -> bool:
    """Tell whether it is just the last place of the longest row that is ignored in every batch.

    So an end that follows the same word in every text is found, as after a full stop.
    """
    tokens = [t for _, t in told]
    return (
        all((t.is_cut or t.is_own) and t.shortest_tail == 1 for t in tokens)
        and max(t.longest_tail for t in tokens) > 1
    )


END_UNSUPERVISED = Rule(
    name="the token that ends a text is among the targets",
    fault="end token never supervised",
    requirement="TRACE-3",
    requires="24 rows whose targets are the next tokens of what the network was given.",
    contradicted_by="Texts that have no end, as windows of one long stream that are padded.",
    abstains="A row is supervised to its last place, one token ends most rows, or none is padded.",
    judge=_judge,
)
