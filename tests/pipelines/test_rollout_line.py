"""A whole rollout with real requests, to promotion or rollback (ROLL-1, ROLL-2)."""

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import httpx
import pytest

from sluice.assets.resources import utc_now
from sluice.base.artifacts import ArtifactStore
from sluice.base.home import Home
from sluice.checks.rollout import PROMOTED
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.evaluation.suites.library import SuiteLibrary
from sluice.pipelines.definitions_builder import build_definitions
from sluice.pipelines.instance import open_instance
from sluice.pipelines.resources import resources
from sluice.pipelines.run import RunReport
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.settings import RolloutSettings
from sluice.serving.deployed import DeployedModel
from sluice.serving.ledger_models import LedgerModels
from sluice.serving.ledger_traffic_split import LedgerTrafficSplit
from sluice.serving.log import json_log
from sluice.serving.server import open_serving, serve
from sluice.serving.settings import ServingSettings
from sluice.serving.tokens import Tokens
from tests.pipelines.conftest import home_at, run_line
from tests.pipelines.test_line import failure, materialize_alone

pytestmark = pytest.mark.slow

QUICK = RolloutSettings(shares=(0.5, 1.0), min_step_s=0.5, min_requests=30, min_pairs=10)
# Generous deadlines: trainings run on the same cores, and latency is not tested here.
SERVING = ServingSettings(
    poll_interval_s=0.05,
    report_interval_s=0.1,
    samples_per_s=200,
    drain_delay_s=0.0,
    requests_per_s=1e5,
    deadline_s=9.0,
    challenger_deadline_s=8.0,
)


@dataclass
class Traffic:
    """URL of a server of the registry's models, and what its client received so far."""

    url: str
    status_codes: list[int] = field(default_factory=list)
    arms: set[str] = field(default_factory=set)


@contextmanager
def serve_with_traffic(
    home: Home, change: Callable[[DeployedModel], DeployedModel]
) -> Iterator[Traffic]:
    ledger = RolloutLedger.open(home.registry_url, clock=lambda: datetime.now(UTC))
    models = LedgerModels(ledger, "echo", ArtifactStore(home.artifacts))
    stop, ready, ports = threading.Event(), threading.Event(), []
    with open(home.root / "server.log", "w", encoding="utf-8") as log:
        serving = open_serving(
            "echo",
            LedgerTrafficSplit(ledger, "echo"),
            lambda digest: change(models.load(digest)),
            isolate=None,
            settings=SERVING,
            tokens=Tokens.of(),
            clock=lambda: datetime.now(UTC),
            log=json_log(log),
            reports=ledger.observations,
        )

        def on_ready(port: int) -> None:
            ports.append(port)
            ready.set()

        server = threading.Thread(
            target=lambda: serve(serving, host="127.0.0.1", port=0, on_ready=on_ready)
        )
        server.start()
        assert ready.wait(20)
        traffic = Traffic(f"http://127.0.0.1:{ports[0]}")

        def send_requests() -> None:
            with httpx.Client(base_url=traffic.url, timeout=10) as client:
                number = 0
                while not stop.is_set():
                    number += 1
                    value = (number % 17) / 5 - 1.6
                    body = {
                        "columns": ["call"],
                        "windows": [[[0.0], [value]]],
                        "user": str(number),
                        "keys": [str(10 + number % 800)],
                    }
                    found = client.post("/predict", json=body)
                    traffic.status_codes.append(found.status_code)
                    if found.status_code == 200:
                        traffic.arms.add(found.json()["arm"])
                    time.sleep(0.004)

        client_thread = threading.Thread(target=send_requests)
        client_thread.start()
        try:
            yield traffic
        finally:
            stop.set()
            client_thread.join(10)
            serving.drain()
            server.join(20)
            ledger.close()


