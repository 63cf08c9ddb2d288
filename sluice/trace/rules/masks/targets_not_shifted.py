"""Detects causal networks that are trained to return the token that they receive."""

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace


class TargetsNotShiftedSettings(Settings):
    """Thresholds of the rule ``TARGETS_NOT_SHIFTED``."""

    min_same_position_effect: float = Field(
        1e-3,
        gt=0,
        description="A finding requires that an output changes by more than this share of the "
        "largest output if the input token at the same position changes. A smaller change may be "
        "a rounding error.",
    )
    max_later_token_effect: float = Field(
        1e-4,
        ge=0,
        description="A network counts as causal if its outputs change by at most this share of "
        "the largest output when only input tokens at later positions change.",
    )


def _judge(rule: Rule[TargetsNotShiftedSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    names = {n.index: n.name for m in trace.memberships for n in m.networks}
    return tuple(
        rule.finding(
            severity="error",
            step=probe.step + 1,
            what=f"{names.get(probe.network, 'a network')}: its targets are the input tokens at "
            "the same positions, and each output depends on the token at its own position "
            f"({probe.largest_effect:.1%} of the largest output) but not on later tokens.",
            cause="The targets are not shifted: the network can copy its input and does not learn "
            "to predict the next token.",
            fix="Use the tokens from the second one on as targets: logits[:, :-1] with ids[:, 1:].",
            same_position_effect=probe.largest_effect,
        )
        for probe in trace.probes
        if probe.probe == "own tokens"
        and probe.largest_effect > rule.settings.min_same_position_effect
        and probe.earlier_effect <= rule.settings.max_later_token_effect
    )


TARGETS_NOT_SHIFTED = Rule(
    name="a causal network is not trained to return its own input",
    fault="targets not shifted",
    priority=135,
    requires="A loss whose targets are the input tokens of a network, and a network that can be "
    "copied for a probe.",
    contradicted_by="Outputs that do not change when the token at the same position changes, "
    "because the network shifts its input itself.",
    abstains="An output also depends on later tokens, as in an autoencoder, or some targets differ "
    "from the input, as for masked tokens.",
    settings=TargetsNotShiftedSettings(),
    judge=_judge,
)
