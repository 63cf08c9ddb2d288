"""Loss-function calls used for training, and formatting of names and numbers for messages."""

from collections.abc import Iterable, Sequence

from sluice.trace.records.losses import LossRecord
from sluice.trace.records.trace import Trace

CLASS_LOSSES = ("cross_entropy", "nll_loss")
"""Loss functions whose targets are classes."""


def training_loss_calls(trace: Trace, *kinds: str) -> tuple[LossRecord, ...]:
    """Return the recorded calls of these loss functions whose result requires gradients."""
    return tuple(r for r in trace.losses if r.is_learning and r.kind in kinds)


def network_name(trace: Trace, network: int) -> str:
    """Return the display name of a network."""
    networks = () if trace.membership is None else trace.membership.networks
    return next((n.name for n in networks if n.index == network), "the network")


def group_by_function(calls: Iterable[LossRecord]) -> dict[tuple[str, int], list[LossRecord]]:
    """Return the calls grouped by loss function and network."""
    groups: dict[tuple[str, int], list[LossRecord]] = {}
    for record in calls:
        groups.setdefault((record.kind, record.network), []).append(record)
    return groups


def list_numbers(values: Sequence[int], total: int) -> str:
    """Return the values as text, followed by "and N more" if ``total`` exceeds their number."""
    num_more = total - len(values)
    return ", ".join(map(str, values)) + (f" and {num_more} more" if num_more > 0 else "")
