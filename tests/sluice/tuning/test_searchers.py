"""Searchers of Ray Tune: random values, TPE, and classes by import path."""

import copy
import importlib
import math

import optuna
import pytest
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch

from sluice.base.errors import SettingsError
from sluice.training.settings import TrainSettings
from sluice.tuning.schedulers import metric_of
from sluice.tuning.searchers import make_searcher
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import TrialSettings
from sluice.tuning.strategy import plan_search
from sluice.tuning.tune_space import decode, tune_space
from tests.sluice.tuning.searcher_libraries import (
    BOHB,
    HYPEROPT,
    MODULES,
    NEVERGRAD,
    is_installed,
    load_quietly,
)
from tests.sluice.tuning.toy_space import space
from tests.support.toy_search import LR

BASE = TrialSettings(training=TrainSettings(max_epochs=27, learning_rate=0.03, batch_rows=64))
OPTUNA = "ray.tune.search.optuna:OptunaSearch"
BOHB_SCHEDULER = {"class": "ray.tune.schedulers:HyperBandForBOHB"}


class Halton(Searcher):
    """Custom searcher that receives the search space."""

    def __init__(self, metric, mode, seed):
        super().__init__(metric=metric, mode=mode)
        self.seed, self.space = seed, None

    def set_search_properties(self, metric, mode, config, **spec):  # noqa: ARG002
        self.space = config
        return True

    def suggest(self, trial_id):  # noqa: ARG002
        return {name: domain.sample(random_state=self.seed) for name, domain in self.space.items()}

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass

    save = restore = None


class Broken(Halton):
    def suggest(self, trial_id):
        raise ValueError(f"nothing for {trial_id}")


class NoSpace(Halton):
    set_search_properties = Searcher.set_search_properties


class GivenSpace(NoSpace):
    def __init__(self, space=None, metric=None, mode=None):
        super().__init__(metric, mode, 0)
        self.space = space


class MissingLibrary(Halton):
    def __init__(self):
        import a_library_that_nobody_has  # noqa: F401


def path_to(name):
    return f"tests.sluice.tuning.test_searchers:{name}"


def build_searcher(num_trials=30, seed=3, searcher=None, base=BASE, **more):
    arguments = {"num_trials": num_trials, "seed": seed, "searcher": searcher} | more
    settings = SearchSettings.parse(arguments, where="search")
    strategy, search_space = plan_search(space(), settings, base)
    return make_searcher(settings, strategy, search_space, base, metric_of(strategy)), search_space


def distance(params):
    return (math.log10(params[LR]) + 2) ** 2


def run(searcher, search_space, count, loss=distance):
    """Run ``count`` trials one after another and return their parameters."""
    found = []
    for number in range(count):
        params = decode(search_space, BASE, searcher.suggest(f"{number:05d}"))
        found.append(params)
        value = loss(params)
        failed = not math.isfinite(value)
        result = None if failed else {"loss": value, "training_iteration": 5}
        searcher.on_trial_complete(f"{number:05d}", result=result, error=failed)
    return found


@pytest.mark.parametrize("num_trials", [5, 30])
def test_suggestions_depend_only_on_the_seed_and_the_results(num_trials):
    first, again, other = (
        run(*build_searcher(num_trials, seed=seed, startup_trials=4), count=12)
        for seed in (1, 1, 2)
    )

    assert first == again
    assert first[1:] != other[1:]
    assert len({repr(params) for params in first}) == 12


def test_trial_0_has_the_values_of_the_file_within_the_space():
    base = BASE.model_copy(
        update={"training": BASE.training.model_copy(update={"weight_decay": 0.5})}
    )
    first = run(*build_searcher(base=base), count=1)[0]

    assert (first[LR], first["training.batch_rows"]) == (0.03, 64)
    assert first["model.architecture"] == "gru"
    assert first["training.weight_decay"] != 0.5


@pytest.mark.slow
def test_tpe_is_closer_to_a_planted_optimum_than_random_search():
    num_closer = 0
    for seed in range(5):
        tpe = run(*build_searcher(40, seed=seed), count=40)
        random_trials = run(*build_searcher(101, seed=seed), count=40)
        num_closer += sum(map(distance, tpe[20:])) < 0.5 * sum(map(distance, random_trials[20:]))
    assert num_closer >= 4


def test_tpe_avoids_regions_where_trials_fail():
    """Optuna itself ignores failed trials."""
    found = run(*build_searcher(60), count=60, loss=lambda p: math.inf if p[LR] > 1e-2 else 1.0)

    failed = [params[LR] > 1e-2 for params in found]
    assert sum(failed[10:]) / 50 < 0.5 * sum(failed[1:10]) / 9


def test_log_level_of_optuna_is_unchanged():
    optuna.logging.set_verbosity(optuna.logging.INFO)
    run(*build_searcher(), count=12)

    assert optuna.logging.get_verbosity() == optuna.logging.INFO


