"""Detects padding masks that hide the tokens instead of the padding."""

from pydantic import Field

from sluice.base.pluralize import pluralize
from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.forward_passes import PaddingMaskRecord
from sluice.trace.records.trace import Trace


class InvertedPaddingMaskSettings(Settings):
    """Thresholds of the rule ``INVERTED_PADDING_MASK``."""

    min_effect: float = Field(
        1e-3,
        gt=0,
        description="An output counts as dependent on the padding if it changes by more than this "
        "share of the largest output when the padding changes. A smaller change may be a rounding "
        "error.",
    )


def _is_inverted(mask: PaddingMaskRecord) -> bool:
    """Whether the mask hides everything except padding.

    One position per row may differ: an end-of-text token may count as a token or as padding.
    """
    num_tokens = mask.num_positions - mask.num_padding
    num_tokens_masked = mask.num_masked - mask.num_padding_masked
    return (
        mask.num_padding_masked <= mask.num_rows < mask.num_padding
        and num_tokens - num_tokens_masked <= mask.num_rows
    )


def _judge(rule: Rule[InvertedPaddingMaskSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    names = {n.index: n.name for m in trace.memberships for n in m.networks}
    fix = "Negate the mask: in torch's attention modules True means that a position is ignored."
    findings = []
    for network in sorted({m.network for m in trace.padding_masks}):
        inverted_masks = [
            m for m in trace.padding_masks if m.network == network and _is_inverted(m)
        ]
        if not inverted_masks:
            continue
        first_mask = inverted_masks[0]
        name = names.get(network, "a network")
        module = (
            f"{name}.{first_mask.module}" if first_mask.module else f"An attention layer of {name}"
        )
        num_tokens = first_mask.num_positions - first_mask.num_padding
        num_tokens_masked = first_mask.num_masked - first_mask.num_padding_masked
        findings.append(
            rule.finding(
                severity="error",
                step=first_mask.step + 1,
                what=f"{module} received a mask that hides {num_tokens_masked} of {num_tokens} "
                f"token positions and {first_mask.num_padding_masked} of {first_mask.num_padding} "
                "padding positions.",
                cause="The attention layer reads only padding.",
                fix=fix,
                num_masked=first_mask.num_masked,
                num_padding=first_mask.num_padding,
                num_padding_masked=first_mask.num_padding_masked,
            )
        )
    # Probes of ``networks_with_mask`` are ignored: a mask that a module received is stronger
    # evidence than a probe, and a network with an inverted mask already has a finding.
    networks_with_mask = {m.network for m in trace.padding_masks if m.module or _is_inverted(m)}
    for probe in trace.probes:
        if probe.probe != "padding" or probe.network in networks_with_mask:
            continue
        # Changes of the outputs at unchanged tokens: after the padding was replaced, and after some
        # of the real tokens were replaced.
        padding_effect, token_effect = probe.largest_effect, probe.real_effect
        if not (padding_effect > rule.settings.min_effect and token_effect == 0):
            continue
        num_padding = probe.changed
        findings.append(
            rule.finding(
                severity="error",
                step=probe.step + 1,
                what=f"{names.get(probe.network, 'a network')}: replacing the values at "
                f"{pluralize(num_padding, 'padding position')} changes the output "
                f"by {padding_effect:.1%} of the largest output. Replacing the values at token "
                "positions does not change it.",
                cause="The network reads the padding and not the tokens.",
                fix=fix,
                num_padding=num_padding,
                padding_effect=padding_effect,
            )
        )
    return tuple(findings)


INVERTED_PADDING_MASK = Rule(
    name="a padding mask hides the padding",
    fault="inverted padding mask",
    priority=120,
    requires="Rows with padding: zero vectors at their ends, or a repeated token that occurs only "
    "at the ends of rows or only at their beginnings. Also one of: a mask passed to a torch "
    "attention module; attention weights in the graph of the loss; a network that can be copied "
    "for a probe.",
    contradicted_by="An output that depends on the token at another position.",
    abstains="Fewer than two rows are padded; the input has as many rows as positions, and padding "
    "in both dimensions, so that its layout is ambiguous; the network cannot be copied; or "
    "rows are the second dimension, and no torch attention module receives a mask.",
    settings=InvertedPaddingMaskSettings(),
    judge=_judge,
)
