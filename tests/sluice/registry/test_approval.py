"""Promotions and rollouts that require an approval by a person (APPR-1)."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ApprovalMissing, GateBlocked, IntegrityError, SettingsError
from sluice.registry.approval_settings import ApprovalSettings, strictest_settings
from sluice.registry.ledger import Ledger
from sluice.registry.rollouts import RolloutLedger
from sluice.registry.signing import SigningKey
from sluice.rollout.settings import RolloutSettings
from tests.sluice.registry.ledger_samples import (
    MODEL,
    Clock,
    poc_receipt,
    promote_chain,
    promotion_receipt,
    register_sample,
    sample_lineage,
)
from tests.sluice.registry.test_promotion_rules import pass_all_steps
from tests.sluice.registry.test_roles import make_personal_key, write_key_list

REQUIRED = ApprovalSettings(required=True, expires_h=72)
HOUR = timedelta(hours=1)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, store: ArtifactStore, clock: Clock) -> Iterator[RolloutLedger]:
    """Version 1 is in production; the verdicts on versions 2 and 3 against it are PROMOTE."""
    with RolloutLedger.open(f"sqlite:///{tmp_path / 'r.db'}", clock=clock) as opened:
        promote_chain(opened, store, 1)
        for salt in (2, 3):
            first = opened.version(MODEL, 1).candidate
            register_sample(opened, store, salt=salt, reference=first)
        yield opened


def promote(
    ledger: Ledger, store: ArtifactStore, *, approval_settings: ApprovalSettings | None = REQUIRED
) -> None:
    ledger.promote(
        MODEL,
        2,
        expected=1,
        actor="job",
        reason="r",
        store=store,
        approval_settings=approval_settings,
    )


def start_rollout(ledger: RolloutLedger) -> None:
    started = ledger.start_rollout(
        MODEL, 2, RolloutSettings(), actor="job", reason="r", approval_settings=REQUIRED
    )
    pass_all_steps(ledger, started)


def test_promotion_and_rollout_are_blocked_until_the_version_is_approved(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    ledger.approve(MODEL, 3, actor="ada", reason="reviewed")  # another candidate

    message = (
        rf"{MODEL} version 2 waits for an approval, which is valid for 72 h\. No approval of "
        rf"this version is recorded\. Run: sluice registry approve {MODEL} 2 --reason"
    )
    for act in (
        lambda: ledger.require_promotable(MODEL, 2, approval_settings=REQUIRED),
        lambda: promote(ledger, store),
        lambda: start_rollout(ledger),
    ):
        with pytest.raises(ApprovalMissing) as raised:
            act()
        assert raised.match(message)
    refused = [each.action for each in ledger.audit() if each.outcome == "refused"]
    assert refused == ["promote", "rollout"]

    receipt = ledger.approve(MODEL, 2, actor="ada", reason="reviewed the errors of March")
    ledger.require_promotable(MODEL, 2, approval_settings=REQUIRED)
    promote(ledger, store)

    assert ledger.production_number(MODEL) == 2
    entry = ledger.history(MODEL)[-2]
    assert (entry.action, entry.to_version, entry.actor, entry.reason, entry.receipt) == (
        "approve",
        2,
        "ada",
        "reviewed the errors of March",
        receipt.digest,
    )
    approvals = [each for each in ledger.audit() if each.action == "approve"]
    assert [(each.actor, each.to_version) for each in approvals] == [("ada", 3), ("ada", 2)]
    assert ledger.verify(None, store=store) == []


def test_expired_approval_is_rejected_and_can_be_renewed_with_the_same_reason(
    ledger: RolloutLedger, store: ArtifactStore, clock: Clock
) -> None:
    ledger.approve(MODEL, 2, actor="ada", reason="reviewed")
    approved_at = clock.now
    clock.now = approved_at + 72 * HOUR - timedelta(seconds=2)
    ledger.require_promotable(MODEL, 2, approval_settings=REQUIRED)  # one second before expiry
    shorter = ApprovalSettings(required=True, expires_h=1)
    with pytest.raises(ApprovalMissing, match="valid for 1 h"):
        ledger.require_promotable(MODEL, 2, approval_settings=shorter)

    clock.now = approved_at + 72 * HOUR - timedelta(seconds=1)
    with pytest.raises(ApprovalMissing, match="approval by ada expired at 2025-03-17 09:2"):
        ledger.require_promotable(MODEL, 2, approval_settings=REQUIRED)
    ledger.approve(MODEL, 2, actor="ada", reason="reviewed")
    promote(ledger, store)

    assert ledger.production_number(MODEL) == 2


def test_approval_does_not_count_after_production_was_moved(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    ledger.approve(MODEL, 2, actor="ada", reason="reviewed")
    ledger.promote(MODEL, 3, expected=1, actor="ada", reason="r", store=store)
    ledger.rollback(MODEL, expected=3, actor="ada", reason="errors", store=store)

    with pytest.raises(ApprovalMissing, match=r"by ada at .* is about another verdict or"):
        promote(ledger, store)


@pytest.mark.parametrize("outcome", ["REJECT", "EQUIVALENT", "INCONCLUSIVE"])
def test_candidate_without_verdict_promote_cannot_be_approved(
    outcome: str, ledger: RolloutLedger, store: ArtifactStore
) -> None:
    lineage = sample_lineage(store, salt=4)
    reference = ledger.version(MODEL, 1).candidate
    decision = promotion_receipt(lineage.candidate, reference=reference, outcome=outcome)
    ledger.register(MODEL, lineage, [poc_receipt(), decision])

    with pytest.raises(GateBlocked, match=outcome):
        ledger.approve(MODEL, 4, actor="ada", reason="I like it")

    assert not ledger.approval_status(MODEL, 4, approval_settings=REQUIRED).required
    assert [each.action for each in ledger.history(MODEL) if each.to_version == 4] == ["register"]


def test_requirement_recorded_in_the_verdict_applies_without_settings(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    """``sluice registry promote`` reads no pipeline file; changing the file later has no effect."""
    lineage = sample_lineage(store, salt=4)
    reference = ledger.version(MODEL, 1).candidate
    subject = dict(ApprovalSettings(required=True, expires_h=5).subject_entry)
    decision = promotion_receipt(lineage.candidate, reference=reference, subject=subject)
    ledger.register(MODEL, lineage, [poc_receipt(), decision])

    for approval_settings in (None, ApprovalSettings()):
        with pytest.raises(ApprovalMissing, match=r"version 4 waits .* valid for 5 h"):
            ledger.promote(
                MODEL,
                4,
                expected=1,
                actor="a",
                reason="r",
                store=store,
                approval_settings=approval_settings,
            )
    assert strictest_settings(REQUIRED, decision).expires_h == 5
    assert not ApprovalSettings().subject_entry
    promote(ledger, store, approval_settings=None)  # the verdict on version 2 requires none


def test_rollout_is_approved_once_at_its_start_or_else_at_its_end(
    ledger: RolloutLedger, store: ArtifactStore, clock: Clock
) -> None:
    ledger.approve(MODEL, 2, actor="ada", reason="reviewed")
    start_rollout(ledger)
    clock.now += 100 * HOUR

    def finish() -> str:
        return ledger.finish_rollout(
            MODEL, actor="job", store=store, approval_settings=REQUIRED
        ).rollout.phase

    assert finish() == "promoted"
    lineage = sample_lineage(store, salt=4)
    reference = ledger.version(MODEL, 2).candidate
    decision = promotion_receipt(lineage.candidate, reference=reference)
    ledger.register(MODEL, lineage, [poc_receipt(), decision])
    # Started without the requirement, which was added during the rollout.
    pass_all_steps(ledger, ledger.start_rollout(MODEL, 4, RolloutSettings(), actor="a", reason="r"))
    with pytest.raises(ApprovalMissing, match="version 4 waits"):
        finish()
    rollout = ledger.rollout(MODEL)
    assert rollout is not None
    assert rollout.phase == "awaiting_promotion"
    ledger.approve(MODEL, 4, actor="ada", reason="reviewed")
    assert finish() == "promoted"


def test_signed_registry_counts_only_signed_approvals(tmp_path: Path, store: ArtifactStore) -> None:
    url = f"sqlite:///{tmp_path / 'r.db'}"
    keys = {name: make_personal_key(tmp_path / f"{name}.key") for name in ("ada", "job")}
    write_key_list(
        tmp_path, ["actors:", *(f"  {name}: {public}" for name, (_, public) in keys.items())]
    )

    def open_as(name: str) -> Ledger:
        return Ledger.open(url, clock=Clock(), key=keys[name][0])

    with open_as("job") as ledger:
        lineage = sample_lineage(store, salt=1)
        receipts = [poc_receipt(), promotion_receipt(lineage.candidate)]
        ledger.register(MODEL, lineage, receipts, actor="job")
    with Ledger.open(url, clock=Clock()) as ledger, pytest.raises(SettingsError, match="signed"):
        ledger.approve(MODEL, 1, actor="ada", reason="r")
    with open_as("ada") as ledger:
        signed = ledger.approve(MODEL, 1, actor="ada", reason="reviewed")
    later = signed.subject | {"approved_at": "2035-01-01T00:00:00+00:00"}
    forged = [
        signed.model_copy(update={"evidence": {"actor": "ada"}}),
        signed.model_copy(update={"subject": later}),
    ]
    with open_as("job") as ledger:
        ledger.register(MODEL, lineage, forged, actor="job")
        status = ledger.approval_status(MODEL, 1, approval_settings=REQUIRED)

    assert status.approval is not None
    assert status.approval.approved_at is not None
    assert (status.approval.actor, status.approval.approved_at.year) == ("ada", 2025)
    assert status.problem == ""


def test_verify_reports_promotion_without_its_required_approval(
    ledger: RolloutLedger, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lineage = sample_lineage(store, salt=4)
    reference = ledger.version(MODEL, 1).candidate
    decision = promotion_receipt(
        lineage.candidate, reference=reference, subject=dict(REQUIRED.subject_entry)
    )
    ledger.register(MODEL, lineage, [poc_receipt(), decision])
    with monkeypatch.context() as patched:
        # Simulates a modified client.
        patched.setattr("sluice.registry.approval.require_approval", lambda *_, **__: None)
        ledger.promote(MODEL, 4, expected=1, actor="eve", reason="r", store=store)

    (finding,) = ledger.verify(None, store=store)

    assert "was made without the approval that its verdict requires" in finding.what


@pytest.mark.parametrize("recorded", ["soon", "nan", "0", "-1"])
def test_invalid_requirement_in_a_receipt_is_rejected(recorded: str) -> None:
    receipt = promotion_receipt("c" * 64, subject={"approval": recorded})

    with pytest.raises(IntegrityError, match="must be a number above 0"):
        strictest_settings(None, receipt)


@pytest.mark.parametrize("hours", [0, -1, 9000, float("inf")])
def test_expiry_out_of_range_is_rejected(hours: float) -> None:
    with pytest.raises(SettingsError, match="expires_h"):
        ApprovalSettings.parse({"required": True, "expires_h": hours}, where="x.yaml")


def test_approval_works_in_a_registry_with_one_shared_key(
    tmp_path: Path, store: ArtifactStore
) -> None:
    """A shared key identifies no actor, so the approval is only signed as a line of the log."""
    key = SigningKey(b"k" * 32)
    with Ledger.open(f"sqlite:///{tmp_path / 'r.db'}", clock=Clock(), key=key) as ledger:
        register_sample(ledger, store, salt=1)
        ledger.approve(MODEL, 1, actor="ada", reason="reviewed")
        ledger.promote(
            MODEL, 1, expected=None, actor="j", reason="r", store=store, approval_settings=REQUIRED
        )

        assert ledger.production_number(MODEL) == 1
        assert ledger.verify(None, store=store, key=key) == []