@dataclass
class Daemon:
    """Stand-in for Dagster's daemon: evaluates sensors and executes their run requests."""

    pipeline: PipelineSettings
    home: Home
    cursors: dict[str, str | None] = field(default_factory=dict)
    run_keys: set[str] = field(default_factory=set)
    skipped: list[str] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)

    def tick(self, sensor: str) -> list[str]:
        """Evaluate a sensor once; return the names of the jobs that ran."""
        bound = resources(self.home)
        definitions = dg.Definitions.merge(
            build_definitions(resolve(self.pipeline)), dg.Definitions(resources=bound)
        )
        name = f"{self.pipeline.name}_{sensor}"
        with open_instance(self.home) as instance:
            context = dg.build_sensor_context(
                instance=instance,
                cursor=self.cursors.get(name),
                definitions=definitions,
                resources={"sluice_state": bound["sluice_state"]},
            )
            found = definitions.resolve_sensor_def(name).evaluate_tick(context)
            self.cursors[name] = found.cursor or self.cursors.get(name)
            if found.skip_message:
                self.skipped.append(found.skip_message)
            for event in found.asset_events:
                instance.report_runless_asset_event(event)
            ran = []
            for request in found.run_requests:
                if request.run_key in self.run_keys:
                    continue
                self.run_keys.add(request.run_key)
                job = definitions.resolve_job_def(
                    request.job_name or f"{self.pipeline.name}_promotion"
                )
                result = job.execute_in_process(
                    run_config=request.run_config, instance=instance, raise_on_error=False
                )
                assert result.success, result.get_failed_step_keys()
                ran.append(job.name)
            self.ran += ran
            return ran

    def tick_until(self, is_over: Callable[[], bool], *, within_s: float = 40) -> None:
        """Evaluate the rollout sensor repeatedly until the condition holds."""
        end = time.monotonic() + within_s
        while not is_over():
            assert time.monotonic() < end, self.skipped[-3:]
            self.tick("rollout_sensor")
            time.sleep(0.1)

    def observations(self) -> list[str]:
        key = dg.AssetKey([self.pipeline.name, "rollout"])
        with open_instance(self.home) as instance:
            records = instance.fetch_observations(key, limit=50).records
        return [r.asset_observation.description for r in reversed(records)]

    def check(self) -> tuple[bool, str]:
        key = dg.AssetKey([self.pipeline.name, "rollout"])
        check = dg.AssetCheckKey(key, PROMOTED)
        with open_instance(self.home) as instance:
            found = instance.event_log_storage.get_latest_asset_check_execution_by_key([check])
        evaluation = found[check].event.dagster_event.asset_check_evaluation_data
        return evaluation.passed, evaluation.description


@pytest.fixture(scope="module")
def promotable(
    tmp_path_factory: pytest.TempPathFactory,
    _green: tuple[Path, RunReport],
    echo: PipelineSettings,
) -> tuple[Home, PipelineSettings]:
    """Version 1 is in production; version 2, which uses one more signal, has verdict PROMOTE."""
    home = home_at(tmp_path_factory.mktemp("rollout") / "home")
    shutil.copytree(_green[0], home.root)
    better = echo.model_copy(
        update={"rollout": QUICK, "workload": "tests.support.echo:PartlyKnownNoise"}
    )
    second = run_line(better, home)
    assert (second.verdict, second.version, second.production) == ("PROMOTE", 2, 1), second.reason
    assert second.gate_passed
    assert "no server answers" in second.waits_for
    return home, better


@pytest.fixture
def daemon(promotable: tuple[Home, PipelineSettings], tmp_path) -> Daemon:  # type: ignore[no-untyped-def]
    home, pipeline = promotable
    shutil.copytree(home.root, tmp_path / "home")
    return Daemon(pipeline, home_at(tmp_path / "home"))


def production(home: Home) -> int | None:
    with RolloutLedger.open(home.registry_url, clock=lambda: datetime.now(UTC)) as ledger:
        return ledger.production_number("echo")


def phase(home: Home) -> str:
    with RolloutLedger.open(home.registry_url, clock=lambda: datetime.now(UTC)) as ledger:
        rollout = ledger.rollout("echo")
    return "none" if rollout is None else rollout.phase


