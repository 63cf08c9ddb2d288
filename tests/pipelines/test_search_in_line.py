"""A line with a search: its winner is what is trained, judged and recorded (TUNE-1..4)."""

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
    """The line with a search that cannot miss: as written the rate is far too low."""
    slow = short_echo.training.model_copy(update={"learning_rate": 5e-3})
    return short_echo.model_copy(
        update={
            "training": slow,
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


def best_config(home: Home) -> BestConfig:
    return BestConfig.model_validate_json((home.records / "echo" / "best_config.json").read_bytes())


def study_of(home: Home) -> StudySummary:
    return StudySummary.model_validate_json(
        ArtifactStore(home.artifacts).get(best_config(home).study)
    )


def test_winner_is_trained_and_its_lineage_says_of_how_many(
    searched: tuple[Home, RunReport], searching: PipelineSettings
) -> None:
    """TUNE-4: five seeds on test rows the search never saw; the trials travel in the lineage."""
    home, report = searched
    best, study = best_config(home), study_of(home)
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


def test_trial_0_is_the_pipeline_as_written(searched: tuple[Home, RunReport]) -> None:
    result = study_of(searched[0]).result
    assert result.trials[0].params == {RATE: 5e-3}
    (subject,) = searched[0].searches.glob("*/subject.json")
    assert json.loads(subject.read_bytes())["objective"]["data_seed"] == 3
    assert result.winner.loss < result.trials[0].loss


def test_its_page_in_the_ui_has_pictures_and_a_table(
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
    assert RATE in metadata["winner"].value
    rate = best_config(home).setup.training.learning_rate
    written = f"```yaml\ntraining:\n  learning_rate: {rate}\n```"
    assert metadata["settings for the pipeline's YAML"].value == written
    assert metadata["best 12 trials"].value.count("\n") == 5
    page = next(home.reports.glob("searches/echo-*.html")).read_text()
    assert "Every trial, the best first" in page
    assert metadata["study report"].value.endswith(".html")


@pytest.mark.exhaustive
def test_same_again_reads_the_search_and_starts_no_ray(
    searched: tuple[Home, RunReport],
    searching: PipelineSettings,
    run: Runner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home, first = searched
    before = best_config(home)
    monkeypatch.setattr("ray.init", lambda *_, **__: pytest.fail("Ray was started"))

    again = run(searching, home)

    assert (again.version, again.created) == (first.version, False)
    assert best_config(home) == before


def test_settings_found_for_another_search_are_not_trained(
    searched: tuple[Home, RunReport], searching: PipelineSettings
) -> None:
    from tests.pipelines.test_line import failure, materialize_alone

    home, _ = searched
    wider = searching.search.model_copy(update={"num_trials": 5})
    other = searching.model_copy(update={"search": wider})

    alone = materialize_alone(other, home, "trained_models")

    assert not alone.success
    assert "The best config's rules must match the current settings" in failure(alone)


def test_tune_shows_the_best_trials_and_what_to_write_into_the_file(
    searched: tuple[Home, RunReport],
    searching: PipelineSettings,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home, _ = searched
    monkeypatch.setattr("ray.init", lambda *_, **__: pytest.fail("Ray was started"))

    tune(resolve(searching), home, as_json=False)

    said = capsys.readouterr().out
    best = best_config(home)
    assert "of 4 has the lowest validation loss" in said
    told = said.partition("to set in the pipeline's file\n")[2].partition("\n\n")[0]
    assert yaml.safe_load(told) == {
        "training": {"learning_rate": best.setup.training.learning_rate}
    }
    assert "page: " in said


@pytest.mark.exhaustive
def test_tune_tells_the_study_as_json(
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
    ) == study_of(home)
