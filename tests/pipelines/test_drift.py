"""Drift monitoring in Dagster: the job, its sensor, and the trainings it requests (ROLL-3)."""

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
"""A process id above the largest one that Linux assigns."""

WINDOW = 150
GREW = "tests.support.drifting:Growing"


def with_drift_windows(
    echo: PipelineSettings, workload: str = GREW, **settings: object
) -> PipelineSettings:
    """Return the pipeline with this workload, and drift windows small enough for it."""
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
    """Stand-in for Dagster's daemon: evaluates the sensor and executes requested drift jobs."""

    home: Home
    cursor: str | None = None
    keys: set[str] = field(default_factory=set)
    requests: list[dg.RunRequest] = field(default_factory=list)
    executes_drift_job: bool = True

    def tick(self, pipeline: PipelineSettings) -> str:
        """Evaluate the sensor once; return its skip message, or an empty string."""
        bound = resources(self.home)
        definitions = dg.Definitions.merge(
            build_definitions(resolve(pipeline)), dg.Definitions(resources=bound)
        )
        with open_instance(self.home) as instance:
            context = dg.build_sensor_context(
                instance=instance,
                cursor=self.cursor,
                definitions=definitions,
                resources={"sluice_state": bound["sluice_state"]},
            )
            found = definitions.resolve_sensor_def("echo_drift_sensor").evaluate_tick(context)
            self.cursor = found.cursor or self.cursor
            for request in found.run_requests:
                assert request.run_key
                if request.run_key in self.keys:
                    continue
                self.keys.add(request.run_key)
                self.requests.append(request)
                if request.job_name == "echo_drift" and self.executes_drift_job:
                    result = definitions.resolve_job_def("echo_drift").execute_in_process(
                        instance=instance, raise_on_error=False
                    )
                    assert result.success, result.all_events
        return found.skip_message or ""

    @property
    def trainings(self) -> list[dg.RunRequest]:
        return [request for request in self.requests if request.job_name == "echo_training"]


def run_monitor(
    home: Home, pipelines: list[PipelineSettings], before: MonitorState | None
) -> MonitorState:
    """Run the drift monitor once per pipeline, without Dagster and without report pages."""
    state, monitor_state = SluiceState.at(home), before
    for pipeline in pipelines:
        with state.ledger() as ledger:
            rows = resolve(pipeline).workload.load_rows()
            inputs = collect_monitor_inputs(
                pipeline.name, pipeline.drift, pipeline.drift_alarm, state, ledger, rows
            )
        monitor_state = run_drift_monitor(
            dataclasses.replace(inputs, save_page=lambda *_: None), monitor_state
        ).state
    assert monitor_state is not None
    return monitor_state


def read_monitor_state(home: Home) -> MonitorState:
    found = read_latest_record(MonitorState, home.records, "echo", DRIFT_REPORT)
    assert found is not None
    return found


def read_last_check(home: Home) -> dg.AssetCheckEvaluation:
    key = dg.AssetCheckKey(dg.AssetKey(["echo", DRIFT_REPORT]), NO_DRIFT)
    with open_instance(home) as instance:
        record = instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
    assert record.event is not None
    return record.event.dagster_event.asset_check_evaluation_data


