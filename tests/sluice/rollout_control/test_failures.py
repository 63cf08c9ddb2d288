"""Regression suites from rows on which a rolled-back challenger failed (DATA-5, ROLL-2)."""

from datetime import timedelta
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError
from sluice.evaluation.suites.library import SuiteLibrary
from sluice.evaluation.suites.suite import Failures
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout import transitions
from sluice.rollout.prediction_agreement import PredictionAgreement
from sluice.rollout.settings import RolloutSettings
from sluice.rollout_control.controller import reconcile
from sluice.rollout_control.failures import FailedRows, save_failures_suite
from sluice.rollout_control.quality import evaluate_live_quality
from tests.sluice.registry.ledger_samples import MODEL, NOW
from tests.sluice.rollout_control.controller_samples import (
    FAULTY,
    FIRST_UNSEEN_ROW,
    PIPELINE,
    QUICK,
    WORKLOAD,
    after_last_check,
    begin_rollout,
    echo_frame,
    make_paired_samples,
    make_sample,
    read_rollout,
    report,
)


@pytest.fixture
def library(tmp_path: Path, store: ArtifactStore) -> SuiteLibrary:
    return SuiteLibrary(tmp_path / "suites", store)


def save_suite(ledger: RolloutLedger, library: SuiteLibrary, num_rows: int = 899) -> FailedRows:
    return save_failures_suite(
        ledger,
        read_rollout(ledger).id,
        WORKLOAD,
        echo_frame(num_rows),
        library,
        NOW + timedelta(days=1),
    )


def test_rows_of_failed_requests_are_saved_as_a_suite(
    ledger: RolloutLedger, library: SuiteLibrary
) -> None:
    rollout = begin_rollout(ledger)
    failed = [
        make_sample(rollout, key="503", fault="errors"),
        make_sample(rollout, key="620", fault="not_finite"),
        make_sample(rollout, key="503", fault="timeouts"),
        make_sample(rollout, key=None, fault="errors"),
        make_sample(rollout, key="505", fault="errors").model_copy(update={"arm": "production"}),
        make_sample(rollout, key="99999", fault="errors"),
    ]
    samples = failed + make_paired_samples(rollout, range(700, 720))
    report(ledger, at=after_last_check(ledger), challenger=FAULTY, samples=samples)
    transition = reconcile(ledger, MODEL, now=after_last_check(ledger))
    assert transition is not None
    assert transition.outcome == "roll_back"

    with_550_labels, complete, second = (
        save_suite(ledger, library, 550),
        save_suite(ledger, library),
        save_suite(ledger, library),
    )

    assert with_550_labels.suite is not None
    assert with_550_labels.suite.num_rows == 1  # row 620 has no label yet
    assert complete.suite is not None
    assert (complete.suite.name, complete.suite.version) == (f"rollout-{rollout.id[:8]}", 2)
    assert second == complete
    suite = library.load(complete.suite.name).suite
    assert {row.label: row.reason for row in suite.rows} == {
        "503": "the challenger answered after the deadline; the challenger raised an error "
        "(2 times)",
        "620": "the prediction of the challenger was NaN or infinity",
    }
    assert suite.origin == Failures(source=f"rollout of {MODEL} version 2 of 2025-03-14")


def test_deleted_samples_do_not_remove_rows_from_the_suite(
    ledger: RolloutLedger, library: SuiteLibrary
) -> None:
    rollout = begin_rollout(ledger)
    samples = [make_sample(rollout, key=key, fault="errors") for key in ("503", "504")]
    report(ledger, at=after_last_check(ledger), challenger=FAULTY, samples=samples)
    reconcile(ledger, MODEL, now=after_last_check(ledger))
    complete = save_suite(ledger, library)
    with ledger._database.write() as connection:
        # Not '%504%': a digest in the other sample may contain these characters.
        delete = 'DELETE FROM sluice_samples WHERE payload LIKE \'%"key":"504"%\''
        assert connection.exec_driver_sql(delete).rowcount == 1

    assert save_suite(ledger, library) == complete


