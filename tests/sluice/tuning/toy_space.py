"""Search space, settings and toy search that the tests share."""

from sluice.cluster.settings import ComputeSettings
from sluice.training.settings import TrainSettings
from sluice.tuning.search import run_search
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import Space, TrialSettings
from tests.support.simulated_tune import simulate
from tests.support.toy_search import DROPOUT, LR, Toy

HERE = ComputeSettings()
BASE = TrialSettings(training=TrainSettings(max_epochs=27))


def space(**more) -> Space:
    parameters = {
        LR: {"kind": "log_uniform", "low": 1e-4, "high": 1.0},
        "training.weight_decay": {
            "kind": "log_uniform",
            "low": 1e-4,
            "high": 0.1,
            "may_be_off": True,
        },
        "training.batch_rows": {"kind": "powers_of_two", "low": 8, "high": 64},
        "model.architecture": {"kind": "choice", "options": ["gru", "lstm"]},
        DROPOUT: {
            "kind": "uniform",
            "low": 0.0,
            "high": 0.5,
            "when": {"path": "model.architecture", "one_of": ["gru"]},
        },
    }
    return Space.parse({"parameters": parameters | more}, where="search.space")


def ignore(outcome, trials):
    pass


def settings(num_trials=12, scheduler="asha", **more) -> SearchSettings:
    more = {"grace_epochs": 3, "seed": 3} | more
    search_settings = {"num_trials": num_trials, "scheduler": scheduler, **more}
    return SearchSettings.parse(search_settings, where="search")


def search(
    folder,
    search_settings=None,
    *,
    on_report=ignore,
    toy=None,
    own_space=None,
    compute=HERE,
    run=simulate,
    **more,
):
    """Run a search of a toy objective; ``run=run_tuner`` runs it on Ray."""
    return run_search(
        toy or Toy(),
        own_space or space(),
        BASE,
        search_settings or settings(),
        folder=folder,
        on_report=on_report,
        compute=compute,
        run=run,
        **more,
    )


def decisions(result):
    """Return the parts of a result that must not depend on machine or time."""
    trials = [t.model_dump(exclude={"seconds"}) for t in result.trials]
    return trials, result.exploits, result.best, result.strategy, result.setup
