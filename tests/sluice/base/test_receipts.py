"""A gate's receipt is accepted only if it passed and matches the required subject."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sluice.base.errors import GateBlocked
from sluice.base.receipts import Receipt, require

SUBJECT = {"data": "d" * 64, "config": "c" * 64}
NOW = datetime(2025, 1, 1, tzinfo=UTC)


def make_receipt(**changes: Any) -> Receipt:
    values: dict[str, Any] = {
        "gate": "poc",
        "outcome": "pass",
        "passed": True,
        "subject": SUBJECT,
        "evidence": {"loss": 0.5, "nan": float("nan"), "nested": {"list": [1, 2.5]}},
        "reason": "All held.",
        "decided_at": NOW,
    }
    return Receipt(**(values | changes))


def test_passed_receipt_of_the_subject_is_returned() -> None:
    receipt = make_receipt()

    assert require(receipt, gate="poc", subject=SUBJECT) is receipt
    assert require(receipt, gate="poc", subject={"data": SUBJECT["data"]}) is receipt


@pytest.mark.parametrize(
    ("receipt", "cause"),
    [
        (None, "required and missing"),
        (make_receipt(gate="promotion"), "got a receipt of the promotion gate"),
        (make_receipt(passed=False, outcome="fail", reason="NaN loss."), "is fail: NaN loss"),
        (make_receipt(passed=False, outcome="pass"), "is pass"),
        (make_receipt(subject=SUBJECT | {"data": "e" * 64}), r"another data \(e{12}, now d{12}\)"),
        (make_receipt(subject={"data": "d" * 64}), r"another config \(none, now c{12}\)"),
    ],
)
def test_missing_failed_or_unrelated_receipt_blocks(receipt: Receipt | None, cause: str) -> None:
    with pytest.raises(GateBlocked, match=cause):
        require(receipt, gate="poc", subject=SUBJECT)


def test_cause_distinguishes_changed_and_missing_digest() -> None:
    for subject, cause in (
        (SUBJECT | {"config": "e" * 64}, "The config changed after the gate ran."),
        ({"data": "d" * 64}, "The receipt was written without a digest of the config."),
    ):
        with pytest.raises(GateBlocked) as caught:
            require(make_receipt(subject=subject), gate="poc", subject=SUBJECT)
        assert caught.value.cause == cause


def test_digest_depends_on_every_field_except_the_time() -> None:
    assert make_receipt().digest == make_receipt(decided_at=NOW + timedelta(days=1)).digest
    changes: list[dict[str, Any]] = [
        {"gate": "x"},
        {"outcome": "x"},
        {"passed": False},
        {"subject": {}},
        {"evidence": {}},
        {"reason": "x"},
    ]
    for change in changes:
        assert make_receipt(**change).digest != make_receipt().digest


def test_digest_is_unchanged_by_serialization() -> None:
    stored = make_receipt().model_dump_json()

    assert Receipt.model_validate_json(stored).digest == make_receipt().digest
