"""Detects next-token networks whose outputs depend on later tokens."""

from pydantic import Field

from sluice.base.pluralize import pluralize
from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace


class FutureTokenLeakSettings(Settings):
    """Thresholds of the rule ``FUTURE_TOKEN_LEAK``."""

    min_effect: float = Field(
        1e-3,
        gt=0,
        description="Change of an output, relative to the largest output, above which it is "
        "reported; smaller changes may be rounding.",
    )


def _judge(rule: Rule[FutureTokenLeakSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    names = {n.index: n.name for m in trace.memberships for n in m.networks}
    return tuple(
        rule.finding(
            severity="error",
            step=probe.step + 1,
            what=f"{names.get(probe.network, 'a network')}: its targets are its input shifted by "
            "one token, but replacing the tokens at the last "
            f"{pluralize(probe.changed, 'position')} changes earlier outputs by "
            f"{probe.largest_effect:.1%}.",
            cause="Each output sees the token that it predicts: the loss decreases, but the "
            "network cannot generate text.",
            fix="Use a causal mask in the attention, or restrict the layer to past positions.",
            num_changed=probe.changed,
            largest_effect=probe.largest_effect,
        )
        for probe in trace.probes
        if probe.probe == "later tokens" and probe.largest_effect > rule.settings.min_effect
    )


FUTURE_TOKEN_LEAK = Rule(
    name="no output depends on a later token",
    fault="future token leak",
    priority=130,
    requires="A cross entropy whose targets are the next tokens of the input, and a copy of the "
    "network that can be probed.",
    contradicted_by="Outputs that do not change when later tokens change.",
    abstains="Targets are not the next tokens, or the network cannot be copied.",
    settings=FutureTokenLeakSettings(),
    judge=_judge,
)
