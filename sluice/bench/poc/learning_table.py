"""Defects that appear only in training, epoch selection or resuming."""

from sluice.bench.poc import feature_defects as features
from sluice.bench.poc import row_defects as rows
from sluice.bench.poc import training_defects as training
from sluice.bench.poc import workloads as plain
from sluice.bench.poc.planted import Defect, Planted
from sluice.bench.poc.planting import CNN, GRU, at_rate, faulty, planted_in
from sluice.bench.poc.setup import network

LEARNING_DEFECTS: tuple[Defect, ...] = (
    Planted(
        name="selector that always returns the last epoch",
        check="selector_finds_best_epoch",
        says=("got epoch 200",),
        advises="lowest finite score",
        setup=planted_in(training.SelectsLast),
    ),
    Planted(
        name="selector that maximises the loss",
        check="selector_finds_best_epoch",
        says=("best score",),
        advises="lowest finite score",
        setup=planted_in(training.SelectsHighest, network("linear")),
    ),
    Planted(
        name="selector that selects NaN",
        check="selector_finds_best_epoch",
        says=("NaN at epoch 10",),
        advises="lowest finite score",
        setup=planted_in(training.TripsOverNan),
    ),
    Planted(
        name="input that does not reach the output",
        check="model_overfits_one_batch",
        says=("constant output",),
        advises="input does not reach the output",
        setup=planted_in(plain.ShortBars, faulty("IgnoresInput")),
    ),
    Planted(
        name="loss with the wrong sign",
        check="model_overfits_one_batch",
        says=("constant",),
        advises="sign",
        setup=planted_in(training.WrongSign),
    ),
    Planted(
        name="learning rate 10",
        check="mini_training_lowers_loss",
        says=("learning_rate 10",),
        advises="lower learning_rate",
        setup=planted_in(plain.Diabetes, training=at_rate(10.0)),
    ),
    Planted(
        name="learning rate 10, recurrent",
        check="mini_training_lowers_loss",
        says=("learning_rate 10",),
        advises="learning_rate",
        setup=planted_in(plain.ShortBars, GRU, training=at_rate(10.0)),
    ),
    Planted(
        name="learning rate 1e-9",
        check="mini_training_lowers_loss",
        says=("learning_rate 1e-09",),
        advises="too low",
        setup=planted_in(plain.Wine, training=at_rate(1e-9)),
    ),
    Planted(
        name="learning rate 1e-9, images",
        check="mini_training_lowers_loss",
        says=("learning_rate 1e-09",),
        advises="too low",
        setup=planted_in(plain.DigitImages, CNN, training=at_rate(1e-9)),
    ),
    Planted(
        name="collapsed predictions",
        check="predictions_have_plausible_spread",
        says=("at least 0.005",),
        advises="do not reach the output",
        setup=planted_in(features.UnseenNames, faulty("ByNumber"), training=at_rate(1e-2)),
    ),
    Planted(
        name="exploding predictions",
        check="predictions_have_plausible_spread",
        says=("at most 100",),
        advises="unscaled",
        setup=planted_in(rows.UnitChanges, network("linear")),
    ),
    Planted(
        name="few distinct predictions",
        check="predictions_have_plausible_spread",
        says=("distinct",),
        advises="rounded",
        setup=planted_in(plain.Diabetes, faulty("WholeSteps")),
        expected="warn",
    ),
    Planted(
        name="metrics that raise",
        check="predictions_can_be_scored",
        says=("KeyError: 'weight'", "metrics"),
        advises="named line",
        setup=planted_in(training.MetricsOfAnother),
    ),
    Planted(
        name="headline metric that is not computed",
        check="predictions_can_be_scored",
        says=("'accuracy'",),
        advises="named method",
        setup=planted_in(training.HeadlineMissing),
    ),
    Planted(
        name="baseline of another shape",
        check="predictions_can_be_scored",
        says=("baseline()", "got ("),
        advises="named method",
        setup=planted_in(training.BaselineOfAnother),
    ),
    Planted(
        name="layer in a plain list",
        check="training_resumes_from_checkpoint",
        says=("the predictions differ",),
        advises="plain attribute",
        setup=planted_in(plain.Cancer, faulty("HiddenInList")),
    ),
    Planted(
        name="random state that no checkpoint holds",
        check="training_resumes_from_checkpoint",
        says=("network.rng",),
        advises="generator",
        setup=planted_in(plain.Diabetes, faulty("OwnRandomness")),
    ),
)
