"""The promotion decision reports symptoms of the trainings first, with a command as the fix."""

import numpy as np
import pytest

from sluice.findings.finding import Finding
from sluice.models.settings import ModelSettings
from sluice.training.curve_diagnosis import DiagnosisSettings
from sluice.training.member_diagnosis import MemberSymptom, _find_stopped_early
from sluice.training.members import Member
from sluice.training.setting_changes import suggest_first_change
from sluice.training.settings import TrainSettings
from tests.sluice.evaluation.test_promotion_decision import (
    CANDIDATE,
    REFERENCE,
    decide,
    make_evidence,
)

ADVICE = "Stopped too early in 32 of 32 trainings: the best epoch is the last one, epoch 25 of 25."


def make_member(seed: int, best_epoch: int) -> Member:
    return Member(
        seed=seed,
        fold_id=0,
        weights="a" * 64,
        event_log="b" * 64,
        best_epoch=best_epoch,
        epochs_run=25,
        train_loss=1.0,
        val_loss=1.0,
        test_metrics={"loss": 1.0},
        trained_through="0",
        seconds=1.0,
    )


@pytest.mark.parametrize(
    ("best", "found"), [([25] * 4, 4), ([25, 25, 3, 4], 2), ([25, 2, 3, 4], 0), ([24] * 4, 0)]
)
def test_members_whose_best_epoch_is_the_last_are_counted(best, found):
    members = [make_member(seed, epoch) for seed, epoch in enumerate(best)]

    cut = _find_stopped_early(members, DiagnosisSettings(), max_epochs=25)

    assert len(cut) == found
    assert {m.best_epoch for m, _ in cut} <= {25}


@pytest.mark.parametrize(
    ("fault", "change"),
    [
        ("stopped too early", "training.max_epochs=50"),
        ("explosion", "training.learning_rate=0.00067"),
        ("overfitting", "training.weight_decay=0.1"),
        ("underfitting", "model.hidden=64"),
        ("fp16 abandoned", "training.precision=bf16"),
        ("loss not decreasing", ""),
    ],
)
def test_first_suggested_change_for_each_fault(fault, change):
    assert suggest_first_change(fault, ModelSettings(), TrainSettings()) == change


def test_advice_names_the_setting_and_the_command():
    symptom = Finding.of("stopped too early", what="w.", cause="c.", fix="f.", evidence={})
    found = MemberSymptom(
        symptom=symptom,
        seed=0,
        fold_id=0,
        num_affected=32,
        num_members=32,
        change="training.max_epochs=50",
    )

    assert found.advice("demo") == (
        "Stopped too early in 32 of 32 trainings: w. Set training.max_epochs to 50 "
        "(sluice run demo --set training.max_epochs=50)."
    )
    assert found.model_copy(update={"change": ""}).advice("demo").endswith("w. f.")


def test_verdict_without_promotion_reports_training_symptoms_first():
    verdict = decide(make_evidence(candidate=REFERENCE, reference=CANDIDATE)).with_symptoms(
        [ADVICE]
    )

    assert verdict.outcome != "PROMOTE"
    assert verdict.reason.startswith(f"{ADVICE} ")
    assert verdict.remedy.startswith("Correct the training first")
    assert verdict.symptoms == (ADVICE,)


def test_promotion_keeps_its_reason_and_records_the_symptoms():
    plain = decide(make_evidence())

    verdict = plain.with_symptoms([ADVICE])

    assert verdict.reason == plain.reason
    assert verdict.symptoms == (ADVICE,)
    assert np.isfinite(verdict.gain)
