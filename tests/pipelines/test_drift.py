"""ROLL-3: drift is found in Dagster, starts one training, and nothing is trained twice for it."""

import dataclasses
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import numpy as np
import pytest
from dagster._core.definitions.schedule_definition import ScheduleExecutionData
from dagster._core.storage.tags import RUN_KEY_TAG

from sluice.assets.drift_report import DRIFT_REPORT, collect_monitor_inputs, reference_of_version
from sluice.assets.record_io_manager import read_latest_record
from sluice.assets.resources import SluiceState
from sluice.base.home import Home
from sluice.checks.drift import NO_DRIFT
from sluice.config.drift_settings import AlarmDebounceSettings, DriftSettings
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.drift.monitor import run_drift_monitor
from sluice.drift.monitor_state import MonitorState
from sluice.observability.alerts import read_alerts
from sluice.pipelines.definitions_builder import build_definitions
from sluice.pipelines.drift_sensor import Cursor, request_training
from sluice.pipelines.instance import open_instance
from sluice.pipelines.requested_run import RequestedRun, find_requested_run
from sluice.pipelines.resources import resources
from sluice.pipelines.run import RunReport
from sluice.pipelines.run_process import RunProcess
from sluice.pipelines.schedules import request_retraining
from sluice.pipelines.source_poll import SourcePoll, SourceState, SourceUnavailable
from sluice.rollout.samples import Sample, ServerReport, ServerState
from tests.pipelines.conftest import ledger_of
from tests.support.drifting import IncompleteSource

pytestmark = pytest.mark.slow

NO_PROCESS = 2**22 + 1
"""Above the largest process number that Linux gives."""

WINDOW = 150
GREW = "tests.support.drifting:Growing"


def watching(echo: PipelineSettings, workload: str = GREW, **settings: object) -> PipelineSettings:
    """Return the pipeline with another source, and windows small enough for it."""
    return echo.model_copy(
        update={
            "workload": workload,
            "workload_settings": settings,
            "drift": DriftSettings(window_rows=WINDOW, min_rows=100),
            "drift_alarm": AlarmDebounceSettings(min_drifted=2, num_windows=3),
        }
    )


@dataclass
class Daemon:
    """Dagster's daemon in slow motion: ticks the sensor, keeps its cursor, runs looks."""

    home: Home
    cursor: str | None = None
    keys: set[str] = field(default_factory=set)
    asked: list[dg.RunRequest] = field(default_factory=list)
    run_looks: bool = True

    def tick(self, pipeline: PipelineSettings) -> str:
        """Tick once; return the reason when nothing was asked for."""
        given = resources(self.home)
        definitions = dg.Definitions.merge(
            build_definitions(resolve(pipeline)), dg.Definitions(resources=given)
        )
        with open_instance(self.home) as instance:
            context = dg.build_sensor_context(
                instance=instance,
                cursor=self.cursor,
                definitions=definitions,
                resources={"sluice_state": given["sluice_state"]},
            )
            found = definitions.resolve_sensor_def("echo_drift_sensor").evaluate_tick(context)
            self.cursor = found.cursor or self.cursor
            for request in found.run_requests:
                assert request.run_key
                if request.run_key in self.keys:
                    continue
                self.keys.add(request.run_key)
                self.asked.append(request)
                if request.job_name == "echo_drift" and self.run_looks:
                    result = definitions.resolve_job_def("echo_drift").execute_in_process(
                        instance=instance, raise_on_error=False
                    )
                    assert result.success, result.all_events
        return found.skip_message or ""

    @property
    def trainings(self) -> list[dg.RunRequest]:
        return [request for request in self.asked if request.job_name == "echo_training"]


def looks(
    home: Home, pipelines: list[PipelineSettings], before: MonitorState | None
) -> MonitorState:
    """Look once with each pipeline, without Dagster and without pictures."""
    state, watch = SluiceState.at(home), before
    for pipeline in pipelines:
        with state.ledger() as ledger:
            rows = resolve(pipeline).workload.load_rows()
            seen = collect_monitor_inputs(
                pipeline.name, pipeline.drift, pipeline.drift_alarm, state, ledger, rows
            )
        watch = run_drift_monitor(dataclasses.replace(seen, save_page=lambda *_: None), watch).state
    assert watch is not None
    return watch


def watch_of(home: Home) -> MonitorState:
    found = read_latest_record(MonitorState, home.records, "echo", DRIFT_REPORT)
    assert found is not None
    return found


