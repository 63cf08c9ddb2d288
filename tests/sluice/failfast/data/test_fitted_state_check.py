"""POC-8: the state that a workload fits depends on the train rows alone."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from sluice.config.poc_settings import PocSettings
from sluice.failfast.data.fitted_state import check_fitted_state
from sluice.failfast.gate.checks import CHECKS
from sluice.failfast.gate.inputs import GateInputs
from sluice.findings.check_outcome import CheckOutcome
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.workloads.workload import Workload
from tests.support.rents import Rents, RentsOfAllRows, RentsOfStoredRows, RentsWithNoise
from tests.support.synthetic import SineWorkload

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def run_check(workload: Workload) -> CheckOutcome | None:
    raw = workload.load_rows()
    frame = workload.compute_features(raw)
    return check_fitted_state(workload, raw, frame, workload.plan_folds(frame), seed=1)


def test_state_fitted_on_train_rows_passes() -> None:
    outcome = run_check(Rents())

    assert outcome is not None
    assert outcome.outcome == "pass"
    assert outcome.numbers["arrays"] == 2


def test_a_workload_without_fit_is_not_checked() -> None:
    assert run_check(SineWorkload()) is None


@pytest.mark.parametrize("kind", [RentsOfAllRows, RentsOfStoredRows])
def test_state_fitted_on_other_rows_fails_and_names_the_method(kind: type[Workload]) -> None:
    outcome = run_check(kind())

    assert outcome is not None
    assert (outcome.outcome, outcome.fault) == ("fail", "split dependence")
    assert outcome.summary == (
        f"Fold 0: {kind.__name__}.fit() returns different arrays when only rows after the train "
        "rows change: 'rents'."
    )
    assert "other rows than its argument" in outcome.cause


def test_nondeterministic_fitted_state_fails() -> None:
    outcome = run_check(RentsWithNoise())

    assert outcome is not None
    assert outcome.outcome == "fail"
    assert "called twice for the same train rows: 'rents'" in outcome.summary


def test_split_independence_check_includes_the_fitted_state(tmp_path: Path) -> None:
    (check,) = (check for check in CHECKS if check.check_id == "split_independence")
    healthy, leaking = (
        check.function(
            GateInputs(
                workload=workload,
                model_settings=ModelSettings(architecture="mlp"),
                train_settings=TrainSettings(),
                settings=PocSettings(),
                seed=0,
                folder=tmp_path,
                clock=lambda: NOW,
            )
        )
        for workload in (Rents(), RentsOfAllRows())
    )

    assert healthy.outcome == "pass"
    assert "state" in healthy.numbers
    assert "examples_compared" in healthy.numbers
    assert leaking.outcome == "fail"
    assert "RentsOfAllRows.fit()" in leaking.summary
