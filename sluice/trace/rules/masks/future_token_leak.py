"""Detects networks that predict the next token or value, but read later inputs."""

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
        description="A finding requires that an output changes by more than this share of the "
        "largest output if later inputs change. A smaller change may be a rounding error.",
    )


def _judge(rule: Rule[FutureTokenLeakSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    names = {n.index: n.name for m in trace.memberships for n in m.networks}
    return tuple(
        rule.finding(
            severity="error",
            step=probe.step + 1,
            what=f"{names.get(probe.network, 'a network')}: its targets are its input shifted by "
            f"one position, but replacing the last {pluralize(probe.changed, 'position')} of the "
            f"input changes earlier outputs by {probe.largest_effect:.1%} of the largest output.",
            cause="Each output depends on the token or value that it should predict. The loss "
            "decreases, but the network cannot predict new tokens or values.",
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
    "text or the next values of a series; and a network that can be copied for a probe.",
    contradicted_by="A network that may use later inputs, such as a bidirectional network that is "
    "not used to predict new tokens or values.",
    abstains="The change of the outputs is small enough to be a rounding error.",
    settings=FutureTokenLeakSettings(),
    judge=_judge,
)
