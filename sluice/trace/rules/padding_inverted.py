"""Does the padding mask hide the padding, and not the words?"""

from sluice.trace.evidence.flow import MaskFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule

_MOVES = 1e-3
"""Of the largest number: less may be rounding."""


def _is_inverted(mask: MaskFact) -> bool:
    """Hidden is what is no padding; the one token that ends a row may count as either."""
    real = mask.num_positions - mask.num_padding
    return mask.num_padding_masked <= mask.num_rows < mask.num_padding and (
        abs(mask.num_masked - mask.num_padding_masked - real) <= mask.num_rows
    )


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    names = {n.index: n.name for m in trace.memberships for n in m.networks}
    fix = "Negate the mask: in torch's attention modules true means that a position is left out."
    found = []
    for network in sorted({m.network for m in trace.masks}):
        inverted = [m for m in trace.masks if m.network == network and _is_inverted(m)]
        if not inverted:
            continue
        first = inverted[0]
        name = names.get(network, "a network")
        where = f"{name}.{first.module}" if first.module else f"An attention of {name}"
        real = first.num_positions - first.num_padding
        hidden = first.num_masked - first.num_padding_masked
        found.append(
            rule.finding(
                severity="error",
                step=first.step + 1,
                what=f"{where} was given a mask that hides {hidden} of {real} real positions and "
                f"{first.num_padding_masked} of {first.num_padding} positions of padding.",
                cause="Attention sees nothing but padding.",
                fix=fix,
                num_masked=first.num_masked,
                num_padding=first.num_padding,
                num_padding_masked=first.num_padding_masked,
            )
        )
    told = {m.network for m in trace.masks if m.module or _is_inverted(m)}
    for probe in trace.probes:
        if probe.probe != "padding" or probe.network in told:
            continue
        if not (probe.largest_effect > _MOVES and probe.real_effect == 0):
            continue
        found.append(
            rule.finding(
                severity="error",
                step=probe.step + 1,
                what=f"{names.get(probe.network, 'a network')}: other numbers at "
                f"{probe.changed} positions of padding move its output by "
                f"{probe.largest_effect:.1%}, other numbers at real positions by nothing.",
                cause="The network sees the padding and not the words.",
                fix=fix,
                num_padding=probe.changed,
                padding_effect=probe.largest_effect,
            )
        )
    return tuple(found)


PADDING_INVERTED = Rule(
    name="a padding mask hides the padding",
    fault="padding mask inverted",
    requirement="TRACE-4",
    requires="Rows that end in runs with one token that is nowhere else, or with zeros; and a mask "
    "that an attention module of torch was given, weights of an attention in the graph behind the "
    "loss, or a copy of the network that could be tried.",
    contradicted_by="A real position of which some other output depends.",
    abstains="Fewer than two rows are padded; the input is square and padded in both layouts; or "
    "the network cannot be copied, or takes the positions first and no mask of torch's attention.",
    judge=_judge,
)
