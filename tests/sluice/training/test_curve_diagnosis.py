"""RESP-2: symptoms of planted curves are named, ordinary curves have none."""

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


def curve(train_losses, val_losses, *, norm=1.0, **fields):
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


def kinds(history, *, max_epochs=30, expects_signal=True, **options):
    found = diagnose_curves(
        history, SETTINGS, max_epochs=max_epochs, expects_signal=expects_signal, **options
    )
    return [symptom.fault for symptom in found.symptoms]


FALLING = 0.2 + 0.8 * np.exp(-E / 4)


def test_a_healthy_curve_has_no_symptom():
    found = diagnose_curves(
        curve(FALLING, FALLING + 0.1), SETTINGS, max_epochs=30, expects_signal=True
    )

    assert found.summary == "No symptom in 30 epochs."


def test_too_few_epochs_and_a_single_one_are_sentences():
    few = CurveDiagnosis(symptoms=(), epochs=1, has_enough_epochs=False)

    assert few.summary == "1 epoch of training, too few for a trend; no gradient exploded."
    assert few.model_copy(update={"has_enough_epochs": True}).summary == "No symptom in 1 epoch."


def test_a_gap_that_grows_after_the_best_epoch_is_overfitting():
    val = np.where(E < 10, FALLING + 0.1, FALLING[10] + 0.1 + 0.02 * (E - 10))
    symptom, *others = diagnose_curves(
        curve(FALLING, val), SETTINGS, max_epochs=30, expects_signal=True
    ).symptoms

    assert not others
    assert symptom.fault == "overfitting"
    assert "epoch 11 (0.3657)" in symptom.what
    assert "increases by 0.36 over the 19 epochs" in symptom.what
    assert "rows first" in symptom.fix


@pytest.mark.parametrize(("epochs_after", "found"), [(4, []), (5, ["overfitting"])])
def test_five_epochs_of_growth_are_needed(epochs_after, found):
    val = np.where(E < 10, FALLING + 0.1, FALLING[10] + 0.1 + 0.05 * (E - 10))

    assert kinds(curve(FALLING, val)[: 11 + epochs_after]) == found


def test_the_symptom_does_not_depend_on_the_unit_or_zero_of_the_loss():
    val = np.where(E < 10, FALLING + 0.1, FALLING[10] + 0.1 + 0.02 * (E - 10))
    for unit, zero in ((1e-6, 0.0), (1e3, 0.0), (1.0, -5.0)):
        assert kinds(curve(unit * FALLING + zero, unit * val + zero)) == ["overfitting"]


@pytest.mark.parametrize("value", [1.0, 1e-4, -3.0])
def test_a_constant_loss_is_a_symptom_unless_no_signal_is_expected(value):
    noise = 1 + 1e-3 * np.random.default_rng(1).standard_normal(30)
    flat = curve(value * noise, value * noise[::-1])

    assert kinds(flat) == ["loss not decreasing"]
    assert kinds(flat, expects_signal=False) == []


def test_a_loss_that_decreases_quickly_is_no_symptom():
    """Most of the fall is within epoch 1."""
    quick = np.concatenate(([0.3], np.full(29, 0.295)))

    assert kinds(curve(quick, quick)) == []
    flat = np.full(30, 0.3)
    assert kinds(curve(flat, flat), constant_loss=1.0) == []


def test_a_train_loss_at_the_trivial_one_is_underfitting():
    little = 1 - 0.004 * (1 - np.exp(-E / 5))

    assert kinds(curve(little, little), constant_loss=1.0) == ["underfitting"]
    assert kinds(curve(little, little), constant_loss=1.5) == []


def test_a_loss_that_still_falls_at_the_last_epoch_was_stopped_too_early():
    falling = 2 - E / 30

    assert kinds(curve(falling, falling)) == ["stopped too early"]
    assert kinds(curve(falling, falling), max_epochs=100) == []  # somebody is still at it


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"grad_norm_max": 101.0}, "reached 101 at epoch 3; the limit is 100"),
        ({"grad_norm_max": math.nan}, "reached nan at epoch 3"),
        ({"grad_norm_max": 31.0}, "largest mean of the epochs before is 1."),
    ],
)
def test_an_explosion_is_named_with_its_epoch_also_on_few_epochs(change, what):
    history = curve(FALLING[:4], FALLING[:4])
    history[2] = dataclasses.replace(history[2], **change)
    found = diagnose_curves(history, SETTINGS, max_epochs=30, expects_signal=True)

    assert [s.fault for s in found.symptoms] == ["explosion"]
    assert what in found.symptoms[0].what
    assert not found.has_enough_epochs