def last_check(home: Home) -> dg.AssetCheckEvaluation:
    key = dg.AssetCheckKey(dg.AssetKey(["echo", DRIFT_REPORT]), NO_DRIFT)
    with open_instance(home) as instance:
        record = instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
    assert record.event is not None
    return record.event.dagster_event.asset_check_evaluation_data


def test_planted_drift_is_found_and_asks_for_one_training(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    daemon = Daemon(home)
    planted = {"shift": 1.0}

    daemon.tick(watching(echo))
    assert watch_of(home).signal("rows").windows == ()
    few = daemon.tick(watching(echo, more_rows=60, **planted))
    assert "60 new rows after 898; a window needs 100" in few
    daemon.tick(watching(echo, more_rows=160, **planted))
    one = watch_of(home)
    assert (one.signal("rows").verdict, one.training) == ("DRIFT", None)
    assert one.signal("rows").windows[-1].columns == ("call",)
    check = last_check(home)
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "DRIFT" in (check.description or "")
    assert daemon.trainings == []
    assert read_alerts(home) == []

    grown = watching(echo, more_rows=320, **planted)
    daemon.tick(grown)
    drift = watch_of(home).training
    assert drift is not None
    assert drift.signals == ("rows",)
    restarted = Daemon(home, cursor=daemon.cursor)  # the daemon forgot everything but the cursor
    restarted.tick(grown)
    said = restarted.tick(grown)
    later = looks(home, [watching(echo, more_rows=480, **planted)], watch_of(home))

    (training,) = restarted.trainings
    assert training.run_key == f"drift-{drift.id}"
    assert training.tags["sluice/drift_columns"] == "call"
    assert "training was started" in said
    assert later.training == drift  # it goes on: no second one
    assert len(later.signal("rows").windows) == 3
    (alert,) = read_alerts(home)
    assert (alert.kind, alert.key) == ("drift", f"drift/echo/{drift.id}")
    pages = list(home.reports.glob("drift/echo*.html"))
    assert pages
    assert any("Persistent drift in new rows" in page.read_text() for page in pages)


def test_a_training_that_failed_is_named_and_started_again_later(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    watch = looks(home, [watching(echo, more_rows=m, shift=1.0) for m in (0, 160, 320)], None)
    assert watch.training is not None
    ended = datetime(2026, 1, 1, 12, tzinfo=UTC)
    cursor = Cursor(last_alarm=watch.training.id)

    def ask(
        status: dg.DagsterRunStatus, *, minutes: float, active_run: str = ""
    ) -> dg.RunRequest | str:
        failed_at = ended if status == dg.DagsterRunStatus.FAILURE else None
        run = RequestedRun(
            run_id="abcdefgh-1", job="echo_training", status=status, failed_at=failed_at
        )
        now = ended + timedelta(minutes=minutes)
        return request_training(
            echo.name, watch, cursor, active_run=active_run, requested_run=run, now=now
        )

    failed = dg.DagsterRunStatus.FAILURE
    soon, again = ask(failed, minutes=59), ask(failed, minutes=60)

    assert isinstance(soon, str)
    assert "echo_training is FAILURE since 12:00 UTC. It restarts after 13:00" in soon
    assert isinstance(again, dg.RunRequest)
    assert again.run_key == f"drift-{watch.training.id} after abcdefgh-1"
    assert again.tags["sluice/drift"] == watch.training.id
    assert ask(failed, minutes=60, active_run="Run x is in progress.") != again
    for status in (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.CANCELED):
        assert "training was started" in str(ask(status, minutes=10_000))


def test_the_run_that_failed_is_found_by_what_asked_for_it(home: Home) -> None:
    job, tags = dg.GraphDefinition("training").to_job(), {"sluice/drift": "d1"}
    with open_instance(home) as instance:
        none = find_requested_run(instance, tags)
        run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=tags)
        works = find_requested_run(instance, tags)
        before = datetime.now(UTC) - timedelta(seconds=1)
        instance.report_run_failed(run)
        failed = find_requested_run(instance, tags)

    assert none is None
    assert works is not None
    assert (works.run_id, works.failed_at) == (run.run_id, None)
    assert failed is not None
    assert failed.failed_at is not None
    assert before <= failed.failed_at <= datetime.now(UTC)


def test_a_look_that_failed_is_named(green: tuple[Home, RunReport], echo: PipelineSettings) -> None:
    home, _ = green
    daemon = Daemon(home, run_looks=False)
    pipeline = watching(echo)
    daemon.tick(pipeline)
    (asked,) = daemon.asked
    nobody = daemon.tick(pipeline)
    with open_instance(home) as instance:
        run = instance.create_run_for_job(
            dg.GraphDefinition("echo_drift").to_job(),
            status=dg.DagsterRunStatus.STARTED,
            tags={RUN_KEY_TAG: str(asked.run_key)},
        )
        works = daemon.tick(pipeline)
        instance.report_run_failed(run)
    failed = daemon.tick(pipeline)

    assert "A check of the newest rows was requested; no new data since" in nobody
    assert f"requested, run {run.run_id[:8]} of echo_drift is STARTED; no new data" in works
    assert f"newest rows failed (run {run.run_id[:8]} of echo_drift is FAILURE since" in failed
    assert "launch echo_drift in the UI" in failed


def test_without_drift_nothing_is_asked_for(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    daemon = Daemon(home)

    for _ in range(3):
        said = daemon.tick(watching(echo, more_rows=160))

    assert "No new rows yet after 1058" in said
    assert [request.job_name for request in daemon.asked] == ["echo_drift"]
    watch = watch_of(home)
    assert (watch.verdict, watch.alarms, last_check(home).passed) == ("STABLE", (), True)
    assert read_alerts(home) == []


def test_rows_that_the_version_was_made_with_are_not_new_and_one_request_is_no_warning(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    daemon, pipeline = Daemon(home), watching(echo)

    daemon.tick(pipeline)
    first, check = watch_of(home), last_check(home)
    said = daemon.tick(pipeline)
    request = Sample(
        at=datetime.now(UTC),
        epoch=1,
        key=None,
        arm="production",
        seconds=0.01,
        features=(0.1,),
        production=((0.2,), (0.2,)),
    )
    report_samples(home, datetime.now(UTC), (request,))
    after_one = looks(home, [pipeline], first)
    definitions = dg.Definitions.merge(
        build_definitions(resolve(pipeline)), dg.Definitions(resources=resources(home))
    )
    with open_instance(home) as instance:
        job = definitions.resolve_job_def("echo_drift")
        assert job.execute_in_process(instance=instance).success

    for watch in (first, after_one, watch_of(home)):
        assert (watch.verdict, watch.alarms) == ("WAITING", ())
        assert "New rows of the source: No new rows yet after 898" in watch.reason
    assert "1 new row after" in after_one.signal("requests").summary
    for shown in (check, last_check(home)):
        assert shown.passed
        assert "WAITING: New rows of the source: No new rows yet" in (shown.description or "")
    assert "No new rows yet after 898" in said
    assert [request.job_name for request in daemon.asked] == ["echo_drift"]


def report_samples(home: Home, at: datetime, samples: tuple[Sample, ...]) -> None:
    """Write what a server of the pipeline would report."""
    state = ServerState(server="one", model="echo", at=at, started_at=at, epoch=1, production=1)
    with SluiceState.at(home).ledger() as ledger:
        ledger.observations.write(ServerReport(state=state, samples=samples))


def test_windows_share_no_row_and_none_is_judged_twice(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    grown = [watching(echo, more_rows=more_rows) for more_rows in (0, 160, 160, 320, 480)]

    watch = looks(home, grown, None)

    rows, losses = watch.signal("rows"), watch.signal("losses")
    assert [j.verdict for j in rows.windows] == ["STABLE"] * 3
    assert [(j.first, j.last) for j in rows.windows[-2:]] == [("1069", "1218"), ("1229", "1378")]
    assert [j.verdict for j in losses.windows] == ["STABLE"] * 3
    assert not watch.signal("requests").is_monitored
    again = looks(home, grown[-1:], watch).signal("rows")
    assert again.windows == rows.windows
    assert "No new rows yet" in again.summary


def test_what_inputs_mean_is_watched_too(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    """The inputs look as before; only the losses tell."""
    home, _ = green

    watch = looks(home, [watching(echo, more_rows=m, effect_loss=1.0) for m in (0, 160, 320)], None)

    assert watch.signal("rows").verdict == "STABLE"
    assert [j.verdict for j in watch.signal("losses").windows] == ["DRIFT", "DRIFT"]
    assert watch.training is not None
    assert watch.training.signals == ("losses",)


def test_what_servers_sampled_is_judged_against_what_the_version_learned(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    calm = [watching(echo)]
    began = datetime.now(UTC)

    def serve(num: int, *, shift: float, slower: float, from_s: float) -> None:
        draws = np.random.default_rng([num, int(100 * shift)]).normal(size=(num, 2))
        samples = [
            Sample(
                at=began + timedelta(seconds=from_s + at),
                epoch=1,
                key=None,
                arm="production",
                seconds=0.01 * slower * float(np.exp(0.2 * noise)),
                features=(value + shift,),
                production=((2 * (value + shift),), (2 * (value + shift),)),
            )
            for at, (value, noise) in enumerate(draws.tolist())
        ]
        report_samples(home, began, tuple(samples))

    watch = looks(home, calm, None)
    serve(400, shift=0.0, slower=1.0, from_s=1)
    watch = looks(home, calm, watch)
    assert {s.signal: s.verdict for s in watch.signals if s.is_monitored} == {
        "rows": "WAITING",
        "requests": "STABLE",
        "predictions": "STABLE",
        "latency": "STABLE",
        "losses": "WAITING",
    }
    for at in (1000, 2000):
        serve(160, shift=1.0, slower=3.0, from_s=at)
        watch = looks(home, calm, watch)

    assert watch.training is not None
    assert watch.training.signals == ("requests", "predictions")
    assert watch.repair is not None
    assert watch.repair.signals == ("latency",)


def test_a_source_that_is_gone_or_slow_is_said_and_nothing_dies(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    gone = watching(echo, "tests.support.drifting:MissingSource")
    daemon = Daemon(home)

    assert "The table 'calls' is not there." in daemon.tick(gone)
    skip = retraining(gone, home)
    assert isinstance(skip, dg.SkipReason)
    assert "The table 'calls' is not there." in (skip.skip_message or "")
    slow = watching(echo, "tests.support.drifting:Slow")
    look = SourcePoll(resolve(slow).workload, max_wait_s=0.05)
    answer = look.read_state()
    assert isinstance(answer, SourceUnavailable)
    assert answer.is_slow
    request = retraining(slow, home, look)
    assert isinstance(request, dg.RunRequest)
    assert "has not answered" in request.tags["sluice/changed"]
    daemon.tick(echo)
    assert [request.job_name for request in daemon.asked] == ["echo_drift"]


def test_a_source_without_rows_is_said_before_the_first_look_too(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    daemon = Daemon(home)

    assert "The source has no rows" in daemon.tick(watching(echo, "tests.support.drifting:Empty"))
    assert daemon.asked == []


def test_a_source_that_gave_no_table_is_asked_again(
    echo: PipelineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = SourcePoll(resolve(watching(echo, "tests.support.drifting:IncompleteSource")).workload)

    torn = look.read_state()
    monkeypatch.setattr(IncompleteSource, "whole", True)

    assert isinstance(torn, SourceUnavailable)
    assert (torn.is_slow, "load_rows of the workload raised" in torn.reason) == (False, True)
    assert isinstance(look.read_state(), SourceState)


def test_a_training_under_way_is_waited_for(home: Home, echo: PipelineSettings) -> None:
    given = resources(home)
    definitions = dg.Definitions.merge(
        build_definitions(resolve(echo)), dg.Definitions(resources=given)
    )
    schedule = definitions.resolve_schedule_def("echo_retrain_schedule")

    with open_instance(home) as instance:

        def tick() -> ScheduleExecutionData:
            with dg.build_schedule_context(
                instance=instance, resources={"sluice_state": given["sluice_state"]}
            ) as context:
                return schedule.evaluate_tick(context)

        run = instance.create_run_for_job(
            definitions.resolve_job_def("echo_training"), status=dg.DagsterRunStatus.STARTED
        )
        held = tick()
        killed = instance.create_run_for_job(
            definitions.resolve_job_def("echo_training"),
            status=dg.DagsterRunStatus.STARTED,
        )
        here = RunProcess.this(killed.run_id)
        instance.add_run_tags(killed.run_id, dataclasses.replace(here, pid=NO_PROCESS).tags)
        instance.report_run_canceled(run)
        after = tick()
        status = instance.get_run_by_id(killed.run_id).status

    assert f"Run {run.run_id[:8]} of echo_training is in progress." in held.skip_message
    assert not held.run_requests
    assert [request.tags["sluice/changed"] for request in after.run_requests] == [
        "no candidate exists yet"
    ]
    assert status == dg.DagsterRunStatus.FAILURE


def test_nothing_in_production_is_no_drift(echo: PipelineSettings, home: Home) -> None:
    assert "No version is in production" in Daemon(home).tick(echo)


def retraining(
    pipeline: PipelineSettings, home: Home, source: SourcePoll | None = None
) -> dg.RunRequest | dg.SkipReason:
    resolved = resolve(pipeline)
    source = source or SourcePoll(resolved.workload)
    state = SluiceState.at(home)
    return request_retraining(pipeline.name, resolved.search, pipeline.seeds, state, source)


def test_the_schedule_trains_only_when_something_changed(
    green: tuple[Home, RunReport], echo: PipelineSettings, tmp_path: Path
) -> None:
    home, _ = green
    with ledger_of(home) as ledger:
        made = ledger.version("echo", 1).registered_at

    same = retraining(echo, home)

    assert isinstance(same, dg.SkipReason)
    said = same.skip_message or ""
    assert f"Nothing changed since version 1 of {made:%Y-%m-%d %H:%M} UTC" in said
    training = echo.training.model_copy(update={"learning_rate": 0.05})
    for pipeline, changed in (
        (echo.model_copy(update={"training": training}), "config"),
        (echo.model_copy(update={"seeds": (1, 2, 3, 4, 5)}), "seeds"),
        (
            echo.model_copy(update={"workload_settings": {"num_rows": 950}}),
            "data, workload, config",
        ),
    ):
        request = retraining(pipeline, home)
        assert isinstance(request, dg.RunRequest)
        assert request.tags["sluice/changed"] == changed
        assert request.tags["sluice/since_version"] == "1"
    first = retraining(echo, Home(root=tmp_path / "new", registry_url=f"sqlite:///{tmp_path}/r.db"))
    assert isinstance(first, dg.RunRequest)
    assert first.tags["sluice/changed"] == "no candidate exists yet"


def test_a_version_without_reference_gets_it_from_its_rows_or_says_so(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    state = SluiceState.at(home)
    with ledger_of(home) as ledger:
        version = ledger.version("echo", 1)
    assert version.lineage.artifacts.keys() >= {"drift features", "drift predictions"}
    kept = reference_of_version(echo.name, version, echo.drift, state)
    old = version.model_copy(
        update={"lineage": version.lineage.model_copy(update={"artifacts": {}})}
    )

    assert (
        reference_of_version(echo.name, old, echo.drift, state) == kept
    )  # made again to the same bytes
    (home.records / "echo" / "features.json").unlink()
    without = reference_of_version(echo.name, old, echo.drift, state)
    assert isinstance(without, str)
    assert "has no drift reference" in without


def test_drift_that_is_switched_off_makes_no_reference_no_job_and_no_sensor(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    # The trainings are there already, and the registry is empty.
    home = dataclasses.replace(green[0], registry_url=f"sqlite:///{green[0].root / 'other.db'}")
    off = echo.model_copy(update={"drift": None})
    definitions = dg.Definitions.merge(
        build_definitions(resolve(off)), dg.Definitions(resources=resources(home))
    )
    names = {sensor.name for sensor in definitions.sensors or ()}

    with open_instance(home) as instance:
        job = definitions.resolve_job_def("echo_training")
        assert job.execute_in_process(instance=instance).success

    assert "echo_promotion_sensor" in names
    assert "echo_drift_sensor" not in names
    assert not definitions.resolve_asset_graph().has(dg.AssetKey(["echo", DRIFT_REPORT]))
    with ledger_of(home) as ledger:
        artifacts = ledger.version("echo", 1).lineage.artifacts
    assert not [role for role in artifacts if "drift" in role]


@pytest.mark.exhaustive
def test_a_sample_of_columns_is_reported_in_the_metadata_of_the_reference(
    home: Home, short_echo: PipelineSettings
) -> None:
    sampled = short_echo.model_copy(
        update={
            "workload": "tests.support.drifting:TwoInputs",
            "training": short_echo.training.model_copy(update={"max_epochs": 1}),
            "drift": DriftSettings(max_columns=1, min_resamples=99),
        }
    )
    reference = dg.AssetSelection.assets(["echo", "drift_reference"])
    job = dg.define_asset_job("reference", selection=reference.upstream())
    definitions = dg.Definitions.merge(
        build_definitions(resolve(sampled)), dg.Definitions(resources=resources(home), jobs=[job])
    )

    with open_instance(home) as instance:
        job = definitions.resolve_job_def("reference")
        assert job.execute_in_process(instance=instance).success
        event = instance.get_latest_materialization_event(dg.AssetKey(["echo", "drift_reference"]))

    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["columns left out"].value == (
        "Training rows: 1 of 2 columns are left out: only a random sample of 1 column is compared "
        "(drift.max_columns)."
    )