@pytest.mark.parametrize("num_trials", [5, 30])
def test_new_searcher_can_be_copied(num_trials):
    """A resumed study starts from copies."""
    searcher, search_space = build_searcher(num_trials)
    copied = copy.deepcopy(searcher)

    assert run(searcher, search_space, 12) == run(copied, search_space, 12)


@pytest.mark.parametrize("name", ["Halton", "GivenSpace"])
def test_custom_searcher_receives_the_space(name):
    searcher, search_space = build_searcher(searcher={"class": path_to(name)})

    assert searcher.space.keys() == tune_space(search_space, BASE).keys()
    assert (searcher.metric, searcher.mode) == ("loss", "min")
    for params in run(searcher, search_space, 3):
        assert all(search_space.parameters[path].contains(value) for path, value in params.items())


def test_optuna_by_class_supports_conditions_and_any_sampler():
    sampler = {"class": "optuna.samplers:NSGAIISampler", "arguments": {"population_size": 4}}
    searcher, search_space = build_searcher(
        searcher={"class": OPTUNA, "arguments": {"sampler": {**sampler}}}
    )

    assert type(searcher) is OptunaSearch
    assert isinstance(searcher._sampler, optuna.samplers.NSGAIISampler)
    found = run(searcher, search_space, 12)
    assert len({"model.dropout" in params for params in found}) == 2
    again, search_space = build_searcher(
        searcher={"class": OPTUNA, "arguments": {"sampler": {**sampler}}}
    )
    assert run(again, search_space, 12) == found


ARGUMENTS = {
    HYPEROPT: {"n_initial_points": 3},
    NEVERGRAD: {
        "optimizer": {"class": "nevergrad:optimizers.OnePlusOne"},
        "optimizer_kwargs": {"budget": 9},
    },
    BOHB: {},
}


@pytest.fixture(scope="module", autouse=True)
def _loaded():
    load_quietly()


@pytest.mark.filterwarnings("ignore")  # Ray uses calls that these libraries will remove
@pytest.mark.parametrize("path", ARGUMENTS)
def test_searcher_of_another_library_supports_every_parameter(path):
    if not is_installed(path):
        pytest.skip(f"needs {', '.join(MODULES[path])}")
    more = {"scheduler": BOHB_SCHEDULER} if path == BOHB else {}
    arguments = {"class": path, "arguments": ARGUMENTS[path]}
    searcher, search_space = build_searcher(searcher=arguments, **more)
    found = [decode(search_space, BASE, searcher.suggest(f"{n:05d}")) for n in range(6)]

    for params in found:
        assert all(search_space.parameters[path].contains(value) for path, value in params.items())
    assert (found[0][LR], found[0]["training.batch_rows"]) == (pytest.approx(0.03), 64)
    assert len({repr(params) for params in found}) >= 3


@pytest.mark.parametrize("path", ARGUMENTS)
def test_searcher_without_its_library_is_rejected_with_the_extra(path, monkeypatch):
    package = path.partition(":")[0]
    module = importlib.import_module(f"{package}.{package.rpartition('.')[2]}_search")
    for name in ("hpo", "ng", "BOHB"):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, None)
    more = {"scheduler": BOHB_SCHEDULER} if path == BOHB else {}

    with pytest.raises(SettingsError, match=r"lacks its library: .*pip install.*sluice-mlops\[sea"):
        build_searcher(searcher={"class": path}, **more)


@pytest.mark.parametrize(
    ("searcher", "message"),
    [
        (
            {"class": path_to("MissingLibrary")},
            "lacks its library: No module named 'a_library_that_nobody_has'",
        ),
        ({"class": path_to("NoSpace")}, "does not accept a search space"),
        (
            {"class": path_to("Broken")},
            "refuses its arguments: nothing for 00000.* It takes: seed",
        ),
        ({"class": path_to("Missing")}, "has no 'Missing'"),
        ({"class": "ray.tune.schedulers:ASHAScheduler"}, "searcher .* must be a subclass of ray"),
        ({"class": "ray.tune.search.basic_variant:BasicVariantGenerator"}, "must be a subclass"),
        (
            {"class": BOHB},
            "BOHB requires its scheduler and its searcher, but search sets only the searc",
        ),
        (
            {"class": OPTUNA, "arguments": {"samplr": 1}},
            "Did you mean 'sampler'.* It takes: points",
        ),
        ({"class": OPTUNA, "arguments": {"sampler": "tpe"}}, "refuses its arguments"),
        (
            {"class": OPTUNA, "arguments": {"sampler": {"class": "optuna.samplers:TPE"}}},
            "has no 'TPE'",
        ),
        (
            {
                "class": OPTUNA,
                "arguments": {"sampler": {"class": "os:system", "arguments": {"command": "true"}}},
            },
            "must be a sampler of Optuna or an optimizer of Nevergrad",
        ),
        ({"class": path_to("Halton"), "arguments": {"space": {}}}, "The argument 'space' of"),
    ],
)
def test_unusable_searcher_is_rejected_before_the_search(searcher, message):
    with pytest.raises(SettingsError, match=message):
        build_searcher(searcher=searcher)
