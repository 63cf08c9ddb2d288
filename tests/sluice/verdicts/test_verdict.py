"""Verdicts: their receipts, serialization and text."""

from datetime import UTC, datetime

import numpy as np
import pytest

from sluice.base import receipts
from sluice.base.errors import ContractError, GateBlocked
from sluice.evaluation.comparison import compare
from sluice.evaluation.settings import GateSettings
from sluice.verdicts.verdict import Verdict
from tests.sluice.evaluation.loss_samples import make_losses, simulate_arms

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUBJECT = {"data": "d", "config": "c", "code": "k"}


def make_verdict(gain: float) -> Verdict:
    pair = simulate_arms(np.random.default_rng(6), rho=0.0, gain=gain)
    return compare(*pair, GateSettings(), horizon_rows=1, unit="nats")


def test_receipt_is_valid_only_for_the_compared_models_and_window():
    receipt = make_verdict(1.0).receipt(SUBJECT, decided_at=NOW)

    required_subject = SUBJECT | {
        "candidate": "candidate",
        "reference": "reference",
        "window": "window",
    }
    assert receipts.require(receipt, gate="promotion", subject=required_subject) == receipt
    with pytest.raises(GateBlocked, match="about another candidate"):
        receipts.require(receipt, gate="promotion", subject={"candidate": "other"})


def test_receipt_of_a_rejected_candidate_blocks():
    receipt = make_verdict(-1.0).receipt(SUBJECT, decided_at=NOW)

    assert (receipt.outcome, receipt.passed) == ("REJECT", False)
    with pytest.raises(GateBlocked, match="REJECT: Significantly worse"):
        receipts.require(receipt, gate="promotion", subject={})


def test_receipt_for_another_candidate_is_rejected():
    with pytest.raises(ContractError, match="candidate of the verdict, candidate, got other"):
        make_verdict(1.0).receipt({"candidate": "other"}, decided_at=NOW)


def test_digest_of_a_receipt_does_not_depend_on_the_time():
    later = NOW.replace(year=2027)

    first, second = (
        make_verdict(1.0).receipt(SUBJECT, decided_at=decided_at) for decided_at in (NOW, later)
    )

    assert first.digest == second.digest


def test_nan_in_a_verdict_is_kept_by_serialization():
    candidate, reference = simulate_arms(np.random.default_rng(6), rho=0.0, gain=1.0)
    loss_SN = candidate.loss_SN.copy()
    loss_SN[0, 0] = np.nan
    verdict = compare(
        make_losses(loss_SN, "candidate", num_folds=4), reference, GateSettings(), horizon_rows=1
    )

    loaded = Verdict.model_validate_json(verdict.model_dump_json())
    receipt = receipts.Receipt.model_validate_json(
        verdict.receipt(SUBJECT, decided_at=NOW).model_dump_json()
    )

    assert loaded.outcome == "INCONCLUSIVE"
    assert np.isnan(loaded.lower_bound)
    assert np.isnan(receipt.evidence["gain"])


def test_text_of_a_verdict_is_one_line_with_the_numbers():
    text = str(make_verdict(1.0))

    assert text.startswith("PROMOTE: candidate candidate against reference, gain 1.0")
    assert "required > 0" in text
    assert "5 seeds, 1,000 rows" in text
    assert "\n" not in text
