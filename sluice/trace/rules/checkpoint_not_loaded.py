"""Do the weights of a checkpoint reach the network?"""

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    missed = [
        load
        for load in trace.loads
        if load.what == "network" and not load.num_loaded and load.num_missing
    ]
    if not missed:
        return ()
    first = missed[0]
    return (
        rule.finding(
            severity="error",
            step=first.step + 1,
            what=f"{first.kind}.load_state_dict took 0 of {first.num_keys} keys; "
            f"{first.num_missing} of its own were not among them.",
            cause="The names do not match, such as 'module.' before each after data parallel "
            "training, and strict=False hides it: the network keeps its random weights.",
            fix="Take the prefix off the keys and load with strict=True.",
            num_keys=first.num_keys,
            num_missing=first.num_missing,
            num_loads=len(missed),
        ),
    )


CHECKPOINT_NOT_LOADED = Rule(
    name="the weights of a checkpoint reach the network",
    fault="checkpoint not loaded",
    requirement="TRACE-16",
    requires="A load_state_dict of a network.",
    contradicted_by="Weights that are copied by hand after it.",
    abstains="Some keys were taken.",
    judge=_judge,
)
