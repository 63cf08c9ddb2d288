"""Planted defects that appear only in training, epoch selection or resuming."""

from sluice.bench.poc import feature_defects, row_defects, training_defects, workloads
from sluice.bench.poc.planted import Defect, PlantedDefect
from sluice.bench.poc.planting import CNN, GRU, faulty_network, make_setup, with_learning_rate
from sluice.bench.poc.setup import network

LEARNING_DEFECTS: tuple[Defect, ...] = (
    PlantedDefect(
        name="selector that always returns the last epoch",
        check="selector_finds_best_epoch",
        summary_texts=("got epoch 200",),
        advice_text="lowest finite score",
        setup=make_setup(training_defects.SelectsLast),
    ),
    PlantedDefect(
        name="selector that maximises the loss",
        check="selector_finds_best_epoch",
        summary_texts=("best score",),
        advice_text="lowest finite score",
        setup=make_setup(training_defects.SelectsHighest, network("linear")),
    ),
    PlantedDefect(
        name="selector that selects NaN",
        check="selector_finds_best_epoch",
        summary_texts=("NaN at epoch 10",),
        advice_text="lowest finite score",
        setup=make_setup(training_defects.SelectsFirstIfNan),
    ),
    PlantedDefect(
        name="input that does not reach the output",
        check="model_overfits_one_batch",
        summary_texts=("constant output",),
        advice_text="input does not reach the output",
        setup=make_setup(workloads.ShortBars, faulty_network("IgnoresInput")),
    ),
    PlantedDefect(
        name="loss with the wrong sign",
        check="model_overfits_one_batch",
        summary_texts=("constant",),
        advice_text="sign",
        setup=make_setup(training_defects.NegatedLoss),
    ),
    PlantedDefect(
        name="learning rate 10",
        check="mini_training_lowers_loss",
        summary_texts=("learning_rate 10",),
        advice_text="lower learning_rate",
        setup=make_setup(workloads.Diabetes, training=with_learning_rate(10.0)),
    ),
    PlantedDefect(
        name="learning rate 10, recurrent",
        check="mini_training_lowers_loss",
        summary_texts=("learning_rate 10",),
        advice_text="learning_rate",
        setup=make_setup(workloads.ShortBars, GRU, training=with_learning_rate(10.0)),
    ),
    PlantedDefect(
        name="learning rate 1e-9",
        check="mini_training_lowers_loss",
        summary_texts=("learning_rate 1e-09",),
        advice_text="too low",
        setup=make_setup(workloads.Wine, training=with_learning_rate(1e-9)),
    ),
    PlantedDefect(
        name="learning rate 1e-9, images",
        check="mini_training_lowers_loss",
        summary_texts=("learning_rate 1e-09",),
        advice_text="too low",
        setup=make_setup(workloads.DigitImages, CNN, training=with_learning_rate(1e-9)),
    ),
    PlantedDefect(
        name="collapsed predictions",
        check="predictions_have_plausible_spread",
        summary_texts=("at least 0.005",),
        advice_text="do not reach the output",
        setup=make_setup(
            feature_defects.UnseenCategories,
            faulty_network("EmbeddingPerInputValue"),
            training=with_learning_rate(1e-2),
        ),
    ),
    PlantedDefect(
        name="exploding predictions",
        check="predictions_have_plausible_spread",
        summary_texts=("at most 100",),
        advice_text="unscaled",
        setup=make_setup(row_defects.UnitChanges, network("linear")),
    ),
    PlantedDefect(
        name="few distinct predictions",
        check="predictions_have_plausible_spread",
        summary_texts=("distinct",),
        advice_text="rounded",
        setup=make_setup(workloads.Diabetes, faulty_network("RoundedOutput")),
        expected_outcome="warn",
    ),
    PlantedDefect(
        name="metrics that raise",
        check="predictions_can_be_scored",
        summary_texts=("KeyError: 'weight'", "metrics"),
        advice_text="named line",
        setup=make_setup(training_defects.MetricsReadMissingColumn),
    ),
    PlantedDefect(
        name="headline metric that is not computed",
        check="predictions_can_be_scored",
        summary_texts=("'accuracy'",),
        advice_text="named method",
        setup=make_setup(training_defects.HeadlineNotComputed),
    ),
    PlantedDefect(
        name="baseline of another shape",
        check="predictions_can_be_scored",
        summary_texts=("baseline()", "got ("),
        advice_text="named method",
        setup=make_setup(training_defects.BaselineOfWrongShape),
    ),
    PlantedDefect(
        name="layer in a plain list",
        check="training_resumes_from_checkpoint",
        summary_texts=("the predictions differ",),
        advice_text="plain attribute",
        setup=make_setup(workloads.Cancer, faulty_network("LayerInPlainList")),
    ),
    PlantedDefect(
        name="random state that no checkpoint contains",
        check="training_resumes_from_checkpoint",
        summary_texts=("network.rng",),
        advice_text="generator",
        setup=make_setup(workloads.Diabetes, faulty_network("UnsavedGenerator")),
    ),
)
