"""A gate's decision as data: whoever acts on it later re-reads it (never only a check).

A receipt names what it is about by digest. ``require`` refuses one that is missing, failed, or
about something else. There is no way to override it.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import Field

from sluice.base.digests import digest_json
from sluice.base.errors import GateBlocked
from sluice.base.settings import Record


class Receipt(Record):
    """What one gate decided about which data, config, code and model."""

    gate: str = Field(description="raw_data, features, poc, search, promotion or approval.")
    outcome: str = Field(description="'pass', 'fail', 'insufficient', or a promotion verdict.")
    passed: bool
    subject: dict[str, str] = Field(description="Digest by role: data, config, code, model, ...")
    evidence: dict[str, Any] = Field(description="The numbers, as plain JSON.")
    reason: str = Field(description="One sentence for people.")
    decided_at: datetime = Field(description="UTC.")

    @property
    def digest(self) -> str:
        """Digest of everything but the time: the same decision has the same name."""
        return digest_json(self.model_dump(mode="json", exclude={"decided_at"}))


def require(receipt: Receipt | None, *, gate: str, subject: Mapping[str, str]) -> Receipt:
    """Return the receipt when it passed and is about exactly ``subject``.

    Args:
        receipt: The receipt as stored, or None when there is none.
        gate: Name of the gate that must have passed.
        subject: Digest by role that the caller is about to act on. Every role must agree.

    Raises:
        GateBlocked: Missing, of another gate, not passed, or about something else.
    """
    if receipt is None:
        raise GateBlocked(
            f"A receipt of the {gate} gate is required, and there is none.",
            fix=f"Run the {gate} gate first.",
        )
    if receipt.gate != gate:
        raise GateBlocked(
            f"A receipt of the {gate} gate is required, got one of the {receipt.gate} gate.",
            fix=f"Run the {gate} gate first.",
        )
    if not receipt.passed:
        raise GateBlocked(
            f"The {gate} gate said {receipt.outcome}: {receipt.reason}",
            fix="Fix what the gate names, then run the gate again.",
        )
    for role, digest in subject.items():
        if receipt.subject.get(role) != digest:
            raise GateBlocked(
                f"The {gate} receipt is about another {role} "
                f"({receipt.subject.get(role, 'none')[:12]}, now {digest[:12]}).",
                cause=f"The {role} changed after the gate ran.",
                fix=f"Run the {gate} gate again on what is to be used.",
            )
    return receipt
