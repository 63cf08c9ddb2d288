"""The whole line on a small workload: a promotion, repeated runs, and every gate that blocks."""

import dataclasses
from pathlib import Path
from typing import TypeVar

import dagster as dg
import pytest

from sluice.assets.evaluation_record import Evaluation
from sluice.assets.promotion_verdict import PromotionDecision
from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import GateBlocked
from sluice.base.home import Home
from sluice.base.settings import Record
from sluice.cli.app import run_command
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.evaluation.alpha_spending import spent_alpha
from sluice.evaluation.guard_settings import GuardSettings, HardLimit
from sluice.evaluation.suites.library import SuiteLibrary
from sluice.evaluation.suites.settings import SuiteGuard, SuiteSettings
from sluice.pipelines.code_location import DEFINITIONS_MODULE
from sluice.pipelines.definitions_builder import build_definitions
from sluice.pipelines.instance import open_instance
from sluice.pipelines.resources import resources
from sluice.pipelines.run import RunReport
from sluice.registry.signing import SigningKey
from tests.pipelines.conftest import ECHO, STAGES, Runner, ledger_of

pytestmark = pytest.mark.slow

T = TypeVar("T", bound=Record)


def materialize_alone(
    pipeline: PipelineSettings,
    home: Home,
    asset: str,
    config: dict[str, object] | None = None,
    *,
    checks: bool = False,
) -> dg.ExecuteInProcessResult:
    """Materialize one asset by itself, optionally with its checks as in the UI."""
    definitions = dg.Definitions.merge(
        build_definitions(resolve(pipeline)), dg.Definitions(resources=resources(home))
    )
    selection = dg.AssetSelection.assets([pipeline.name, asset])
    if not checks:
        selection = selection.without_checks()
    job = dg.define_asset_job("alone", selection=selection)
    definitions = dg.Definitions.merge(definitions, dg.Definitions(jobs=[job]))
    with open_instance(home) as instance:
        return definitions.resolve_job_def("alone").execute_in_process(
            instance=instance, run_config=config, raise_on_error=False
        )


def failure(result: dg.ExecuteInProcessResult) -> str:
    """Return the message of the first failed step, with its causes."""
    event = next(e for e in result.all_events if e.is_step_failure)
    return event.step_failure_data.error_display_string


def materialized(home: Home, pipeline: PipelineSettings) -> set[str]:
    with open_instance(home) as instance:
        return {
            key.path[-1]
            for key in instance.all_asset_keys()
            if instance.get_latest_materialization_event(key) and key.path[0] == pipeline.name
        }


def record_of(home: Home, kind: type[T], name: str) -> T:
    return kind.model_validate_json((home.records / "echo" / f"{name}.json").read_bytes())


def metadata_of(home: Home, pipeline: PipelineSettings, name: str) -> set[str]:
    with open_instance(home) as instance:
        event = instance.get_latest_materialization_event(dg.AssetKey([pipeline.name, name]))
    return set(event.asset_materialization.metadata)