@pytest.mark.parametrize("change", [{"val_loss": math.nan}, {"train_loss": math.inf}])
def test_a_loss_that_is_not_finite_is_named_with_what_makes_one(change):
    """RESP-2: logarithm of 0, division by 0, extreme outputs."""
    history = curve(FALLING[:4], FALLING[:4])
    history[2] = dataclasses.replace(history[2], **change)
    (symptom,) = diagnose_curves(history, SETTINGS, max_epochs=30, expects_signal=True).symptoms

    assert symptom.fault == "non-finite loss"
    assert "at epoch 3" in symptom.what
    for word in ("logarithm of 0", "divides by 0", "extreme outputs"):
        assert word in symptom.cause


def test_a_first_epoch_whose_gradient_is_not_finite_exploded():
    history = curve(FALLING, FALLING)
    history[0] = dataclasses.replace(history[0], grad_norm_max=math.nan)

    assert kinds(history) == ["explosion"]


def test_losses_that_rise_together_are_no_overfitting():
    rising = np.where(E < 10, FALLING, FALLING[10] + 0.02 * (E - 10))

    assert kinds(curve(rising, rising + 0.1)) == []


def test_large_gradients_of_a_large_loss_and_of_the_start_are_usual():
    assert kinds(curve(1e6 * FALLING, 1e6 * FALLING, norm=1e6)) == []
    falling_norm = np.where(E == 0, 500.0, 1.0)
    assert kinds(curve(FALLING, FALLING, norm=falling_norm)) == []


def test_the_best_epoch_keeps_its_number_if_an_earlier_epoch_has_no_loss():
    val = np.where(E <= 10, FALLING, FALLING[10] + 0.05 * (E - 10))
    history = curve(FALLING, val)
    history[0] = dataclasses.replace(
        history[0], train_loss=math.nan, skipped_steps=3, precision="fp16"
    )

    found = diagnose_curves(history, SETTINGS, max_epochs=30, expects_signal=True)

    (symptom,) = found.symptoms
    assert "lowest at epoch 11 " in symptom.what
    assert "over the 19 epochs after it" in symptom.what


def test_fp16_that_was_given_up_is_said_and_no_explosion():
    history = curve(FALLING, FALLING)
    history[1] = dataclasses.replace(
        history[1], skipped_steps=5, precision="fp32", grad_norm_max=math.nan
    )

    assert kinds(history) == ["fp16 abandoned"]


@pytest.mark.parametrize(("dead", "found"), [(0, []), (50, []), (51, ["dead units"])])
def test_a_majority_of_dead_neurons_is_a_symptom(dead, found):
    assert kinds(curve(FALLING, FALLING), dead_units=(dead, 100)) == found
    assert kinds(curve(FALLING, FALLING), dead_units=(0, 0)) == []


def test_planted_dead_neurons_are_counted():
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


def test_no_epochs_say_nothing():
    found = diagnose_curves([], SETTINGS, max_epochs=30, expects_signal=True)

    assert (found.symptoms, found.has_enough_epochs) == ((), False)
    assert "too few" in found.summary


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("rate", [1e-2, 3e-2])
def test_real_healthy_trainings_have_no_symptom(rate, dropout):
    settings = TrainSettings(max_epochs=25, batch_rows=16, learning_rate=rate)
    history = list(
        train(make_model(dropout=dropout), loss_of, losses_of, TRAIN, VAL, settings, seed=1)
    )

    assert kinds(history, max_epochs=25) == []


def test_noise_alone_is_rarely_a_trend():
    rng = np.random.default_rng(5)
    found = sum(fit_trend(rng.standard_normal(6))[1] for _ in range(2000))

    # P(|t_4| > 4) = 0.016; 99.9 % binomial band around 32 of 2,000
    assert 15 <= found <= 53
    assert fit_trend(np.arange(6.0)) == (5.0, True)


def test_noisy_plateaus_after_learning_are_no_overfitting():
    """Early stopping always ends epochs after the best one: that is not yet overfitting."""
    rng = np.random.default_rng(7)
    alarms = 0
    for _ in range(300):
        noise = 0.02 * rng.standard_normal(30)
        alarms += kinds(curve(FALLING - 0.002 * E, FALLING + 0.1 + noise)) != []

    assert alarms <= 3
