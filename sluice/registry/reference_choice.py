"""Chooses the version that a candidate is compared with."""

from sluice.registry.ledger import Ledger
from sluice.registry.lineage import BASELINE
from sluice.registry.records import Version


def choose_reference(ledger: Ledger, model: str, *, candidate: str, window: str) -> Version | None:
    """Return the version that a candidate is compared with; None for the baseline.

    Usually the result is the version in production. If the candidate itself is in production, the
    result is the reference of the recorded decision on the candidate and this window. The gate then
    returns the same decision again. If no such decision is recorded, the reference is the baseline.
    """
    production = ledger.production(model)
    if production is None or production.candidate != candidate:
        return production
    decision = ledger.latest_decision(model, candidate=candidate, window=window)
    if decision is None or decision.subject["reference"] == BASELINE:
        return None
    return ledger.version_of(model, decision.subject["reference"])