def test_suite_after_a_rejection_has_the_rows_with_the_largest_loss_difference(
    ledger: RolloutLedger, store: ArtifactStore, library: SuiteLibrary
) -> None:
    rollout = begin_rollout(ledger)
    rows = range(FIRST_UNSEEN_ROW, FIRST_UNSEEN_ROW + 300)
    samples = make_paired_samples(rollout, rows, challenger_error=2.0)
    report(ledger, at=after_last_check(ledger), samples=samples)
    evaluate_live_quality(
        ledger, MODEL, WORKLOAD, PIPELINE.gate, store, echo_frame(), after_last_check(ledger)
    )
    reconcile(ledger, MODEL, now=after_last_check(ledger))

    saved = save_suite(ledger, library)

    assert saved.suite is not None
    assert saved.suite.num_rows == 30  # the worst tenth
    echo = echo_frame()["echo"]

    def loss_difference(label: str) -> float:
        pair = samples[int(label) - FIRST_UNSEEN_ROW]
        assert pair.challenger is not None
        assert pair.production is not None
        mean = [sum((v - echo[int(label)]) ** 2 for (v,) in arm) / len(arm)
                for arm in (pair.challenger, pair.production)]  # fmt: skip
        return float(mean[0] - mean[1])

    chosen = set(library.load(saved.suite.name).suite.labels)
    others = {str(row) for row in rows} - chosen
    assert min(map(loss_difference, chosen)) >= max(map(loss_difference, others))
    first = library.load(saved.suite.name).suite.rows[0]
    assert first.reason.startswith("the challenger's loss is ")


def test_suite_after_prediction_drift_has_the_rows_with_the_largest_difference(
    ledger: RolloutLedger, library: SuiteLibrary
) -> None:
    rollout = begin_rollout(
        ledger, agreement=PredictionAgreement(difference=0.1, spread=1.0, rows=100)
    )
    near, far = ((0.0,),), ((50.0,),)
    samples = [
        make_sample(rollout, key=str(row), production=near, challenger=far if row < 545 else near)
        for row in range(500, 620)
    ]
    report(ledger, at=after_last_check(ledger), samples=samples)
    transition = reconcile(ledger, MODEL, now=after_last_check(ledger))
    assert transition is not None
    assert transition.reason.startswith("The predictions of the challenger differ too much")

    saved = save_suite(ledger, library)

    assert saved.suite is not None
    suite = library.load(saved.suite.name).suite
    assert suite.labels == tuple(map(str, range(500, 545)))
    assert suite.rows[0].reason == "the challenger's prediction differs from production's by 50"


def test_unanswered_shadow_requests_are_saved_as_failures(
    ledger: RolloutLedger, library: SuiteLibrary
) -> None:
    settings = RolloutSettings(strategy="blue-green", min_step_s=0, min_requests=1)
    rollout = begin_rollout(ledger, settings)
    shadow_sample = make_sample(rollout, key="510", production=((1.0,),))
    shadow_sample = shadow_sample.model_copy(update={"arm": "production"})
    report(ledger, at=after_last_check(ledger), challenger=FAULTY, samples=[shadow_sample])
    reconcile(ledger, MODEL, now=after_last_check(ledger))

    saved = save_suite(ledger, library)

    assert saved.suite is not None
    reasons = [row.reason for row in library.load(saved.suite.name).suite.rows]
    assert reasons == ["the challenger did not answer a shadow request"]


def test_without_rows_or_evidence_no_suite_is_saved(
    ledger: RolloutLedger, library: SuiteLibrary
) -> None:
    rollout = begin_rollout(ledger, QUICK)
    assert "was not rolled back because of its traffic" in save_suite(ledger, library).reason
    samples_without_key = [make_sample(rollout, key=None, fault="errors")]
    report(ledger, at=after_last_check(ledger), challenger=FAULTY, samples=samples_without_key)
    reconcile(ledger, MODEL, now=after_last_check(ledger))
    assert "row keys, which clients send in the field 'keys'" in save_suite(ledger, library).reason

    second = begin_rollout(ledger)
    report(
        ledger,
        at=after_last_check(ledger),
        samples=[make_sample(second, key="77777", fault="errors")],
    )
    now = read_rollout(ledger)
    abort = transitions.abort(now, now=now.checked_at, actor="bob", reason="not today")
    ledger.record_transition(now, abort)
    result = save_suite(ledger, library)
    assert result.suite is None
    assert result.reason.endswith("not today.")
    assert library.names() == ()
    with pytest.raises(ContractError, match="rollout 'nope' does not exist"):
        save_failures_suite(
            ledger, "nope", WORKLOAD, echo_frame(), library, after_last_check(ledger)
        )
