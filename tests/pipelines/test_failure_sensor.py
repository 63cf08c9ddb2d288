"""A failed run raises one alert with its cause, unless a terminal started it."""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import dagster as dg
import pytest
from dagster._core.storage.tags import WILL_RETRY_TAG

from sluice.assets.resources import SluiceState
from sluice.config.resolved import resolve
from sluice.observability.alerts import WEBHOOK_VARIABLE, read_alerts
from sluice.pipelines.definitions_builder import build_definitions
from sluice.pipelines.instance import open_instance
from sluice.pipelines.resources import resources
from sluice.pipelines.run_process import TERMINAL_TAG, RunProcess
from tests.support.echo import Echo

LOST_COLUMN = "tests.support.echo:MissingColumn"
CRASHES = f"{__name__}:Crashes"
ID = "6f1f4a52-1111-4222-8333-444455556666"


class Crashes(Echo):
    """A workload whose source raises an error."""

    def load_rows(self):
        raise OSError("the exchange was closed")


@pytest.fixture
def webhook(monkeypatch):
    """List of the alerts that a local webhook server received."""
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        monkeypatch.setenv(WEBHOOK_VARIABLE, f"http://127.0.0.1:{server.server_port}")
        yield received
        server.shutdown()
        thread.join()


def run_failing_training(echo, home, workload, *, run_id=None, tags=None):
    """Run a failing training and the sensor twice; return the sensor results and the run id."""
    bound = resources(home)
    pipeline = echo.model_copy(update={"workload": workload})
    definitions = dg.Definitions.merge(
        build_definitions(resolve(pipeline)), dg.Definitions(resources=bound)
    )
    sensor = definitions.resolve_sensor_def("echo_failure_sensor")
    with open_instance(home) as instance:
        result = definitions.resolve_job_def("echo_training").execute_in_process(
            instance=instance, raise_on_error=False, run_id=run_id, tags=tags
        )
        assert not result.success
        (event,) = (
            each for each in result.all_events if each.event_type is dg.DagsterEventType.RUN_FAILURE
        )
        context = dg.build_run_status_sensor_context(
            sensor_name=sensor.name,
            dagster_event=event,
            dagster_instance=instance,
            dagster_run=instance.get_run_by_id(result.run_id),
            resources={"sluice_state": SluiceState.at(home)},
        ).for_run_failure()
        return [sensor(context) for _ in range(2)], result.run_id


@pytest.mark.slow
def test_failed_check_is_posted_once_with_its_finding(echo, home, webhook):
    # Every run has tags of its process. A re-execution in the UI copies those of the first run.
    tags = {**RunProcess.current("first").tags, TERMINAL_TAG: "first"}
    skipped, run_id = run_failing_training(echo, home, LOST_COLUMN, tags=tags)

    assert skipped == [None, None]
    (alert,) = read_alerts(home)
    assert (alert.kind, alert.model, alert.severity) == ("run_failed", "echo", "warning")
    assert alert.what == f"The job echo_training failed (run {run_id[:8]})."
    assert "raw_data / " in alert.why
    assert "'call'" in alert.why
    assert [each["key"] for each in webhook] == [f"run/{run_id}"]


@pytest.mark.slow
def test_alert_contains_the_workload_error_instead_of_dagsters(echo, home):
    run_failing_training(echo, home, CRASHES)

    (alert,) = read_alerts(home)
    assert alert.why == "raw_data: OSError: the exchange was closed."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ({TERMINAL_TAG: ID}, "started in a terminal"),
        ({WILL_RETRY_TAG: "true"}, "Dagster retries the run"),
    ],
)
def test_run_from_a_terminal_or_before_a_retry_raises_no_alert(echo, home, tags, reason):
    skipped, _ = run_failing_training(echo, home, CRASHES, run_id=ID, tags=tags)

    assert all(reason in each.skip_message for each in skipped)
    assert read_alerts(home) == []


def test_sensor_monitors_every_job_of_its_pipeline(echo):
    definitions = build_definitions(resolve(echo))

    sensor = next(s for s in definitions.sensors if s.name == "echo_failure_sensor")

    watched = {job.name for job in sensor._monitored_jobs}
    assert watched == {job.name for job in definitions.jobs}
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert os.environ.get(WEBHOOK_VARIABLE) is None
