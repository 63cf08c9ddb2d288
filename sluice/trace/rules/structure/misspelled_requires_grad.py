"""Detects attributes that look like requires_grad = False but do not freeze anything."""

from sluice.trace.finding import NoThresholds, Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.forward_passes import trained_networks
from sluice.trace.rules._helpers.parameters import first_misspelled_step, list_names


def _judge(rule: Rule[NoThresholds], trace: Trace) -> tuple[TraceFinding, ...]:
    membership = trace.membership
    if membership is None:
        return ()
    trained_parameters = {
        p.index for p in membership.parameters if p.is_trainable
    } & membership.optimized
    findings = []
    for network in trained_networks(trace):
        attributes = [
            a
            for a in network.misspelled_attributes
            if not a.value and trained_parameters & set(a.parameters)
        ]
        if not attributes:
            continue
        findings.append(
            rule.finding(
                severity="confirm",
                step=first_misspelled_step(trace, attributes),
                what=f"{network.name}: {list_names([a.owner for a in attributes])} "
                f"{'has' if len(attributes) == 1 else 'have'} {attributes[0].attribute} = False, "
                f"but {'is' if len(attributes) == 1 else 'are'} still trained.",
                cause="torch reads only the requires_grad attribute of parameters; another name, "
                "or the same name on a module, has no effect.",
                fix="Call requires_grad_(False) on the module or parameter.",
                num_trained_parameters=len(
                    trained_parameters & {p for a in attributes for p in a.parameters}
                ),
            )
        )
    return tuple(findings)


MISSPELLED_REQUIRES_GRAD = Rule(
    name="layers meant to be frozen do not change",
    fault="misspelled requires_grad",
    priority=170,
    requires="An attribute of a module or parameter, with a name that resembles requires_grad.",
    contradicted_by="An unrelated attribute of the program with the same name.",
    abstains="None of the parameters that the attribute is meant for is trained: they are frozen, "
    "or no optimizer contains them.",
    settings=NoThresholds(),
    judge=_judge,
)