def test_better_candidate_is_promoted_to_production(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, report = green

    assert (report.verdict, report.version, report.production) == ("PROMOTE", 1, 1)
    assert report.promoted
    assert report.metric_directions["loss"] == "lower"
    assert materialized(home, echo) == STAGES - {"drift_report"}
    with open_instance(home) as instance:
        origins = {run.job_name: run.remote_job_origin for run in instance.get_runs()}
    assert {job: (origin.job_name, origin.location_name) for job, origin in origins.items()} == {
        "echo_training": ("echo_training", DEFINITIONS_MODULE),
        "echo_promotion": ("echo_promotion", DEFINITIONS_MODULE),
    }, "the timeline of the UI shows runs of known jobs only"


def test_every_check_of_a_successful_run_passed(green: tuple[Home, RunReport]) -> None:
    home, report = green
    with open_instance(home) as instance:
        records = instance.get_records_for_run(
            report.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION
        ).records
    evaluations = [r.event_log_entry.dagster_event.asset_check_evaluation_data for r in records]

    assert {e.check_name: e.passed for e in evaluations if not e.passed} == {}
    assert len(evaluations) == 33


def test_version_has_complete_lineage(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    with ledger_of(home) as ledger:
        version = ledger.version(echo.name, 1)
        findings = ledger.verify(echo.name, store=ArtifactStore(home.artifacts))

    assert version.lineage.missing_fields() == ()
    assert version.lineage.resolved_config["training"]["batch_rows"] == 64
    assert findings == []


def test_repeated_run_produces_the_same_bytes_and_no_second_version(
    green: tuple[Home, RunReport],
    echo: PipelineSettings,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Runs through the command line with JSON output."""
    home, first = green
    monkeypatch.setenv("SLUICE_HOME", str(home.root))
    names = ("raw_data", "features", "evaluation", "promotion_verdict")
    before = {n: (home.records / "echo" / f"{n}.json").read_bytes() for n in names}
    artifacts = set(home.artifacts.rglob("*"))

    assert run_command(["run", str(ECHO), "--json"]) == 0

    again = RunReport.model_validate_json(capfd.readouterr().out)
    assert (again.version, again.created, again.promoted) == (1, False, False)
    assert again.in_production
    assert again.verdict == first.verdict == "PROMOTE"
    assert {n: (home.records / "echo" / f"{n}.json").read_bytes() for n in names} == before
    assert set(home.artifacts.rglob("*")) == artifacts
    with ledger_of(home) as ledger:
        assert len(ledger.versions(echo.name)) == 1
        assert len([e for e in ledger.history(echo.name) if e.action == "promote"]) == 1


def test_verdict_records_guards_attempt_and_suites(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    """Also the metadata and the report pages of both (STAT-1, STAT-3, DATA-5)."""
    home, _ = green
    verdict = record_of(home, PromotionDecision, "promotion_verdict").verdict
    report = record_of(home, Evaluation, "evaluation").suite_report(ArtifactStore(home.artifacts))

    assert [(g.name, g.result) for g in verdict.guards] == [
        ("deployed ensemble against the deployed reference", "pass")
    ]
    assert (verdict.attempt, verdict.alpha_of_all) == (1, echo.gate.alpha)
    assert verdict.alpha == pytest.approx(spent_alpha(echo.gate.alpha, 1))
    (hard,) = report.results
    assert (hard.name, hard.version, hard.origin.subject) == ("hard", 1, "baseline")
    assert hard.count("fixed") > 0
    shown = metadata_of(home, echo, "promotion_verdict")
    assert {"guards", "alpha", "gain per fold", "power", "full report"} <= shown
    assert {"regression suites", "suite report"} <= metadata_of(home, echo, "evaluation")
    assert len(list(home.reports.glob("gate/echo-*.html"))) == 1
    assert len(list(home.reports.glob("suites/echo/candidate-*.html"))) == 1


def test_version_evaluated_under_other_settings_is_refused_and_verify_reports_missing_tables(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    """A decision is bound to its settings and to its stored tables (STAT-1, REG-2)."""
    home, _ = green
    stricter = echo.model_copy(
        update={"guards": GuardSettings(limits=(HardLimit(metric="loss", maximum=1e-9),))}
    )
    config = {"ops": {"echo__production_model": {"config": {"version": 1}}}}

    refused = materialize_alone(stricter, home, "production_model", config)

    assert not refused.success
    assert "evaluated under gate, guard or" in failure(refused)
    assert materialize_alone(echo, home, "production_model", config).success
    store = ArtifactStore(home.artifacts)
    tables = record_of(home, PromotionDecision, "promotion_verdict").verdict.tables
    assert tables.keys() >= {"candidate losses", "candidate deployed losses", "suites"}
    store.path(tables["reference deployed losses"]).unlink()
    with ledger_of(home) as ledger:
        findings = ledger.verify(echo.name, store=store)
    assert any("reference deployed losses of a decision" in found.what for found in findings)


def test_better_candidate_that_fails_a_guard_is_registered_and_not_promoted(
    green: tuple[Home, RunReport], echo: PipelineSettings, run: Runner, tmp_path: Path
) -> None:
    """The run succeeds, and production is unchanged (STAT-1, DATA-5).

    The ledger is new and signed (REG-2); the trainings are reused.
    """
    (tmp_path / "key").write_bytes(bytes(range(32)))
    (tmp_path / "key").chmod(0o600)
    home = dataclasses.replace(
        green[0],
        registry_url=f"sqlite:///{tmp_path / 'signed.db'}",
        registry_key=tmp_path / "key",
    )
    strict = echo.model_copy(
        update={
            "suites": SuiteSettings(guards=(SuiteGuard(suite="hard", min_fixed=10_000),)),
            "guards": GuardSettings(limits=(HardLimit(metric="loss", maximum=1e-9),)),
        }
    )

    report = run(strict, home)

    assert (report.verdict, report.production, report.promoted) == ("REJECT", None, False)
    assert "Significantly better" in report.reason
    assert "limit of loss" in report.reason
    assert "required 10000" in report.reason
    key = SigningKey.read(tmp_path / "key")
    with ledger_of(home) as ledger:
        assert ledger.version(echo.name, report.version).state == "dev"
        assert ledger.verify(None, store=ArtifactStore(home.artifacts), key=key) == []


@pytest.mark.exhaustive
def test_candidate_with_other_seeds_is_compared_with_production_and_cannot_be_promoted_manually(
    green: tuple[Home, RunReport], echo: PipelineSettings, run: Runner
) -> None:
    home, _ = green
    with ledger_of(home) as ledger:
        production = ledger.production(echo.name)

    report = run(echo.model_copy(update={"seeds": (10, 11, 12, 13, 14)}), home)

    assert report.created
    assert report.verdict in ("EQUIVALENT", "INCONCLUSIVE", "REJECT")
    assert (report.production, report.promoted) == (1, False)
    assert record_of(home, PromotionDecision, "promotion_verdict").verdict.attempt == 2
    suites = SuiteLibrary(home.suites / echo.name, ArtifactStore(home.artifacts))
    assert suites.load("hard").suite.origin.subject == production.candidate  # recomputed
    with ledger_of(home) as ledger:
        assert ledger.version(echo.name, report.version).lineage.reference == production.candidate

    config = {"ops": {"echo__production_model": {"config": {"version": report.version}}}}
    result = materialize_alone(echo, home, "production_model", config)

    assert not result.success
    assert "The outcome of the promotion gate is" in failure(result)
    with ledger_of(home) as ledger:
        assert ledger.production_number(echo.name) == 1


def test_failed_poc_gate_blocks_the_run_and_a_training_alone(
    echo: PipelineSettings, home: Home, run: Runner
) -> None:
    bad = echo.model_copy(
        update={"training": echo.training.model_copy(update={"learning_rate": 100.0})}
    )

    with pytest.raises(GateBlocked, match="mini_training_lowers_loss"):
        run(bad, home)

    assert materialized(home, bad) == {"raw_data", "features", "poc_report"}
    with open_instance(home) as instance:
        (run_id,) = (run.run_id for run in instance.get_runs())
        (ended,) = instance.get_records_for_run(
            run_id, of_type=dg.DagsterEventType.STEP_FAILURE
        ).records
    shown = ended.event_log_entry.dagster_event.step_failure_data.error.message
    assert "mini_training_lowers_loss: " in shown
    assert "Lower learning_rate" in shown, "the page of the run says first what to do"
    alone = materialize_alone(bad, home, "best_config")
    assert not alone.success
    assert "The outcome of the poc gate is fail" in failure(alone)
    assert not materialize_alone(bad, home, "trained_models").success
    assert not home.runs.exists()


def test_receipt_of_other_settings_is_not_accepted(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    other = echo.model_copy(
        update={"training": echo.training.model_copy(update={"learning_rate": 0.03})}
    )

    searched = materialize_alone(other, home, "best_config")
    trained = materialize_alone(other, home, "trained_models")

    assert not searched.success
    assert "A receipt of the poc gate is required and missing" in failure(searched)
    assert not trained.success
    assert "The best config's config must have the digest" in failure(trained)


def test_failed_row_checks_block_the_run_and_the_features_alone(
    echo: PipelineSettings, home: Home, run: Runner
) -> None:
    missing_column = echo.model_copy(update={"workload": "tests.support.echo:MissingColumn"})

    with pytest.raises(GateBlocked, match=r"raw_data / table_matches_schema.*'call'"):
        run(missing_column, home)

    alone = materialize_alone(missing_column, home, "features")
    assert not alone.success
    assert "The outcome of the raw_data gate is fail" in failure(alone)


def test_look_ahead_feature_stops_the_line(echo: PipelineSettings, home: Home, run: Runner) -> None:
    look_ahead = echo.model_copy(update={"workload": "tests.support.echo:FutureFeature"})

    with pytest.raises(GateBlocked, match="features_do_not_look_ahead: 'call'"):
        run(look_ahead, home)

    assert "poc_report" not in materialized(home, look_ahead)
    alone = materialize_alone(look_ahead, home, "poc_report")
    assert not alone.success
    assert "The outcome of the features gate is fail" in failure(alone)


@pytest.mark.exhaustive
def test_models_of_other_folds_are_not_evaluated(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    """Their train rows may be among the test rows of the new folds."""
    home, _ = green
    other = echo.model_copy(update={"workload_settings": {"folds": {"first_test_share": 0.15}}})
    assert materialize_alone(other, home, "raw_data", checks=True).success
    assert materialize_alone(other, home, "features", checks=True).success

    unsearched = materialize_alone(other, home, "evaluation")
    assert materialize_alone(other, home, "poc_report").success
    assert materialize_alone(other, home, "best_config").success
    alone = materialize_alone(other, home, "evaluation")

    assert "The best config's config must have the digest" in failure(unsearched)
    assert not alone.success
    assert "The trained models' config must have the digest" in failure(alone)


def test_features_of_other_settings_are_not_trained_on(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    other = echo.model_copy(update={"workload_settings": {"seq_len": 4}})

    alone = materialize_alone(other, home, "poc_report")

    assert not alone.success
    assert "The features must have the digest" in failure(alone)


def test_evaluation_of_another_candidate_is_not_accepted(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    others = echo.model_copy(update={"seeds": (0, 1, 2, 3, 24)})
    assert materialize_alone(others, home, "trained_models").success

    alone = materialize_alone(others, home, "candidate")

    assert not alone.success
    assert "The evaluation must have the digest" in failure(alone)
    with ledger_of(home) as ledger:
        assert len(ledger.versions(echo.name)) == 1


def test_receipt_under_other_thresholds_is_not_accepted(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    stricter = echo.model_copy(
        update={"poc": echo.poc.model_copy(update={"min_loss_decrease": 0.05})}
    )

    alone = materialize_alone(stricter, home, "trained_models")

    assert not alone.success
    assert "A receipt of the poc gate is required and missing" in failure(alone)


@pytest.mark.exhaustive
def test_better_candidate_replaces_production_and_is_not_promoted_again_after_a_rollback(
    echo: PipelineSettings, home: Home, run: Runner
) -> None:
    sign_only = echo.model_copy(update={"workload": "tests.support.echo:SignOnly"})
    assert run(sign_only, home).production == 1

    report = run(echo, home)

    assert (report.verdict, report.version, report.production) == ("PROMOTE", 2, 2)
    store = ArtifactStore(home.artifacts)
    with ledger_of(home) as ledger:
        ledger.rollback(echo.name, expected=2, actor="tester", reason="on purpose", store=store)
        assert ledger.production_number(echo.name) == 1

    with pytest.raises(GateBlocked, match="rolled back"):
        run(echo, home)

    with ledger_of(home) as ledger:
        assert ledger.production_number(echo.name) == 1
        moves = [(e.action, e.to_version, e.actor) for e in ledger.history(echo.name)]
    assert moves[-1] == ("rollback", 1, "tester")
    assert run(sign_only, home).in_production
