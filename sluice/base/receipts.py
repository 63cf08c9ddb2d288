"""Defines receipts, which store a gate's decision for the stages that require it.

A receipt identifies its subject, such as the data and the config, by digests. A later stage calls
``require``, which raises if the receipt is missing, not passed, or about another subject. No option
skips this check.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import Field

from sluice.base.digests import digest_json
from sluice.base.errors import GateBlocked
from sluice.base.settings import Record


class Receipt(Record):
    """Decision of one gate, with the digests of the data, config, code or model it is about."""

    gate: str = Field(
        description="Name of the gate: raw_data, features, poc, search, baseline, promotion or "
        "approval."
    )
    outcome: str = Field(
        description="Outcome of the gate: 'pass', 'fail', 'insufficient', or a verdict of the "
        "promotion gate."
    )
    passed: bool
    subject: dict[str, str] = Field(
        description="Digests of what was evaluated, by role: data, config, code, model and others."
    )
    evidence: dict[str, Any] = Field(description="Measured numbers, as plain JSON.")
    reason: str = Field(description="Reason of the outcome in one sentence.")
    decided_at: datetime = Field(description="Time of the decision, UTC.")

    @property
    def digest(self) -> str:
        """Digest of all fields except the time, so that equal decisions have equal digests."""
        return digest_json(self.model_dump(mode="json", exclude={"decided_at"}))


def require(receipt: Receipt | None, *, gate: str, subject: Mapping[str, str]) -> Receipt:
    """Return the receipt if it passed and is about ``subject``.

    Args:
        receipt: The stored receipt; None if it is missing.
        gate: Name of the gate that must have passed.
        subject: Digests of what the caller is about to use, by role. The digest of every role must
            be equal in the receipt, which may have more roles.

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
            f"A receipt of the {gate} gate is required, got a receipt of the {receipt.gate} gate.",
            fix=f"Run the {gate} gate first.",
        )
    if not receipt.passed:
        raise GateBlocked(
            f"The outcome of the {gate} gate is {receipt.outcome}: {receipt.reason}",
            fix="Correct the problem that the gate reports, then run the gate again.",
        )
    for role, digest in subject.items():
        if receipt.subject.get(role) != digest:
            raise GateBlocked(
                f"The {gate} receipt is about another {role} "
                f"({receipt.subject.get(role, 'none')[:12]}, now {digest[:12]}).",
                cause=f"The {role} changed after the gate ran."
                if role in receipt.subject
                else f"The receipt was written without a digest of the {role}.",
                fix=f"Run the {gate} gate again on the current {role}.",
            )
    return receipt
