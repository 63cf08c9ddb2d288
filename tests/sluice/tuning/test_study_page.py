"""The page of a study shows curves, steps of PBT and the location of the files."""

import pytest

from sluice.tuning.parameters import Params
from sluice.tuning.plots import curves_png, strategy_text
from sluice.tuning.records import Exploit, ScheduleStep
from sluice.tuning.study_folder import results_path
from sluice.tuning.study_page import study_page
from sluice.tuning.study_summary import summarize_study
from tests.sluice.tuning.toy_space import BASE, search, settings, space
from tests.support.toy_search import LR, Toy

DECAY = "training.weight_decay"


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    return search(folder, settings(12, "asha"), toy=Toy(nan_above=0.3))


def make_page(result, **options):
    summary = summarize_study(result, space(), BASE, seed=0)
    return study_page(summary, title="toy <1>", unit="nats", **options)


def test_page_has_curves_and_shows_reasons_of_failed_trials_only(result):
    page = make_page(result)

    assert {trial.state for trial in result.trials} == {"finished", "pruned", "failed"}
    assert '<img alt="validation loss of every trial over its epochs"' in page
    assert "toy &lt;1&gt;" in page
    assert "train_loss is nan" in page
    assert "The last epoch." not in page
    assert "asha stopped the trial at loss" not in page
    assert "Exploits of PBT" not in page
    assert ">inf<" not in page


def test_page_shows_the_tensorboard_command(result):
    page = make_page(result, results="/my home/tune")
    assert "tensorboard --logdir &#x27;/my home/tune&#x27;" in page
    assert "tensorboard" not in make_page(result)


def test_pbt_steps_and_schedule_of_the_winner_are_tables(result):
    winner = result.winner
    changed: Params = {**winner.params, LR: 0.0123}
    schedule = (
        ScheduleStep(from_epoch=0, params=winner.params),
        ScheduleStep(from_epoch=5, params=changed),
    )
    trials = tuple(
        trial.model_copy(update={"schedule": schedule}) if trial is winner else trial
        for trial in result.trials
    )
    strategy = result.strategy.model_copy(update={"scheduler": "pbt", "changing": (LR, DECAY)})
    copy = Exploit(epoch=5, trial=result.best, donor=0, params=changed)
    update = {"trials": trials, "strategy": strategy, "exploits": (copy,)}
    page = make_page(result.model_copy(update=update))

    _, _, schedule_of = page.partition(f"<h2>Schedule of trial {result.best}</h2>")
    steps, _, copies = schedule_of.partition("<h2>Exploits of PBT</h2>")
    assert "training.learning_rate" in steps
    assert DECAY not in steps  # it did not change
    assert ">6<" in steps
    assert ">0.0123<" in steps
    assert ">weight_decay<" in copies
    assert ">0.0123<" in copies
    assert ">batch_rows<" not in copies


def test_curves_can_be_drawn_with_a_trial_without_epochs(result):
    trials = (result.trials[0].model_copy(update={"epochs": ()}), *result.trials[1:])
    drawn = curves_png(result.model_copy(update={"trials": trials}), unit="nats")
    assert drawn.startswith(b"\x89PNG")
    assert drawn != curves_png(result, unit="nats")


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        ("asha", "proposals: random, scheduler asha"),
        ("none", "proposals: random, no trial stopped early"),
        ("ray.tune.schedulers.pb2:PB2", "proposals: random, scheduler PB2"),
    ],
)
def test_strategy_text_names_classes_without_their_modules(result, scheduler, expected):
    strategy = result.strategy.model_copy(update={"scheduler": scheduler, "proposals": "random"})
    assert strategy_text(strategy) == expected


@pytest.mark.parametrize(
    ("storage", "where"),
    [
        (None, "/state/searches/ab/tune"),
        ("/nfs/tune", "/nfs/tune/ab"),
        ("s3://bucket/p?endpoint_override=http://h:1", "s3://bucket/p/ab"),
    ],
)
def test_results_are_in_the_study_folder_or_on_the_storage(storage, where, tmp_path):
    assert results_path(type(tmp_path)("/state/searches/ab"), storage) == where
