"""What the next trial gets: repeatable, and better than chance where there is something to find."""

import math

import optuna
import pytest

from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.tuning.proposals import Past, not_held, own_first, random_proposals, tpe_proposals
from sluice.tuning.spaces import Setup
from tests.sluice.tuning.toy_space import space
from tests.support.toy_search import LR


def far(params):
    return (math.log10(params[LR]) + 2) ** 2


def run(propose, count=40, loss=far):
    past: list[Past] = []
    for number in range(count):
        params = propose(number, tuple(past))
        past.append(Past(params=params, loss=loss(params), epochs=5, pruned=number % 3 == 1))
    return past


@pytest.fixture
def tpe():
    return tpe_proposals(space(), Setup(), seed=1, startup_trials=10)


def test_a_proposal_depends_on_the_seed_and_the_number_alone():
    first = random_proposals(space(), Setup(), seed=1)
    again = random_proposals(space(), Setup(), seed=1)
    other = random_proposals(space(), Setup(), seed=2)

    assert [first(n, ()) for n in (2, 0)] == [again(n, ()) for n in (2, 0)]
    assert first(0, ()) != first(1, ())
    assert first(0, ()) != other(0, ())


def test_one_more_parameter_leaves_the_draws_of_the_others_alone():
    small, large = (
        random_proposals(s, Setup(), seed=1)(7, ()) for s in (space().leading(2), space())
    )

    assert large.items() >= small.items()


def test_trial_0_has_the_values_of_the_file_and_only_what_lies_outside_is_drawn():
    own = Setup(training=TrainSettings(learning_rate=0.03, weight_decay=0.5, batch_rows=64))
    draw = random_proposals(space(), own, seed=1)
    propose = own_first(draw, space(), own, seed=1)
    first = propose(0, ())

    assert not_held(space(), own) == ("training.weight_decay",)
    assert first[LR] == 0.03
    assert first["training.batch_rows"] == 64
    assert first["training.weight_decay"] == draw(0, ())["training.weight_decay"] != 0.5
    assert propose(1, ()) == draw(1, ())
    assert propose(0, ()) == first


def test_a_value_that_does_not_count_in_the_file_is_not_called_outside():
    """The dropout of the toy space counts with 'gru' alone."""
    model = {"architecture": "lstm", "dropout": 0.9, "layers": 2}
    for kind, outside in (("lstm", ()), ("gru", ("model.dropout",))):
        own = Setup(
            model=ModelSettings.parse(model | {"architecture": kind}, where="test"),
            training=TrainSettings(batch_rows=64),
        )
        assert not_held(space(), own) == outside


def test_tpe_proposes_the_same_from_the_same_past(tpe):
    past = run(tpe, 20)
    again = tpe_proposals(space(), Setup(), seed=1, startup_trials=10)

    assert tpe(20, past) == again(20, past)
    assert tpe(20, past) != tpe(20, past[:-1])
    assert tpe(20, past) != tpe_proposals(space(), Setup(), seed=2, startup_trials=10)(20, past)


def test_tpe_begins_with_ten_random_trials(tpe):
    """TUNE-1."""
    draw = random_proposals(space(), Setup(), seed=1)
    past = run(tpe, 12)

    assert [p.params for p in past[:10]] == [draw(n, ()) for n in range(10)]
    assert past[10].params != draw(10, ())


@pytest.mark.slow
def test_tpe_comes_nearer_to_a_planted_optimum_than_chance():
    nearer = 0
    for seed in range(5):
        options = {"seed": seed}
        tpe = run(tpe_proposals(space(), Setup(), startup_trials=10, **options))
        chance = run(random_proposals(space(), Setup(), **options))
        # The later half: the first proposals are random in both.
        nearer += sum(p.loss for p in tpe[20:]) < 0.5 * sum(p.loss for p in chance[20:])
    assert nearer >= 4


def test_tpe_turns_away_from_where_trials_fail():
    past = run(
        tpe_proposals(space(), Setup(), seed=3, startup_trials=10),
        loss=lambda p: math.inf if p[LR] > 1e-2 else 1.0,
    )

    failed = [math.isinf(p.loss) for p in past]
    assert sum(failed[20:]) < sum(failed[:20])


@pytest.mark.slow
def test_a_failed_trial_is_worse_than_a_stopped_one():
    draw = random_proposals(space(), Setup(), seed=1)
    past = []
    for number in range(30):
        params = draw(number, ())
        loss = math.inf if params[LR] > 1e-2 else 1.0 + number / 100
        past.append(Past(params=params, loss=loss, epochs=5, pruned=True))
    tpe = tpe_proposals(space(), Setup(), seed=1, startup_trials=10)

    assert sum(p.params[LR] > 1e-2 for p in past) > 10
    assert sum(tpe(30 + number, past)[LR] > 1e-2 for number in range(20)) <= 6


def test_running_trials_and_every_kind_of_value_can_be_told(tpe):
    past = [*run(tpe, 12), Past(params=tpe(12, run(tpe, 12)), loss=None, epochs=0, pruned=False)]

    assert tpe(13, past) != past[-1].params
    assert {p.params["training.weight_decay"] == 0 for p in run(tpe, 30)} == {True, False}


def test_optunas_voice_is_left_as_it_was(tpe):
    optuna.logging.set_verbosity(optuna.logging.INFO)
    run(tpe, 11)

    assert optuna.logging.get_verbosity() == optuna.logging.INFO
