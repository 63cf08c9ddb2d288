"""Detects recurrent and attention layers that treat the rows of a batch as positions."""

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.parameters import list_names


class MixedRowsSettings(Settings):
    """Thresholds of the rule ``MIXED_ROWS``."""

    min_effect: float = Field(
        1e-3,
        gt=0,
        description="A finding requires that the output of a row changes by more than this share "
        "of the largest output if other rows of the batch change. A smaller change may be a "
        "rounding error.",
    )


def _judge(rule: Rule[MixedRowsSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    names = {n.index: n.name for m in trace.memberships for n in m.networks}
    return tuple(
        rule.finding(
            # A matrix is one sequence for torch: its rows may be related intentionally.
            severity="confirm" if probe.is_matrix else "error",
            step=probe.step + 1,
            what=f"{names.get(probe.network, 'a network')}: other rows of the batch change the "
            f"output of a row by {probe.largest_effect:.1%} of the largest output, in evaluation "
            f"mode. Layers that read sequences: {list_names(probe.modules)}.",
            cause="These layers treat the first dimension of their input as positions, but the "
            "dimension contains rows of the batch: the network reads unrelated rows as a sequence.",
            fix="Create the layers with batch_first=True, and give them inputs of shape (rows, "
            "positions, features).",
            num_changed=probe.changed,
            largest_effect=probe.largest_effect,
        )
        for probe in trace.probes
        if probe.probe == "rows" and probe.largest_effect > rule.settings.min_effect
    )


MIXED_ROWS = Rule(
    name="no output depends on other rows of the batch",
    fault="batch dependence",
    priority=145,
    requires="A recurrent or attention layer that has batch_first=False or is in a network that "
    "receives a matrix of floats, which torch treats as one sequence; a loss with one target per "
    "row; and a network that can be copied for a probe.",
    contradicted_by="Rows that belong together intentionally, such as the nodes of one graph.",
    abstains="The output has a dimension for positions; or a batch has as many rows as positions, "
    "so that the two dimensions cannot be distinguished.",
    settings=MixedRowsSettings(),
    judge=_judge,
)
