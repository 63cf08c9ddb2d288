"""Importance of parameters: planted effects, Optuna's fANOVA as oracle, and range edges."""

import math
import random

import numpy as np
import optuna
import pytest

from sluice.tuning.importance import measure_importance
from sluice.tuning.plots import importance_png, sensitivity_png, trials_png
from sluice.tuning.records import EpochLosses, ScheduleStep, SearchResult, Strategy, TrialRecord
from sluice.tuning.spaces import TrialSettings
from tests.sluice.tuning.toy_space import space
from tests.support.toy_search import DROPOUT, LR

DECAY, ROWS, KIND = "training.weight_decay", "training.batch_rows", "model.architecture"


def make_result(loss, *, count=60, pruned=(), failed=(), seed=0, search_space=None):
    """Return a search result with random trials whose final loss is ``loss(params)``."""
    search_space, trials = search_space or space(), []
    for number in range(count):
        draw = np.random.default_rng([seed, number])
        params = search_space.choose(TrialSettings(), lambda _path, p, draw=draw: p.sample(draw))
        epochs = 2 + 2 * (number % 2) if number in pruned else 9
        value = loss(params)
        curve = tuple(
            EpochLosses(epoch=e, train_loss=0.0, val_loss=0.0, kept_loss=value + 9 / e)
            for e in range(1, epochs + 1)
        )
        state = "failed" if number in failed else "pruned" if number in pruned else "finished"
        trials.append(
            TrialRecord(
                id=number,
                schedule=(ScheduleStep(from_epoch=0, params=params),),
                epochs=curve,
                state=state,
            )
        )
    best = min(trials, key=lambda t: t.loss)
    return SearchResult(
        strategy=Strategy(
            proposals="random",
            scheduler="asha",
            parameters=tuple(search_space.parameters),
            decision_epochs=(4,),
            reason="",
        ),
        trials=tuple(trials),
        best=best.id,
        setup=TrialSettings(),
        num_trials=count,
        seconds=1.0,
    )


def make_quadratic(optimum):
    return lambda params: (math.log10(params[LR]) - optimum) ** 2


def find_parameter(importance, path):
    return next(p for p in importance.parameters if p.path == path)


def test_only_relevant_parameter_has_nearly_all_importance():
    found = measure_importance(make_result(make_quadratic(-2)), space(), seed=0)

    assert found.parameters[0].path == LR
    assert found.parameters[0].share > 0.9
    assert sum(p.share for p in found.parameters) == pytest.approx(1)
    assert found.fit > 0.8
    assert found.is_clear
    curve = {p.value: p.loss for p in found.parameters[0].sensitivity}
    assert 10**-2.5 < min(curve, key=curve.get) < 10**-1.5


def test_noise_has_no_fit_and_importance_grows_with_the_effect():
    noise = random.Random(1)
    for seed in range(3):
        found = measure_importance(
            make_result(lambda _: noise.random(), seed=seed), space(), seed=0
        )
        assert not found.is_clear
        assert {p.edge for p in found.parameters} == {""}

    def make_loss(weight):
        return lambda p: make_quadratic(-2)(p) + weight * (p[ROWS] == 8)

    shares = [
        find_parameter(
            measure_importance(make_result(make_loss(weight)), space(), seed=0), ROWS
        ).share
        for weight in (0.0, 2.0, 20.0)
    ]
    assert shares == sorted(shares)
    assert shares[-1] > 0.3


def test_categorical_and_disabled_values_can_be_important():
    by_kind = measure_importance(make_result(lambda p: p[KIND] == "gru"), space(), seed=0)
    # Dropout is active for one category only, so it carries the same information.
    assert {by_kind.parameters[0].path, by_kind.parameters[1].path} == {KIND, DROPOUT}
    by_off = measure_importance(make_result(lambda p: float(p[DECAY] == 0)), space(), seed=0)
    assert by_off.parameters[0].path == DECAY
    assert by_off.parameters[0].edge == ""


