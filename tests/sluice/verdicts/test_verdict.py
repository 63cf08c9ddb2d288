from datetime import UTC, datetime

import numpy as np
import pytest

from sluice.base import receipts
from sluice.base.errors import ContractError, GateBlocked
from sluice.evaluation.comparison import compare
from sluice.evaluation.settings import GateSettings
from sluice.verdicts.verdict import Verdict
from tests.sluice.evaluation.loss_samples import table, two_recipes

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUBJECT = {"data": "d", "config": "c", "code": "k"}


def verdict(gain: float) -> Verdict:
    pair = two_recipes(np.random.default_rng(6), rho=0.0, gain=gain)
    return compare(*pair, GateSettings(), horizon_rows=1, unit="nats")


def test_the_receipt_names_what_was_judged_and_lets_only_that_pass():
    receipt = verdict(1.0).receipt(SUBJECT, decided_at=NOW)

    wanted = SUBJECT | {"candidate": "candidate", "reference": "reference", "window": "window"}
    assert receipts.require(receipt, gate="promotion", subject=wanted) == receipt
    with pytest.raises(GateBlocked, match="about another candidate"):
        receipts.require(receipt, gate="promotion", subject={"candidate": "other"})


def test_only_promote_makes_a_receipt_that_passed():
    receipt = verdict(-1.0).receipt(SUBJECT, decided_at=NOW)

    assert (receipt.outcome, receipt.passed) == ("REJECT", False)
    with pytest.raises(GateBlocked, match="REJECT: Significantly worse"):
        receipts.require(receipt, gate="promotion", subject={})


def test_a_receipt_cannot_be_written_for_another_model():
    with pytest.raises(ContractError, match="must be that of the verdict, candidate, got other"):
        verdict(1.0).receipt({"candidate": "other"}, decided_at=NOW)


def test_the_same_decision_has_the_same_digest_at_another_time():
    later = NOW.replace(year=2027)

    first, second = (verdict(1.0).receipt(SUBJECT, decided_at=at) for at in (NOW, later))

    assert first.digest == second.digest


def test_a_verdict_without_numbers_survives_storage():
    candidate, reference = two_recipes(np.random.default_rng(6), rho=0.0, gain=1.0)
    loss_SN = candidate.loss_SN.copy()
    loss_SN[0, 0] = np.nan
    before = compare(
        table(loss_SN, "candidate", num_folds=4), reference, GateSettings(), horizon_rows=1
    )

    after = Verdict.model_validate_json(before.model_dump_json())
    receipt = receipts.Receipt.model_validate_json(
        before.receipt(SUBJECT, decided_at=NOW).model_dump_json()
    )

    assert after.outcome == "INCONCLUSIVE"
    assert np.isnan(after.lower_bound)
    assert np.isnan(receipt.evidence["gain"])


def test_the_text_of_a_verdict_is_one_line_with_the_numbers():
    text = str(verdict(1.0))

    assert text.startswith("PROMOTE: candidate candidate against reference, gain 1.0")
    assert "required > 0" in text
    assert "5 seeds, 1,000 rows" in text
    assert "\n" not in text
