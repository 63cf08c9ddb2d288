"""RESP-2: planted faults in learning curves are diagnosed, healthy curves have no symptom."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from sluice.training.curve_diagnosis import (
    CurveDiagnosis,
    DiagnosisSettings,
    diagnose_curves,
    fit_trend,
)
from sluice.training.dead_units import count_dead_units
from sluice.training.loop import EpochResult, train
from sluice.training.settings import TrainSettings
from tests.sluice.training.test_loop import TRAIN, VAL, loss_of, losses_of, make_model

SETTINGS = DiagnosisSettings()
E = np.arange(30)


def make_history(train_losses, val_losses, *, norm=1.0, **fields):
    norms = np.broadcast_to(norm, len(train_losses))
    return [
        EpochResult(
            epoch=index + 1,
            train_loss=float(train_loss),
            val_loss=float(val_loss),
            learning_rate=1e-3,
            grad_norm_mean=float(norms[index]),
            grad_norm_max=float(norms[index]) * 2,
            clipped_share=0.0,
            improved=False,
            seconds=1.0,
            **fields,
        )
        for index, (train_loss, val_loss) in enumerate(zip(train_losses, val_losses, strict=True))
    ]


def find_faults(history, *, max_epochs=30, expects_signal=True, **options):
    found = diagnose_curves(
        history, SETTINGS, max_epochs=max_epochs, expects_signal=expects_signal, **options
    )
    return [symptom.fault for symptom in found.symptoms]


FALLING = 0.2 + 0.8 * np.exp(-E / 4)


def test_healthy_curve_has_no_symptom():
    found = diagnose_curves(
        make_history(FALLING, FALLING + 0.1), SETTINGS, max_epochs=30, expects_signal=True
    )

    assert found.summary == "No symptom in 30 epochs."


def test_summary_handles_one_and_too_few_epochs():
    few = CurveDiagnosis(symptoms=(), epochs=1, has_enough_epochs=False)

    assert few.summary == "1 epoch of training, too few for a trend; no gradient exploded."
    assert few.model_copy(update={"has_enough_epochs": True}).summary == "No symptom in 1 epoch."


def test_growing_gap_after_the_best_epoch_is_overfitting():
    val = np.where(E < 10, FALLING + 0.1, FALLING[10] + 0.1 + 0.02 * (E - 10))
    symptom, *others = diagnose_curves(
        make_history(FALLING, val), SETTINGS, max_epochs=30, expects_signal=True
    ).symptoms

    assert not others
    assert symptom.fault == "overfitting"
    assert "epoch 11 (0.3657)" in symptom.what
    assert "increases by 0.36 over the 19 epochs" in symptom.what
    assert "rows first" in symptom.fix


@pytest.mark.parametrize(("epochs_after", "found"), [(4, []), (5, ["overfitting"])])
def test_overfitting_needs_five_epochs_after_the_best(epochs_after, found):
    val = np.where(E < 10, FALLING + 0.1, FALLING[10] + 0.1 + 0.05 * (E - 10))

    assert find_faults(make_history(FALLING, val)[: 11 + epochs_after]) == found


def test_overfitting_is_invariant_to_scale_and_offset_of_the_loss():
    val = np.where(E < 10, FALLING + 0.1, FALLING[10] + 0.1 + 0.02 * (E - 10))
    for unit, zero in ((1e-6, 0.0), (1e3, 0.0), (1.0, -5.0)):
        assert find_faults(make_history(unit * FALLING + zero, unit * val + zero)) == [
            "overfitting"
        ]


@pytest.mark.parametrize("value", [1.0, 1e-4, -3.0])
def test_constant_loss_is_reported_if_a_signal_is_expected(value):
    noise = 1 + 1e-3 * np.random.default_rng(1).standard_normal(30)
    flat = make_history(value * noise, value * noise[::-1])

    assert find_faults(flat) == ["loss not decreasing"]
    assert find_faults(flat, expects_signal=False) == []


def test_loss_that_decreases_within_the_first_epoch_has_no_symptom():
    """Most of the decrease is within epoch 1."""
    quick = np.concatenate(([0.3], np.full(29, 0.295)))

    assert find_faults(make_history(quick, quick)) == []
    flat = np.full(30, 0.3)
    assert find_faults(make_history(flat, flat), constant_loss=1.0) == []


def test_train_loss_near_the_constant_baseline_is_underfitting():
    little = 1 - 0.004 * (1 - np.exp(-E / 5))

    assert find_faults(make_history(little, little), constant_loss=1.0) == ["underfitting"]
    assert find_faults(make_history(little, little), constant_loss=1.5) == []


def test_loss_that_still_falls_at_max_epochs_was_stopped_too_early():
    falling = 2 - E / 30

    assert find_faults(make_history(falling, falling)) == ["stopped too early"]
    assert find_faults(make_history(falling, falling), max_epochs=100) == []  # training continues


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"grad_norm_max": 101.0}, "reached 101 at epoch 3; the limit is 100"),
        ({"grad_norm_max": math.nan}, "reached nan at epoch 3"),
        ({"grad_norm_max": 31.0}, "largest mean of the earlier epochs is 1."),
    ],
)
def test_exploding_gradient_is_reported_with_its_epoch(change, what):
    history = make_history(FALLING[:4], FALLING[:4])
    history[2] = dataclasses.replace(history[2], **change)
    found = diagnose_curves(history, SETTINGS, max_epochs=30, expects_signal=True)

    assert [s.fault for s in found.symptoms] == ["explosion"]
    assert what in found.symptoms[0].what
    assert not found.has_enough_epochs


@pytest.mark.parametrize("change", [{"val_loss": math.nan}, {"train_loss": math.inf}])
def test_non_finite_loss_is_reported_with_likely_causes(change):
    """RESP-2: causes are the logarithm of 0, division by 0 and extreme outputs."""
    history = make_history(FALLING[:4], FALLING[:4])
    history[2] = dataclasses.replace(history[2], **change)
    (symptom,) = diagnose_curves(history, SETTINGS, max_epochs=30, expects_signal=True).symptoms

    assert symptom.fault == "non-finite loss"
    assert "at epoch 3" in symptom.what
    for word in ("logarithm of 0", "divides by 0", "extreme outputs"):
        assert word in symptom.cause


def test_non_finite_gradient_in_the_first_epoch_is_an_explosion():
    history = make_history(FALLING, FALLING)
    history[0] = dataclasses.replace(history[0], grad_norm_max=math.nan)

    assert find_faults(history) == ["explosion"]


def test_losses_that_rise_together_are_not_overfitting():
    rising = np.where(E < 10, FALLING, FALLING[10] + 0.02 * (E - 10))

    assert find_faults(make_history(rising, rising + 0.1)) == []


def test_large_gradients_at_the_start_or_of_a_large_loss_are_normal():
    assert find_faults(make_history(1e6 * FALLING, 1e6 * FALLING, norm=1e6)) == []
    falling_norm = np.where(E == 0, 500.0, 1.0)
    assert find_faults(make_history(FALLING, FALLING, norm=falling_norm)) == []


def test_best_epoch_number_is_correct_if_an_earlier_epoch_has_no_loss():
    val = np.where(E <= 10, FALLING, FALLING[10] + 0.05 * (E - 10))
    history = make_history(FALLING, val)
    history[0] = dataclasses.replace(
        history[0], train_loss=math.nan, skipped_steps=3, precision="fp16"
    )

    found = diagnose_curves(history, SETTINGS, max_epochs=30, expects_signal=True)

    (symptom,) = found.symptoms
    assert "lowest at epoch 11 " in symptom.what
    assert "over the 19 epochs after it" in symptom.what


def test_abandoned_fp16_is_reported_instead_of_an_explosion():
    history = make_history(FALLING, FALLING)
    history[1] = dataclasses.replace(
        history[1], skipped_steps=5, precision="fp32", grad_norm_max=math.nan
    )

    assert find_faults(history) == ["fp16 abandoned"]


@pytest.mark.parametrize(("dead", "found"), [(0, []), (50, []), (51, ["dead units"])])
def test_majority_of_dead_units_is_a_symptom(dead, found):
    assert find_faults(make_history(FALLING, FALLING), dead_units=(dead, 100)) == found
    assert find_faults(make_history(FALLING, FALLING), dead_units=(0, 0)) == []


def test_planted_dead_units_are_counted():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 1))
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.bias[:] = 100.0
        model[0].bias[:3] = -1e3
        model[2].bias[5] = -1e6

    assert count_dead_units(model, TRAIN.x) == (4, 14)
    assert model.training
    assert count_dead_units(make_model(), TRAIN.x) == (0, 0)


def test_empty_history_has_too_few_epochs():
    found = diagnose_curves([], SETTINGS, max_epochs=30, expects_signal=True)

    assert (found.symptoms, found.has_enough_epochs) == ((), False)
    assert "too few" in found.summary


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("rate", [1e-2, 3e-2])
def test_healthy_trainings_have_no_symptom(rate, dropout):
    settings = TrainSettings(max_epochs=25, batch_rows=16, learning_rate=rate)
    history = list(
        train(make_model(dropout=dropout), loss_of, losses_of, TRAIN, VAL, settings, seed=1)
    )

    assert find_faults(history, max_epochs=25) == []


def test_trend_in_noise_is_rarely_significant():
    rng = np.random.default_rng(5)
    found = sum(fit_trend(rng.standard_normal(6))[1] for _ in range(2000))

    # P(|t_4| > 4) = 0.016; 99.9 % binomial band around 32 of 2,000
    assert 15 <= found <= 53
    assert fit_trend(np.arange(6.0)) == (5.0, True)


def test_noisy_plateau_after_the_best_epoch_is_rarely_overfitting():
    """Early stopping always runs some epochs after the best one; that alone is not overfitting."""
    rng = np.random.default_rng(7)
    alarms = 0
    for _ in range(300):
        noise = 0.02 * rng.standard_normal(30)
        alarms += find_faults(make_history(FALLING - 0.002 * E, FALLING + 0.1 + noise)) != []

    assert alarms <= 3


def test_stopped_too_early_names_the_number_of_epochs_that_were_measured():
    losses = np.linspace(1.0, 0.4, 7)
    diagnosis = diagnose_curves(
        make_history(losses, losses),
        DiagnosisSettings(gap_epochs=10),
        max_epochs=7,
        expects_signal=True,
    )
    (symptom,) = diagnosis.symptoms
    assert "over the last 6 epochs" in symptom.what
