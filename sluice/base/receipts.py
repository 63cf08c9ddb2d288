"""Receipts: a gate's decision as data, which later stages read and verify before they act.

A receipt identifies its subject by digest. ``require`` rejects a receipt that is missing, failed,
or about another subject. There is no override.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import Field

from sluice.base.digests import digest_json
from sluice.base.errors import GateBlocked
from sluice.base.settings import Record


class Receipt(Record):
    """Decision of one gate, with the digests of the data, config, code and model it is about."""

    gate: str = Field(description="raw_data, features, poc, search, promotion or approval.")
    outcome: str = Field(description="'pass', 'fail', 'insufficient', or a promotion verdict.")
    passed: bool
    subject: dict[str, str] = Field(description="Digest by role: data, config, code, model, ...")
    evidence: dict[str, Any] = Field(description="Measured numbers, as plain JSON.")
    reason: str = Field(description="Reason of the outcome, one sentence.")
    decided_at: datetime = Field(description="Time of the decision, UTC.")

    @property
    def digest(self) -> str:
        """Digest of all fields except the time: equal decisions have equal digests."""
        return digest_json(self.model_dump(mode="json", exclude={"decided_at"}))


def require(receipt: Receipt | None, *, gate: str, subject: Mapping[str, str]) -> Receipt:
    """Return the receipt if it passed and is about exactly ``subject``.

    Args:
        receipt: The stored receipt; None if it is missing.
        gate: Name of the gate that must have passed.
        subject: Digest by role of what the caller is about to use. Every role must match.

    Raises:
        GateBlocked: The receipt is missing, of another gate, not passed, or about another subject.
    """
    if receipt is None:
        raise GateBlocked(
            f"A receipt of the {gate} gate is required and missing.",
            fix=f"Run the {gate} gate first.",
        )
    if receipt.gate != gate:
        raise GateBlocked(
            f"A receipt of the {gate} gate is required, got one of the {receipt.gate} gate.",
            fix=f"Run the {gate} gate first.",
        )
    if not receipt.passed:
        raise GateBlocked(
            f"The outcome of the {gate} gate is {receipt.outcome}: {receipt.reason}",
            fix="Correct what the gate reports, then run the gate again.",
        )
    for role, digest in subject.items():
        if receipt.subject.get(role) != digest:
            raise GateBlocked(
                f"The {gate} receipt is about another {role} "
                f"({receipt.subject.get(role, 'none')[:12]}, now {digest[:12]}).",
                cause=f"The {role} changed after the gate ran.",
                fix=f"Run the {gate} gate again on the current {role}.",
            )
    return receipt
