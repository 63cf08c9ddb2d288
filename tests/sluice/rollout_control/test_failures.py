"""DATA-5, ROLL-2: rows that a rollout failed on become a suite for later candidates."""

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
    PIPELINE,
    QUICK,
    SICK,
    UNSEEN,
    WORKLOAD,
    begin,
    current,
    echo_frame,
    later,
    pairs,
    report,
    sample,
)


@pytest.fixture
def library(tmp_path: Path, store: ArtifactStore) -> SuiteLibrary:
    return SuiteLibrary(tmp_path / "suites", store)


def keep(ledger: RolloutLedger, library: SuiteLibrary, num_rows: int = 899) -> FailedRows:
    return save_failures_suite(
        ledger,
        current(ledger).id,
        WORKLOAD,
        echo_frame(num_rows),
        library,
        NOW + timedelta(days=1),
    )


def test_failed_requests_become_the_next_candidates_suite(
    ledger: RolloutLedger, library: SuiteLibrary
) -> None:
    rollout = begin(ledger)
    failed = [
        sample(rollout, key="503", fault="errors"),
        sample(rollout, key="620", fault="not_finite"),
        sample(rollout, key="503", fault="timeouts"),
        sample(rollout, key=None, fault="errors"),
        sample(rollout, key="505", fault="errors").model_copy(update={"arm": "production"}),
        sample(rollout, key="99999", fault="errors"),
    ]
    samples = failed + pairs(rollout, range(700, 720))
    report(ledger, at=later(ledger), challenger=SICK, samples=samples)
    done = reconcile(ledger, MODEL, now=later(ledger))
    assert done is not None
    assert done.outcome == "roll_back"

    early, whole, again = keep(ledger, library, 550), keep(ledger, library), keep(ledger, library)

    assert early.suite is not None
    assert early.suite.num_rows == 1  # row 620 has no label yet
    assert whole.suite is not None
    assert (whole.suite.name, whole.suite.version) == (f"rollout-{rollout.id[:8]}", 2)
    assert again == whole
    suite = library.load(whole.suite.name).suite
    assert {row.label: row.reason for row in suite.rows} == {
        "503": "the challenger answered after the deadline; the challenger raised an error "
        "(2 times)",
        "620": "the prediction of the challenger was NaN or infinity",
    }
    assert suite.origin == Failures(source=f"rollout of {MODEL} version 2 of 2025-03-14")


def test_fewer_rows_remove_nothing_from_the_suite(
    ledger: RolloutLedger, library: SuiteLibrary
) -> None:
    rollout = begin(ledger)
    report(ledger, at=later(ledger), challenger=SICK, samples=[
        sample(rollout, key="503", fault="errors"), sample(rollout, key="504", fault="errors")
    ])  # fmt: skip
    reconcile(ledger, MODEL, now=later(ledger))
    whole = keep(ledger, library)
    with ledger._database.write() as connection:
        # Not '%504%': a digest in the other sample may contain these characters.
        delete = 'DELETE FROM sluice_samples WHERE payload LIKE \'%"key":"504"%\''
        assert connection.exec_driver_sql(delete).rowcount == 1

    assert keep(ledger, library) == whole


def test_rejecting_labels_name_the_rows_with_the_largest_loss(
    ledger: RolloutLedger, store: ArtifactStore, library: SuiteLibrary
) -> None:
    rollout = begin(ledger)
    rows = range(UNSEEN, UNSEEN + 300)
    samples = pairs(rollout, rows, challenger_error=2.0)
    report(ledger, at=later(ledger), samples=samples)
    evaluate_live_quality(
        ledger, MODEL, WORKLOAD, PIPELINE.gate, store, echo_frame(), later(ledger)
    )
    reconcile(ledger, MODEL, now=later(ledger))

    made = keep(ledger, library)

    assert made.suite is not None
    assert made.suite.num_rows == 30  # the worst tenth
    echo = echo_frame()["echo"]

    def lost(label: str) -> float:
        pair = samples[int(label) - UNSEEN]
        assert pair.challenger is not None
        assert pair.production is not None
        mean = [sum((v - echo[int(label)]) ** 2 for (v,) in arm) / len(arm)
                for arm in (pair.challenger, pair.production)]  # fmt: skip
        return float(mean[0] - mean[1])

    chosen = set(library.load(made.suite.name).suite.labels)
    others = {str(row) for row in rows} - chosen
    assert min(map(lost, chosen)) >= max(map(lost, others))
    first = library.load(made.suite.name).suite.rows[0]
    assert first.reason.startswith("loss ")


def test_prediction_drift_names_the_rows_with_the_largest_difference(
    ledger: RolloutLedger, library: SuiteLibrary
) -> None:
    rollout = begin(ledger, agreement=PredictionAgreement(difference=0.1, spread=1.0, rows=100))
    near, far = ((0.0,),), ((50.0,),)
    samples = [
        sample(rollout, key=str(row), production=near, challenger=far if row < 545 else near)
        for row in range(500, 620)
    ]
    report(ledger, at=later(ledger), samples=samples)
    done = reconcile(ledger, MODEL, now=later(ledger))
    assert done is not None
    assert done.reason.startswith("The predictions of the challenger differ too much")

    made = keep(ledger, library)

    assert made.suite is not None
    suite = library.load(made.suite.name).suite
    assert suite.labels == tuple(map(str, range(500, 545)))
    assert suite.rows[0].reason == "prediction differs from production's by 50"


def test_unanswered_shadow_requests_are_failures(
    ledger: RolloutLedger, library: SuiteLibrary
) -> None:
    settings = RolloutSettings(strategy="blue-green", min_step_s=0, min_requests=1)
    rollout = begin(ledger, settings)
    copied = sample(rollout, key="510", production=((1.0,),))
    copied = copied.model_copy(update={"arm": "production"})
    report(ledger, at=later(ledger), challenger=SICK, samples=[copied])
    reconcile(ledger, MODEL, now=later(ledger))

    made = keep(ledger, library)

    assert made.suite is not None
    reasons = [row.reason for row in library.load(made.suite.name).suite.rows]
    assert reasons == ["the challenger did not answer a shadow request"]


def test_without_rows_or_evidence_no_suite_is_saved(
    ledger: RolloutLedger, library: SuiteLibrary
) -> None:
    rollout = begin(ledger, QUICK)
    assert "was not rolled back because of its traffic" in keep(ledger, library).reason
    nameless = [sample(rollout, key=None, fault="errors")]
    report(ledger, at=later(ledger), challenger=SICK, samples=nameless)
    reconcile(ledger, MODEL, now=later(ledger))
    assert "row keys, which clients send in the field 'keys'" in keep(ledger, library).reason

    again = begin(ledger)
    report(ledger, at=later(ledger), samples=[sample(again, key="77777", fault="errors")])
    now = current(ledger)
    abort = transitions.abort(now, now=now.checked_at, actor="bob", reason="not today")
    ledger.record_transition(now, abort)
    told = keep(ledger, library)
    assert told.suite is None
    assert told.reason.endswith("not today.")
    assert library.names() == ()
    with pytest.raises(ContractError, match="rollout 'nope' does not exist"):
        save_failures_suite(ledger, "nope", WORKLOAD, echo_frame(), library, later(ledger))
