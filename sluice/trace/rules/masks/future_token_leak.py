"""Detects networks that predict the next token or value, but whose outputs depend on later ones."""

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
        description="Minimum change of an output, relative to the largest output, for a finding. "
        "Smaller changes may be rounding.",
    )


def _judge(rule: Rule[FutureTokenLeakSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    names = {n.index: n.name for m in trace.memberships for n in m.networks}
    return tuple(
        rule.finding(
            severity="error",
            step=probe.step + 1,
            what=f"{names.get(probe.network, 'a network')}: its targets are its input shifted by "
            f"one position, but replacing the last {pluralize(probe.changed, 'position')} of the "
            f"input changes earlier outputs by {probe.largest_effect:.1%}.",
            cause="Each output sees the token or value that it predicts: the loss decreases, but "
            "the network cannot predict new ones.",
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
    requires="A loss whose targets are the input shifted by one position, as the next tokens of a "
    "text or the next values of a series; and a copy of the network that can be probed.",
    contradicted_by="A network that may use later inputs, such as a bidirectional one that is not "
    "used to predict new tokens or values.",
    abstains="The change of the outputs is small enough to be rounding.",
    settings=FutureTokenLeakSettings(),
    judge=_judge,
)