def test_healthy_challenger_is_promoted_and_no_request_fails(daemon: Daemon) -> None:
    """After a manual rollback, it is not promoted again."""
    assert daemon.tick("promotion_sensor") == []
    assert "no server answers" in daemon.skipped[-1]
    with serve_with_traffic(daemon.home, lambda deployed: deployed) as traffic:
        while not daemon.tick("promotion_sensor"):
            time.sleep(0.1)
        assert daemon.tick("promotion_sensor") == []
        assert "The rollout of version 2 is in progress" in daemon.skipped[-1]
        assert production(daemon.home) == 1
        daemon.tick_until(lambda: phase(daemon.home) == "promoted")
        daemon.tick("rollout_sensor")
        assert production(daemon.home) == 2
        store = ArtifactStore(daemon.home.artifacts)
        with RolloutLedger.open(daemon.home.registry_url, clock=utc_now) as ledger:
            ledger.rollback("echo", expected=2, actor="tester", reason="on purpose", store=store)
        daemon.run_keys.clear()  # simulates the time after which a start is retried
        assert daemon.tick("promotion_sensor") == []
        assert "cannot be promoted: echo version 2 was rolled back by tester" in daemon.skipped[-1]

    assert traffic.arms == {"production", "challenger"}
    assert set(traffic.status_codes) == {200}
    observations = daemon.observations()
    assert [text.split(" ", 1)[0] for text in observations] == [
        "start",
        "advance",
        "advance",
        "promote",
    ]
    assert daemon.check()[0]

    again = materialize_alone(
        daemon.pipeline.model_copy(update={"rollout": None}),
        daemon.home,
        "production_model",
        {"ops": {"echo__production_model": {"config": {"version": 2}}}},
    )
    assert not again.success
    assert "rolled back by tester" in failure(again)
    assert production(daemon.home) == 1


def fail_on_positive_calls(deployed: DeployedModel) -> DeployedModel:
    import dataclasses

    import torch

    if deployed.version == 1:
        return deployed

    class FailingNetwork(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if bool((x[:, -1, 0] > 0).any()):
                raise ValueError("no positive calls")
            return self.inner(x)

    return dataclasses.replace(
        deployed, networks=tuple(FailingNetwork(n) for n in deployed.networks)
    )


def test_failing_challenger_is_rolled_back_and_not_retried(daemon: Daemon) -> None:
    with serve_with_traffic(daemon.home, fail_on_positive_calls) as traffic:
        while not daemon.tick("promotion_sensor"):
            time.sleep(0.1)
        daemon.tick_until(lambda: phase(daemon.home) == "rolled_back")
        daemon.tick("rollout_sensor")
        assert daemon.tick("promotion_sensor") == []

    assert "was rolled back" in daemon.skipped[-1]
    assert daemon.ran[-1] == "echo_rollout_review"
    # Reviews run for labels, and once for the rows that failed.
    assert daemon.ran.count("echo_rollout_review") <= 3
    library = SuiteLibrary(daemon.home.suites / "echo", ArtifactStore(daemon.home.artifacts))
    failed = next(name for name in library.names() if name.startswith("rollout-"))
    assert library.load(failed).suite.rows
    alerts = [json.loads(line) for line in daemon.home.alerts.read_text().splitlines()]
    assert [alert["kind"] for alert in alerts if "kind" in alert] == ["rolled_back"]
    assert list((daemon.home.root / "reports" / "rollouts" / "echo").glob("version-2-*"))
    assert production(daemon.home) == 1
    assert set(traffic.status_codes) == {200}
    passed, description = daemon.check()
    assert not passed
    assert "worse than production" in description
    assert "errors in" in description


def test_promotion_job_cannot_bypass_the_rollout(daemon: Daemon) -> None:
    definitions = dg.Definitions.merge(
        build_definitions(resolve(daemon.pipeline)),
        dg.Definitions(resources=resources(daemon.home)),
    )
    config = {"ops": {"echo__production_model": {"config": {"version": 2}}}}
    with open_instance(daemon.home) as instance:
        result = definitions.resolve_job_def("echo_promotion").execute_in_process(
            run_config=config, instance=instance, raise_on_error=False
        )
    failed = next(e for e in result.all_events if e.is_step_failure)

    assert "must complete a rollout" in failed.step_failure_data.error_display_string
    assert production(daemon.home) == 1
