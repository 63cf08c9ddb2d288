"""Detects checkpoints of which no key matches the network."""

from sluice.base.pluralize import pluralize
from sluice.trace.finding import NoThresholds, Rule, TraceFinding
from sluice.trace.records.trace import Trace


def _judge(rule: Rule[NoThresholds], trace: Trace) -> tuple[TraceFinding, ...]:
    unmatched_loads = [
        load
        for load in trace.loads
        if load.role == "network" and not load.num_loaded and load.num_missing
    ]
    if not unmatched_loads:
        return ()
    first_load = unmatched_loads[0]
    return (
        rule.finding(
            severity="error",
            step=first_load.step + 1,
            what=f"{first_load.kind}.load_state_dict matched 0 of "
            f"{pluralize(first_load.num_keys, 'key')}; "
            f"{pluralize(first_load.num_missing, 'key')} of the network "
            f"{'was' if first_load.num_missing == 1 else 'were'} missing from the checkpoint.",
            cause="The names differ, for example by the prefix 'module.' after data-parallel "
            "training, and strict=False hides the mismatch: the network keeps its initial weights.",
            fix="Remove the prefix from the keys and load with strict=True.",
            num_keys=first_load.num_keys,
            num_missing=first_load.num_missing,
            num_unmatched_loads=len(unmatched_loads),
        ),
    )


CHECKPOINT_NOT_LOADED = Rule(
    name="the weights of a checkpoint are loaded into the network",
    fault="checkpoint not loaded",
    priority=310,
    requires="A call of load_state_dict of a network.",
    contradicted_by="Weights that the program itself copies into the network afterwards.",
    abstains="Some keys matched.",
    settings=NoThresholds(),
    judge=_judge,
)
