"""ROLL-2: a server reports its state and continues to serve if reports fail."""

import json
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sluice.base.errors import SamplesRefused, StorageError
from sluice.registry.client_names import client_of, client_pseudonym
from sluice.rollout.samples import Sample, ServerReport
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.settings import ServingSettings
from tests.sluice.serving.serving_samples import (
    LinearNetwork,
    RaisingNetwork,
    RunningServer,
    candidate,
    deployed,
    quick_settings,
    run_server,
)

MODELS = [
    deployed("one", 1, LinearNetwork(1.0), LinearNetwork(3.0)),
    deployed("two", 2, LinearNetwork(5.0)),
    deployed("raises", 3, RaisingNetwork()),
]
BY_DIGEST = {model.candidate: model for model in MODELS}
SETTINGS = quick_settings(report_interval_s=0.02, samples_per_s=1000)


@dataclass
class Sink:
    reports: list[ServerReport] = field(default_factory=list)
    is_down: bool = False
    refuses: bool = False
    hangs: threading.Event | None = None
    is_waiting: bool = False

    def write(self, report: ServerReport) -> None:
        if self.hangs is not None:
            self.is_waiting = True
            self.hangs.wait(10)
        if self.is_down:
            raise StorageError("The registry is gone.", fix="Wait.")
        if self.refuses and report.samples:
            self.reports.append(report.model_copy(update={"samples": ()}))
            raise SamplesRefused("It does not take them.", fix="See the keys.")
        self.reports.append(report)

    @property
    def samples(self) -> list[Sample]:
        return [sample for report in self.reports for sample in report.samples]


def run_reporting_server(sink: Sink, settings: ServingSettings = SETTINGS):  # type: ignore[no-untyped-def]
    split = TrafficSplit(epoch=1, production=candidate("one"))
    return run_server(dict(BY_DIGEST), split, settings=settings, reports=sink)


def test_reports_contain_state_counts_and_predictions_of_both_arms() -> None:
    sink = Sink()
    with run_reporting_server(sink) as server:
        server.predict(7.0, keys=["monday"])
        server.wait_for(lambda: bool(sink.samples))
        server.set_challenger("two", share=1.0)
        server.predict(8.0, 9.0, keys=["tuesday", "wednesday"])
        server.wait_for(lambda: len(sink.samples) == 2)
        server.wait_for(lambda: sink.reports[-1].state.challenger == 2)
    before_rollout, during_rollout = sink.samples
    last = sink.reports[-1]

    assert (before_rollout.key, before_rollout.rollout, before_rollout.arm) == (
        "monday",
        None,
        "production",
    )
    assert (before_rollout.production, before_rollout.challenger) == (((8.0,), (10.0,)), None)
    assert before_rollout.features == (7.0, 7.0)
    assert (during_rollout.key, during_rollout.rollout, during_rollout.arm) == (
        "tuesday",
        "r-two",
        "challenger",
    )
    assert (during_rollout.production, during_rollout.challenger) == (((9.0,), (11.0,)), ((13.0,),))
    assert last.state.draining
    assert last.counts is not None
    # The copy of a request to the other arm is not counted as a request.
    assert (last.counts.challenger.requests, last.counts.production.requests) == (1, 0)
    assert len({report.state.server for report in sink.reports}) == 1


def test_a_sample_identifies_its_client_only_with_the_secret() -> None:
    sink = Sink()
    with run_reporting_server(sink) as server:
        server.set_split(secret="ab" * 32)
        server.predict(7.0, user="ada")
        server.predict(8.0)
        server.wait_for(lambda: len(sink.samples) == 2)

    names = [
        client_pseudonym(client_of(user, "127.0.0.1"), secret="ab" * 32) for user in ("ada", None)
    ]
    assert [sample.client for sample in sink.samples] == names
    assert len({*names, client_pseudonym(client_of("ada", ""), secret="cd" * 32)}) == 3
    assert "ada" not in sink.samples[0].model_dump_json()


