"""The examples of ``docs/search-spaces.md`` are valid."""

import re
from pathlib import Path

import pytest
import yaml
from ray.tune.schedulers import FIFOScheduler

from sluice.base.errors import SettingsError
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.tuning.schedulers import make_scheduler
from sluice.tuning.settings import SearchSettings
from sluice.tuning.strategy import choose_strategy
from tests.sluice.tuning.searcher_libraries import is_installed, load_quietly

PAGE = (Path(__file__).parents[3] / "docs" / "search-spaces.md").read_text()
EXAMPLES = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
SPACE = next(example["space"] for example in EXAMPLES if "space" in example)
SINE = {"name": "sine", "workload": "tests.support.synthetic:SineWorkload", "space": SPACE}


class Everything(FIFOScheduler):
    def __init__(
        self,
        time_attr=None,
        max_t=None,
        grace_period=None,
        reduction_factor=None,
        min_samples_required=None,
        perturbation_interval=None,
        quantile_fraction=None,
        resample_probability=None,
        perturbation_factors=None,
        hyperparam_mutations=None,
        hyperparam_bounds=None,
        custom_explore_fn=None,
        seed=None,
        another=None,
    ):
        self.given = {name: value for name, value in locals().items() if value is not None}
        super().__init__()


def test_space_of_the_page_is_valid_in_a_pipeline():
    pipeline = PipelineSettings.parse(SINE, where="page")

    assert len(pipeline.space.parameters) == 7
    assert resolve(pipeline).search.trial_settings.workload_settings == {"seq_len": 8}


@pytest.mark.filterwarnings("ignore")  # Ray uses calls that these libraries will remove
@pytest.mark.parametrize("example", [e["search"] for e in EXAMPLES if "search" in e], ids=str)
def test_search_of_the_page_is_valid_or_its_library_is_missing(example):
    attributes = SINE | {"search": example}
    load_quietly()
    if is_installed((example.get("searcher") or {"class": ""})["class"]):
        search = resolve(PipelineSettings.parse(attributes, where="page")).settings.search
        assert search == SearchSettings.parse(example, where="page")
        return
    pipeline = PipelineSettings.parse(attributes, where="page")
    with pytest.raises(SettingsError, match=r"lacks its library|No module named"):
        resolve(pipeline)


def test_arguments_that_the_page_lists_are_set_by_sluice():
    pipeline = PipelineSettings.parse(SINE, where="page")
    named = re.search(r"does not set them: (.*?) and a seed", PAGE, re.DOTALL).group(1)
    names = re.findall(r"`(\w+)`", named)
    scheduler_class = {
        "class": "tests.sluice.tuning.test_search_spaces_page:Everything",
        "arguments": {},
    }
    search = SearchSettings.parse({"scheduler": scheduler_class, "seed": 5}, where="page")
    strategy = choose_strategy(pipeline.space, search, resolve(pipeline).search.trial_settings)
    scheduler = make_scheduler(search, strategy, pipeline.space, 25)

    assert {*names, "seed"} == scheduler.given.keys() - {"self", "__class__"}
    assert (scheduler.given["max_t"], scheduler.given["time_attr"]) == (25, "epoch")
