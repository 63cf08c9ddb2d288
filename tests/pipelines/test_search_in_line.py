"""A line with a search: its winner is trained, evaluated and recorded (TUNE-1..4)."""

import json
import shutil
from pathlib import Path

import dagster as dg
import pytest
import yaml

from sluice.assets.best_config import BestConfig
from sluice.base.artifacts import ArtifactStore
from sluice.base.home import Home
from sluice.cli.orchestration.tune import tune
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.pipelines.instance import open_instance
from sluice.pipelines.run import RunReport
from sluice.tuning.parameters import LogUniform
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import Space
from sluice.tuning.study_summary import StudySummary
from tests.pipelines.conftest import Runner, home_at, ledger_of, run_line

pytestmark = pytest.mark.slow

RATE = "training.learning_rate"


@pytest.fixture(scope="module")
def searching(short_echo: PipelineSettings) -> PipelineSettings:
    """A pipeline whose learning rate is far too low, with a search that finds a better one."""
    low_rate = short_echo.training.model_copy(update={"learning_rate": 5e-3})
    return short_echo.model_copy(
        update={
            "training": low_rate,
            "data_seed": 3,
            "search": SearchSettings(num_trials=4, scheduler="asha", grace_epochs=2),
            "space": Space(parameters={RATE: LogUniform(low=1e-3, high=1.0)}),
        }
    )


@pytest.fixture(scope="module")
def _searched(
    tmp_path_factory: pytest.TempPathFactory, searching: PipelineSettings
) -> tuple[Path, RunReport]:
    folder = tmp_path_factory.mktemp("searched") / "home"
    return folder, run_line(searching, home_at(folder))


@pytest.fixture
def searched(_searched: tuple[Path, RunReport], tmp_path: Path) -> tuple[Home, RunReport]:
    folder, report = _searched
    shutil.copytree(folder, tmp_path / "searched")
    return home_at(tmp_path / "searched"), report


def read_best_config(home: Home) -> BestConfig:
    return BestConfig.model_validate_json((home.records / "echo" / "best_config.json").read_bytes())


def read_study(home: Home) -> StudySummary:
    return StudySummary.model_validate_json(
        ArtifactStore(home.artifacts).get(read_best_config(home).study)
    )


def test_winner_is_trained_and_its_lineage_records_the_search(
    searched: tuple[Home, RunReport], searching: PipelineSettings
) -> None:
    """Five seeds are tested on rows that the search did not use (TUNE-4)."""
    home, report = searched
    best, study = read_best_config(home), read_study(home)
    with ledger_of(home) as ledger:
        version = ledger.version(searching.name, report.version)
        receipts = {linked.receipt.gate for linked in ledger.receipts(searching.name, 1)}
        findings = ledger.verify(searching.name, store=ArtifactStore(home.artifacts))

    assert study.result.winner.params[RATE] > 5e-3
    assert best.setup.training.learning_rate == study.result.winner.params[RATE]
    recorded = version.lineage.resolved_config["training"]["learning_rate"]
    assert recorded == best.setup.training.learning_rate
    assert version.lineage.config == best.found != resolve(searching).training.config_digest
    assert version.lineage.num_trials == best.num_trials == 4
    assert len(version.lineage.seeds) == 5
    assert receipts == {"poc", "search", "promotion"}
    assert version.lineage.artifacts["search"] == best.study
    assert findings == []


def test_trial_0_has_the_settings_of_the_pipeline(searched: tuple[Home, RunReport]) -> None:
    result = read_study(searched[0]).result
    assert result.trials[0].params == {RATE: 5e-3}
    (subject,) = searched[0].searches.glob("*/subject.json")
    assert json.loads(subject.read_bytes())["objective"]["data_seed"] == 3
    assert result.winner.loss < result.trials[0].loss


def test_metadata_of_best_config_has_plots_and_a_table(
    searched: tuple[Home, RunReport], searching: PipelineSettings
) -> None:
    home, _ = searched
    with open_instance(home) as instance:
        event = instance.get_latest_materialization_event(
            dg.AssetKey([searching.name, "best_config"])
        )
    metadata = event.asset_materialization.metadata

    for name in ("trial losses", "parameter importance"):
        assert metadata[name].value.startswith("![")
    assert RATE in metadata["values of the best trial"].value
    rate = read_best_config(home).setup.training.learning_rate
    written = f"```yaml\ntraining:\n  learning_rate: {rate}\n```"
    assert metadata["settings for the pipeline's YAML"].value == written
    assert metadata["best 12 trials"].value.count("\n") == 5
    page = next(home.reports.glob("searches/echo-*.html")).read_text()
    assert "Every trial, the best first" in page
    assert metadata["study report"].value.endswith(".html")


@pytest.mark.exhaustive
def test_repeated_run_reuses_the_search_without_ray(
    searched: tuple[Home, RunReport],
    searching: PipelineSettings,
    run: Runner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home, first = searched
    before = read_best_config(home)
    monkeypatch.setattr("ray.init", lambda *_, **__: pytest.fail("Ray was started"))

    again = run(searching, home)

    assert (again.version, again.created) == (first.version, False)
    assert read_best_config(home) == before


def test_best_config_of_another_search_is_not_trained(
    searched: tuple[Home, RunReport], searching: PipelineSettings
) -> None:
    from tests.pipelines.test_line import failure, materialize_alone

    home, _ = searched
    wider = searching.search.model_copy(update={"num_trials": 5})
    other = searching.model_copy(update={"search": wider})

    alone = materialize_alone(other, home, "trained_models")

    assert not alone.success
    assert "The best config's rules must have the digest" in failure(alone)


def test_tune_prints_the_best_trials_and_the_settings_for_the_pipeline_file(
    searched: tuple[Home, RunReport],
    searching: PipelineSettings,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home, _ = searched
    monkeypatch.setattr("ray.init", lambda *_, **__: pytest.fail("Ray was started"))

    tune(resolve(searching), home, as_json=False)

    printed = capsys.readouterr().out
    best = read_best_config(home)
    assert "of 4 has the lowest validation loss" in printed
    suggested = printed.partition("settings for the pipeline file\n")[2].partition("\n\n")[0]
    assert yaml.safe_load(suggested) == {
        "training": {"learning_rate": best.setup.training.learning_rate}
    }
    assert "page: " in printed


@pytest.mark.exhaustive
def test_tune_prints_the_study_as_json(
    searched: tuple[Home, RunReport],
    searching: PipelineSettings,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home, _ = searched

    tune(resolve(searching), home, as_json=True)

    assert StudySummary.model_validate(
        {
            k: v
            for k, v in json.loads(capsys.readouterr().out).items()
            if k not in ("setup", "found", "page", "results")
        }
    ) == read_study(home)