def test_failed_requests_of_a_challenger_are_sampled_with_their_key() -> None:
    sink = Sink()
    with run_reporting_server(sink) as server:
        server.set_challenger("raises", share=1.0)
        assert server.predict(7.0, keys=["monday"]).json()["fallback"]
        server.wait_for(lambda: any(s.fault for s in sink.samples))
    failed = next(s for s in sink.samples if s.fault)

    assert (failed.key, failed.fault, failed.arm) == ("monday", "errors", "challenger")


def test_an_unavailable_or_hanging_registry_loses_no_request_and_no_sample() -> None:
    sink = Sink(is_down=True)
    with run_reporting_server(sink) as server:
        problems = problem_reader(server)
        server.wait_for(lambda: "The registry is gone" in problems())
        assert server.predict(7.0).status_code == 200
        sink.is_down = False
        server.wait_for(lambda: bool(sink.samples))
        server.wait_for(lambda: not problems())
        sink.hangs = threading.Event()
        server.wait_for(lambda: "no answer" in problems() or "not answered" in problems())
        assert server.predict(7.0).status_code == 200
        sink.hangs.set()

    assert sink.samples[0].features == (7.0, 7.0)


def test_refused_samples_are_dropped_and_reported_once() -> None:
    sink = Sink(refuses=True)
    with run_reporting_server(sink) as server:
        problems = problem_reader(server)
        assert server.predict(7.0).status_code == 200
        server.wait_for(lambda: "does not take them" in problems())
        num_reports = len(sink.reports)
        server.wait_for(lambda: len(sink.reports) > num_reports + 3)
        assert "Reports to the registry fail" not in problems()
        assert server.metrics()["sluice_report_failures_total"] == 0
        lines = [line for line in server.lines() if "does not take" in json.dumps(line)]
        assert len(lines) == 1
        sink.refuses = False
        assert server.predict(8.0).status_code == 200
        server.wait_for(lambda: not problems())

    assert [sample.features for sample in sink.samples] == [(8.0, 8.0)]


def test_a_server_whose_reports_fail_lets_its_lease_expire() -> None:
    """Its faults would not be counted while reports of other servers renew the lease."""
    sink = Sink()
    with run_reporting_server(sink) as server:
        router, lease_s = server.serving.router, 3600

        def renew() -> datetime:
            nonlocal lease_s
            lease_s += 3600
            until = datetime.now(UTC) + timedelta(seconds=lease_s)
            split = server.source.split.model_copy(update={"expires_at": until})
            server.source.split = split
            return until

        server.set_challenger("two", expires_at=datetime.now(UTC) + timedelta(hours=1))
        applied = renew()
        server.wait_for(lambda: router.table.split.expires_at == applied)
        sink.is_down = True
        server.wait_for(lambda: "Reports to the registry fail" in problem_reader(server)())
        reads = server.source.reads
        pending = renew()
        server.wait_for(lambda: server.source.reads > reads + 3)
        assert router.table.split.expires_at == applied
        sink.is_down = False
        server.wait_for(lambda: router.table.split.expires_at == pending)


def test_the_final_report_waits_for_a_report_in_progress() -> None:
    sink = Sink()
    with run_reporting_server(
        sink, SETTINGS.model_copy(update={"registry_timeout_s": 5.0})
    ) as server:
        sink.hangs = threading.Event()
        server.wait_for(lambda: sink.is_waiting)
        threading.Timer(0.7, sink.hangs.set).start()  # after the server has started to drain

    assert sink.reports[-1].state.draining


def problem_reader(server: RunningServer):  # type: ignore[no-untyped-def]
    return lambda: " ".join(server.client.get("/problems").json()["problems"])


def test_each_window_needs_one_key() -> None:
    with run_reporting_server(Sink()) as server:
        refused = server.predict(1.0, 2.0, keys=["monday"])

    assert refused.status_code == 422
    assert "as many entries as windows (2), got 1" in refused.json()["what"]