def test_order_of_importance_equals_that_of_fanova():
    """Independent oracle, on unconditional parameters."""
    search_space = space().leading(3)

    def loss(params):
        decay = math.log10(params[DECAY] or 1e-4)
        return (
            make_quadratic(-2)(params) + 0.5 * (decay + 2.5) ** 2 + 0.01 * math.log2(params[ROWS])
        )

    result = make_result(loss, search_space=search_space, count=80)
    study = optuna.create_study()
    for trial in result.trials:
        positions = {p: search_space.parameters[p].position(v) for p, v in trial.params.items()}
        study.add_trial(
            optuna.trial.create_trial(
                params={p: -0.1 if v is None else v for p, v in positions.items()},
                distributions={
                    p: optuna.distributions.FloatDistribution(-0.1, 1) for p in positions
                },
                value=trial.loss,
            )
        )
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    expected = optuna.importance.get_param_importances(study, evaluator=evaluator)
    order = [p.path for p in measure_importance(result, search_space, seed=0).parameters]

    assert order == sorted(expected, key=expected.get, reverse=True) == [LR, DECAY, ROWS]


@pytest.mark.parametrize(("optimum", "edge"), [(-5, "low"), (-2, ""), (1, "high")])
def test_best_value_at_an_end_of_the_range_is_reported(optimum, edge):
    found = find_parameter(
        measure_importance(make_result(make_quadratic(optimum)), space(), seed=0), LR
    )

    assert found.edge == edge
    assert ("Widen the range" in found.advice) == bool(edge)


@pytest.mark.parametrize("num_seeds", [2, pytest.param(5, marks=pytest.mark.exhaustive)])
def test_natural_limit_or_irrelevant_parameter_has_no_edge(num_seeds):
    search_space = space(**{DROPOUT: {"kind": "uniform", "low": 0.0, "high": 0.5}})

    def by_dropout(optimum):
        return lambda p: abs(p[DROPOUT] - optimum)

    def edge(optimum):
        result = make_result(by_dropout(optimum), search_space=search_space)
        return find_parameter(measure_importance(result, search_space, seed=0), DROPOUT).edge

    assert edge(0.0) == ""  # no dropout is below 0
    assert edge(0.5) == "high"
    # If only the learning rate matters, the best values of the others are random.
    for seed in range(num_seeds):
        found = measure_importance(make_result(make_quadratic(-2), seed=seed), space(), seed=0)
        assert {p.edge for p in found.parameters} == {""}


def test_trials_are_compared_at_an_epoch_that_all_reached():
    """The pruned trials are good; their last loss is high only because they are short."""
    good = [
        t.id for t in make_result(make_quadratic(-2)).trials if make_quadratic(-2)(t.params) < 0.3
    ]
    found = measure_importance(make_result(make_quadratic(-2), pruned=good), space(), seed=0)

    assert found.at_epoch == 2
    curve = {p.value: p.loss for p in find_parameter(found, LR).sensitivity}
    assert 10**-2.5 < min(curve, key=curve.get) < 10**-1.5


def test_too_few_trials_or_equal_losses_have_no_importance():
    few = measure_importance(
        make_result(make_quadratic(-2), count=12, failed=(0, 1, 2)), space(), seed=0
    )
    assert few.outcome == "insufficient"
    assert "got 9" in few.reason
    same = measure_importance(make_result(lambda _: 1.0), space(), seed=0)
    assert "same loss" in same.reason
    assert importance_png(few).startswith(b"\x89PNG")


def test_importance_is_reproducible_for_each_seed():
    result = make_result(make_quadratic(-2))

    assert measure_importance(result, space(), seed=1) == measure_importance(
        result, space(), seed=1
    )
    assert measure_importance(result, space(), seed=1) != measure_importance(
        result, space(), seed=2
    )


def test_plots_are_small_pngs_for_every_kind_of_parameter():
    result = make_result(make_quadratic(-5), pruned=(1, 2), failed=(3,))
    found = measure_importance(result, space(), seed=0)
    plots = [trials_png(result), importance_png(found)]
    plots += [
        sensitivity_png(each, result, space(), at_epoch=found.at_epoch) for each in found.parameters
    ]

    assert len({bytes(p) for p in plots}) == 7
    assert all(p.startswith(b"\x89PNG") and len(p) < 40_000 for p in plots)