def test_planted_drift_raises_one_alarm_and_requests_one_training(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    daemon = Daemon(home)
    planted = {"shift": 1.0}

    daemon.tick(with_drift_windows(echo))
    assert read_monitor_state(home).signal("rows").windows == ()
    message = daemon.tick(with_drift_windows(echo, more_rows=60, **planted))
    assert "60 new rows after 898; a window needs 100" in message
    daemon.tick(with_drift_windows(echo, more_rows=160, **planted))
    first_window = read_monitor_state(home)
    assert (first_window.signal("rows").verdict, first_window.training) == ("DRIFT", None)
    assert first_window.signal("rows").windows[-1].columns == ("call",)
    check = read_last_check(home)
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "DRIFT" in (check.description or "")
    assert daemon.trainings == []
    assert read_alerts(home) == []

    grown = with_drift_windows(echo, more_rows=320, **planted)
    daemon.tick(grown)
    drift = read_monitor_state(home).training
    assert drift is not None
    assert drift.signals == ("rows",)
    restarted = Daemon(home, cursor=daemon.cursor)  # a restarted daemon has only the cursor
    restarted.tick(grown)
    message = restarted.tick(grown)
    later = run_monitor(
        home, [with_drift_windows(echo, more_rows=480, **planted)], read_monitor_state(home)
    )

    (training,) = restarted.trainings
    assert training.run_key == f"drift-{drift.id}"
    assert training.tags["sluice/drift_columns"] == "call"
    assert "training was started" in message
    assert later.training == drift  # the same alarm, so no second training
    assert len(later.signal("rows").windows) == 3
    (alert,) = read_alerts(home)
    assert (alert.kind, alert.key) == ("drift", f"drift/echo/{drift.id}")
    pages = list(home.reports.glob("drift/echo*.html"))
    assert pages
    assert any("Persistent drift in new rows" in page.read_text() for page in pages)


def test_failed_training_is_reported_and_requested_again_after_an_hour(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    monitor_state = run_monitor(
        home, [with_drift_windows(echo, more_rows=m, shift=1.0) for m in (0, 160, 320)], None
    )
    assert monitor_state.training is not None
    ended = datetime(2026, 1, 1, 12, tzinfo=UTC)
    cursor = Cursor(last_alarm=monitor_state.training.id)

    def request_after(
        status: dg.DagsterRunStatus, *, minutes: float, active_run: str = ""
    ) -> dg.RunRequest | str:
        failed_at = ended if status == dg.DagsterRunStatus.FAILURE else None
        run = RequestedRun(
            run_id="abcdefgh-1", job="echo_training", status=status, failed_at=failed_at
        )
        now = ended + timedelta(minutes=minutes)
        return request_training(
            echo.name, monitor_state, cursor, active_run=active_run, requested_run=run, now=now
        )

    failed = dg.DagsterRunStatus.FAILURE
    soon, again = request_after(failed, minutes=59), request_after(failed, minutes=60)

    assert isinstance(soon, str)
    assert "echo_training is FAILURE since 12:00 UTC. It restarts after 13:00" in soon
    assert isinstance(again, dg.RunRequest)
    assert again.run_key == f"drift-{monitor_state.training.id} after abcdefgh-1"
    assert again.tags["sluice/drift"] == monitor_state.training.id
    assert request_after(failed, minutes=60, active_run="Run x is in progress.") != again
    for status in (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.CANCELED):
        assert "training was started" in str(request_after(status, minutes=10_000))


def test_requested_run_is_found_by_its_tags(home: Home) -> None:
    job, tags = dg.GraphDefinition("training").to_job(), {"sluice/drift": "d1"}
    with open_instance(home) as instance:
        none = find_requested_run(instance, tags)
        run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=tags)
        while_running = find_requested_run(instance, tags)
        before = datetime.now(UTC) - timedelta(seconds=1)
        instance.report_run_failed(run)
        failed = find_requested_run(instance, tags)

    assert none is None
    assert while_running is not None
    assert (while_running.run_id, while_running.failed_at) == (run.run_id, None)
    assert failed is not None
    assert failed.failed_at is not None
    assert before <= failed.failed_at <= datetime.now(UTC)


def test_failed_drift_run_is_reported(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    daemon = Daemon(home, executes_drift_job=False)
    pipeline = with_drift_windows(echo)
    daemon.tick(pipeline)
    (request,) = daemon.requests
    without_run = daemon.tick(pipeline)
    with open_instance(home) as instance:
        run = instance.create_run_for_job(
            dg.GraphDefinition("echo_drift").to_job(),
            status=dg.DagsterRunStatus.STARTED,
            tags={RUN_KEY_TAG: str(request.run_key)},
        )
        while_running = daemon.tick(pipeline)
        instance.report_run_failed(run)
    failed = daemon.tick(pipeline)

    assert "A check of the newest rows was requested; no new data since" in without_run
    run_text = f"run {run.run_id[:8]} of echo_drift is STARTED"
    assert f"requested ({run_text}); no new data" in while_running
    assert f"newest rows failed (run {run.run_id[:8]} of echo_drift is FAILURE since" in failed
    assert "launch echo_drift in the UI" in failed


def test_without_drift_no_training_is_requested(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    daemon = Daemon(home)

    for _ in range(3):
        message = daemon.tick(with_drift_windows(echo, more_rows=160))

    assert "No new rows yet after 1058" in message
    assert [request.job_name for request in daemon.requests] == ["echo_drift"]
    monitor_state = read_monitor_state(home)
    assert (monitor_state.verdict, monitor_state.alarms, read_last_check(home).passed) == (
        "STABLE",
        (),
        True,
    )
    assert read_alerts(home) == []


def test_training_rows_are_not_new_and_a_single_request_raises_no_warning(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    daemon, pipeline = Daemon(home), with_drift_windows(echo)

    daemon.tick(pipeline)
    first, check = read_monitor_state(home), read_last_check(home)
    message = daemon.tick(pipeline)
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
    after_one = run_monitor(home, [pipeline], first)
    definitions = dg.Definitions.merge(
        build_definitions(resolve(pipeline)), dg.Definitions(resources=resources(home))
    )
    with open_instance(home) as instance:
        job = definitions.resolve_job_def("echo_drift")
        assert job.execute_in_process(instance=instance).success

    for monitor_state in (first, after_one, read_monitor_state(home)):
        assert (monitor_state.verdict, monitor_state.alarms) == ("WAITING", ())
        assert "New rows of the source: No new rows yet after 898" in monitor_state.reason
    assert "1 new row after" in after_one.signal("requests").summary
    for shown in (check, read_last_check(home)):
        assert shown.passed
        assert "WAITING: New rows of the source: No new rows yet" in (shown.description or "")
    assert "No new rows yet after 898" in message
    assert [request.job_name for request in daemon.requests] == ["echo_drift"]


def report_samples(home: Home, at: datetime, samples: tuple[Sample, ...]) -> None:
    """Write the report of one server of the pipeline."""
    state = ServerState(server="one", model="echo", at=at, started_at=at, epoch=1, production=1)
    with SluiceState.at(home).ledger() as ledger:
        ledger.observations.write(ServerReport(state=state, samples=samples))


def test_windows_do_not_overlap_and_are_evaluated_once(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    grown = [with_drift_windows(echo, more_rows=more_rows) for more_rows in (0, 160, 160, 320, 480)]

    monitor_state = run_monitor(home, grown, None)

    rows, losses = monitor_state.signal("rows"), monitor_state.signal("losses")
    assert [j.verdict for j in rows.windows] == ["STABLE"] * 3
    assert [(j.first, j.last) for j in rows.windows[-2:]] == [("1069", "1218"), ("1229", "1378")]
    assert [j.verdict for j in losses.windows] == ["STABLE"] * 3
    assert not monitor_state.signal("requests").is_monitored
    again = run_monitor(home, grown[-1:], monitor_state).signal("rows")
    assert again.windows == rows.windows
    assert "No new rows yet" in again.summary


def test_concept_drift_is_found_by_the_losses(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    """The distribution of the inputs is unchanged; only the losses increase."""
    home, _ = green

    monitor_state = run_monitor(
        home, [with_drift_windows(echo, more_rows=m, effect_loss=1.0) for m in (0, 160, 320)], None
    )

    assert monitor_state.signal("rows").verdict == "STABLE"
    assert [j.verdict for j in monitor_state.signal("losses").windows] == ["DRIFT", "DRIFT"]
    assert monitor_state.training is not None
    assert monitor_state.training.signals == ("losses",)


def test_served_samples_are_compared_with_the_drift_reference(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    pipelines = [with_drift_windows(echo)]
    start = datetime.now(UTC)

    def serve(num: int, *, shift: float, latency_factor: float, from_s: float) -> None:
        draws = np.random.default_rng([num, int(100 * shift)]).normal(size=(num, 2))
        samples = [
            Sample(
                at=start + timedelta(seconds=from_s + at),
                epoch=1,
                key=None,
                arm="production",
                seconds=0.01 * latency_factor * float(np.exp(0.2 * noise)),
                features=(value + shift,),
                production=((2 * (value + shift),), (2 * (value + shift),)),
            )
            for at, (value, noise) in enumerate(draws.tolist())
        ]
        report_samples(home, start, tuple(samples))

    monitor_state = run_monitor(home, pipelines, None)
    serve(400, shift=0.0, latency_factor=1.0, from_s=1)
    monitor_state = run_monitor(home, pipelines, monitor_state)
    assert {s.signal: s.verdict for s in monitor_state.signals if s.is_monitored} == {
        "rows": "WAITING",
        "requests": "STABLE",
        "predictions": "STABLE",
        "latency": "STABLE",
        "losses": "WAITING",
    }
    for at in (1000, 2000):
        serve(160, shift=1.0, latency_factor=3.0, from_s=at)
        monitor_state = run_monitor(home, pipelines, monitor_state)

    assert monitor_state.training is not None
    assert monitor_state.training.signals == ("requests", "predictions")
    assert monitor_state.repair is not None
    assert monitor_state.repair.signals == ("latency",)


def test_missing_or_slow_source_is_reported_without_an_error(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    missing = with_drift_windows(echo, "tests.support.drifting:MissingSource")
    daemon = Daemon(home)

    assert "The table 'calls' is not there." in daemon.tick(missing)
    skip = evaluate_schedule(missing, home)
    assert isinstance(skip, dg.SkipReason)
    assert "The table 'calls' is not there." in (skip.skip_message or "")
    slow = with_drift_windows(echo, "tests.support.drifting:Slow")
    poll = SourcePoll(resolve(slow).workload, max_wait_s=0.05)
    answer = poll.read_state()
    assert isinstance(answer, SourceUnavailable)
    assert answer.is_slow
    request = evaluate_schedule(slow, home, poll)
    assert isinstance(request, dg.RunRequest)
    assert "has not answered" in request.tags["sluice/changed"]
    daemon.tick(echo)
    assert [request.job_name for request in daemon.requests] == ["echo_drift"]


def test_source_without_rows_is_reported_before_the_first_drift_run(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    daemon = Daemon(home)

    assert "The source has no rows" in daemon.tick(
        with_drift_windows(echo, "tests.support.drifting:Empty")
    )
    assert daemon.requests == []


def test_source_that_raised_an_error_is_polled_again(
    echo: PipelineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll = SourcePoll(
        resolve(with_drift_windows(echo, "tests.support.drifting:IncompleteSource")).workload
    )

    failed = poll.read_state()
    monkeypatch.setattr(IncompleteSource, "is_complete", True)

    assert isinstance(failed, SourceUnavailable)
    assert (failed.is_slow, "load_rows of the workload raised" in failed.reason) == (False, True)
    assert isinstance(poll.read_state(), SourceState)


def test_schedule_waits_for_an_active_training(home: Home, echo: PipelineSettings) -> None:
    bound = resources(home)
    definitions = dg.Definitions.merge(
        build_definitions(resolve(echo)), dg.Definitions(resources=bound)
    )
    schedule = definitions.resolve_schedule_def("echo_retrain_schedule")

    with open_instance(home) as instance:

        def tick() -> ScheduleExecutionData:
            with dg.build_schedule_context(
                instance=instance, resources={"sluice_state": bound["sluice_state"]}
            ) as context:
                return schedule.evaluate_tick(context)

        run = instance.create_run_for_job(
            definitions.resolve_job_def("echo_training"), status=dg.DagsterRunStatus.STARTED
        )
        while_running = tick()
        killed = instance.create_run_for_job(
            definitions.resolve_job_def("echo_training"),
            status=dg.DagsterRunStatus.STARTED,
        )
        this_process = RunProcess.current(killed.run_id)
        instance.add_run_tags(killed.run_id, dataclasses.replace(this_process, pid=NO_PROCESS).tags)
        instance.report_run_canceled(run)
        after = tick()
        status = instance.get_run_by_id(killed.run_id).status

    assert f"Run {run.run_id[:8]} of echo_training is in progress." in while_running.skip_message
    assert not while_running.run_requests
    assert [request.tags["sluice/changed"] for request in after.run_requests] == [
        "no candidate exists yet"
    ]
    assert status == dg.DagsterRunStatus.FAILURE


def test_sensor_skips_without_a_version_in_production(echo: PipelineSettings, home: Home) -> None:
    assert "No version is in production" in Daemon(home).tick(echo)


def evaluate_schedule(
    pipeline: PipelineSettings, home: Home, source: SourcePoll | None = None
) -> dg.RunRequest | dg.SkipReason:
    resolved = resolve(pipeline)
    source = source or SourcePoll(resolved.workload)
    state = SluiceState.at(home)
    return request_retraining(pipeline.name, resolved.search, pipeline.seeds, state, source)


def test_schedule_requests_a_training_only_after_a_change(
    green: tuple[Home, RunReport], echo: PipelineSettings, tmp_path: Path
) -> None:
    home, _ = green
    with ledger_of(home) as ledger:
        registered_at = ledger.version("echo", 1).registered_at

    same = evaluate_schedule(echo, home)

    assert isinstance(same, dg.SkipReason)
    message = same.skip_message or ""
    assert f"Nothing changed since version 1 of {registered_at:%Y-%m-%d %H:%M} UTC" in message
    training = echo.training.model_copy(update={"learning_rate": 0.05})
    for pipeline, changed in (
        (echo.model_copy(update={"training": training}), "config"),
        (echo.model_copy(update={"seeds": (1, 2, 3, 4, 5)}), "seeds"),
        (
            echo.model_copy(update={"workload_settings": {"num_rows": 950}}),
            "data, workload, config",
        ),
    ):
        request = evaluate_schedule(pipeline, home)
        assert isinstance(request, dg.RunRequest)
        assert request.tags["sluice/changed"] == changed
        assert request.tags["sluice/since_version"] == "1"
    first = evaluate_schedule(
        echo, Home(root=tmp_path / "new", registry_url=f"sqlite:///{tmp_path}/r.db")
    )
    assert isinstance(first, dg.RunRequest)
    assert first.tags["sluice/changed"] == "no candidate exists yet"


def test_missing_drift_reference_is_recomputed_from_the_rows_or_reported(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, _ = green
    state = SluiceState.at(home)
    with ledger_of(home) as ledger:
        version = ledger.version("echo", 1)
    assert version.lineage.artifacts.keys() >= {"drift features", "drift predictions"}
    stored = reference_of_version(echo.name, version, echo.drift, state)
    old = version.model_copy(
        update={"lineage": version.lineage.model_copy(update={"artifacts": {}})}
    )

    # It is recomputed with identical bytes.
    assert reference_of_version(echo.name, old, echo.drift, state) == stored
    (home.records / "echo" / "features.json").unlink()
    without = reference_of_version(echo.name, old, echo.drift, state)
    assert isinstance(without, str)
    assert "has no drift reference" in without


@pytest.mark.exhaustive
def test_disabled_drift_creates_no_reference_no_job_and_no_sensor(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    # The trainings are reused, and the registry is empty.
    home = dataclasses.replace(green[0], registry_url=f"sqlite:///{green[0].root / 'other.db'}")
    without_drift = echo.model_copy(update={"drift": None})
    definitions = dg.Definitions.merge(
        build_definitions(resolve(without_drift)), dg.Definitions(resources=resources(home))
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
def test_column_sampling_is_reported_in_the_metadata_of_the_reference(
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
