"""What rules of losses share: which calls count, and how they are told."""

from collections.abc import Iterable, Sequence

from sluice.trace.evidence.losses import LossFact
from sluice.trace.evidence.trace import Trace

CLASSES = ("cross_entropy", "nll_loss")


def learning_losses(trace: Trace, *kinds: str) -> tuple[LossFact, ...]:
    """Return the calls of some loss functions that a network learns from."""
    return tuple(f for f in trace.losses if f.is_learning and f.kind in kinds)


def network_name(trace: Trace, network: int) -> str:
    """Return what to call a network."""
    known = () if trace.membership is None else trace.membership.networks
    return next((n.name for n in known if n.index == network), "the network")


def by_kind(facts: Iterable[LossFact]) -> dict[tuple[str, int], list[LossFact]]:
    """Return calls by function and network."""
    found: dict[tuple[str, int], list[LossFact]] = {}
    for fact in facts:
        found.setdefault((fact.kind, fact.network), []).append(fact)
    return found


def numbers(values: Sequence[int], total: int) -> str:
    """Return the first of some numbers and how many more there are."""
    more = total - len(values)
    return ", ".join(map(str, values)) + (f" and {more} more" if more > 0 else "")
