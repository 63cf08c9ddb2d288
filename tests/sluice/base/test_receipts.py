"""A receipt about anything but the required subject is rejected."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sluice.base.errors import GateBlocked
from sluice.base.receipts import Receipt, require

SUBJECT = {"data": "d" * 64, "config": "c" * 64}
NOW = datetime(2025, 1, 1, tzinfo=UTC)


def receipt(**changes: Any) -> Receipt:
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


def test_passed_receipt_about_the_subject_is_returned() -> None:
    found = receipt()

    assert require(found, gate="poc", subject=SUBJECT) is found
    assert require(found, gate="poc", subject={"data": SUBJECT["data"]}) is found


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        (None, "required and missing"),
        (receipt(gate="promotion"), "got one of the promotion gate"),
        (receipt(passed=False, outcome="fail", reason="NaN loss."), "is fail: NaN loss"),
        (receipt(passed=False, outcome="pass"), "is pass"),
        (receipt(subject=SUBJECT | {"data": "e" * 64}), r"another data \(e{12}, now d{12}\)"),
        (receipt(subject={"data": "d" * 64}), r"another config \(none, now c{12}\)"),
    ],
)
def test_anything_else_blocks(found: Receipt | None, cause: str) -> None:
    with pytest.raises(GateBlocked, match=cause):
        require(found, gate="poc", subject=SUBJECT)


def test_the_cause_distinguishes_a_changed_digest_from_a_missing_one() -> None:
    for subject, cause in (
        (SUBJECT | {"config": "e" * 64}, "The config changed after the gate ran."),
        ({"data": "d" * 64}, "The receipt was written without a digest of the config."),
    ):
        with pytest.raises(GateBlocked) as caught:
            require(receipt(subject=subject), gate="poc", subject=SUBJECT)
        assert caught.value.cause == cause


def test_digest_does_not_depend_on_the_time() -> None:
    assert receipt().digest == receipt(decided_at=NOW + timedelta(days=1)).digest
    changes: list[dict[str, Any]] = [
        {"gate": "x"},
        {"outcome": "x"},
        {"passed": False},
        {"subject": {}},
        {"evidence": {}},
        {"reason": "x"},
    ]
    for change in changes:
        assert receipt(**change).digest != receipt().digest


def test_digest_survives_storage() -> None:
    stored = receipt().model_dump_json()

    assert Receipt.model_validate_json(stored).digest == receipt().digest
