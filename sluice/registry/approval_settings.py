"""Settings of the approval that a promotion waits for, and their record in promotion receipts."""

from collections.abc import Mapping
from datetime import timedelta

from pydantic import Field, ValidationError

from sluice.base.errors import IntegrityError
from sluice.base.receipts import Receipt
from sluice.base.settings import Settings

_APPROVAL_ROLE = "approval"
"""Role in a promotion receipt's subject whose value is the validity period of an approval [h]."""

_MAX_EXPIRES_H = 8760
"""Maximum of ``expires_h``: one year [h]."""


class ApprovalSettings(Settings):
    """Settings of the approval for which a candidate waits after the verdict PROMOTE."""

    required: bool = Field(
        False,
        description="Whether a candidate with the verdict PROMOTE waits for an approval by "
        "'sluice registry approve MODEL VERSION --reason TEXT'.",
    )
    expires_h: float = Field(
        72.0,
        gt=0,
        le=_MAX_EXPIRES_H,
        description="Time for which an approval is valid. The promotion or the start of the "
        "rollout must take place within this time [h].",
    )

    @property
    def lifetime(self) -> timedelta:
        """Time for which an approval is valid."""
        return timedelta(hours=self.expires_h)

    @property
    def subject_entry(self) -> Mapping[str, str]:
        """Entry of a promotion receipt's subject that requires an approval.

        Its value is the validity period of an approval [h]. The mapping is empty if no approval is
        required. The receipt records the requirement, so that commands without the pipeline's
        settings apply it too.
        """
        return {_APPROVAL_ROLE: repr(self.expires_h)} if self.required else {}


def strictest_settings(
    settings: ApprovalSettings | None, promotion_receipt: Receipt
) -> ApprovalSettings:
    """Return the settings of the approval that a promotion requires.

    The pipeline's settings and the promotion receipt may both require an approval. The shorter
    validity period then applies. If neither requires an approval, the result has
    ``required=False``.

    Args:
        settings: Settings of the pipeline; None for a command that does not know them.
        promotion_receipt: Receipt that records the settings of the verdict.

    Raises:
        IntegrityError: The receipt has an invalid requirement.
    """
    required_settings = [
        each for each in (settings, _recorded_settings(promotion_receipt)) if each and each.required
    ]
    return min(required_settings, key=lambda each: each.expires_h, default=ApprovalSettings())


def _recorded_settings(promotion_receipt: Receipt) -> ApprovalSettings | None:
    recorded_h = promotion_receipt.subject.get(_APPROVAL_ROLE)
    if recorded_h is None:
        return None
    try:
        return ApprovalSettings(required=True, expires_h=float(recorded_h))
    except (ValueError, ValidationError) as error:
        raise IntegrityError(
            f"The promotion receipt {promotion_receipt.digest[:12]} requires an approval that is "
            f"valid for {recorded_h[:40]!r} hours, which must be a number above 0 and at most "
            f"{_MAX_EXPIRES_H}.",
            cause="The receipt was not written by the promotion gate.",
            fix="Evaluate the candidate on a newer window.",
        ) from error
