"""OBS-1: spans are exported with the correct parents; disabled spans import no OpenTelemetry."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_bytes
from sluice.base.errors import ContractError, SettingsError
from sluice.observability import spans
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout import transitions
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.traffic_split import TrafficSplit
from tests.sluice.registry.ledger_samples import MODEL, Clock, promote_chain, register_sample
from tests.sluice.serving.serving_samples import (
    LinearNetwork,
    RaisingNetwork,
    candidate,
    deployed,
    quick_settings,
    run_server,
)
from tests.support.otlp_receiver import Receiver, run_receiver

CALLER = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with run_receiver() as receiver:
        assert spans.configure({spans.ENDPOINT_VARIABLE: f"{receiver.url}/"}, service="sluice")
        try:
            yield receiver
        finally:
            spans.shutdown()


def test_spans_nest_and_a_failure_records_its_class_without_the_message(receiver: Receiver) -> None:
    def work() -> None:
        with spans.span("outer", rows=3), spans.span("inner") as inner:
            inner.set_attributes(share=0.5)
            raise ValueError("secret")

    with pytest.raises(ValueError, match="secret"):
        work()
    spans.shutdown()

    outer, inner_exported = receiver.one("outer"), receiver.one("inner")
    assert receiver.paths == {"/v1/traces"}
    assert (inner_exported.trace, inner_exported.parent) == (outer.trace, outer.span)
    assert (outer.parent, outer.service) == ("", "sluice")
    assert (outer.attributes, inner_exported.attributes) == (
        {"sluice.rows": 3},
        {"sluice.share": 0.5},
    )
    assert (outer.error, inner_exported.error) == ("ValueError", "ValueError")


def test_a_span_continues_a_remote_trace(receiver: Receiver) -> None:
    with spans.span("there", parent=CALLER) as remote:
        traceparent = remote.traceparent
    with spans.span("later", parent=traceparent):
        pass
    with spans.span("alone", parent="00-nonsense"):
        pass
    spans.shutdown()

    remote_exported, later, alone = (receiver.one(n) for n in ("there", "later", "alone"))
    assert (remote_exported.trace, remote_exported.parent) == ("ab" * 16, "cd" * 8)
    assert (later.trace, later.parent) == ("ab" * 16, remote_exported.span)
    assert alone.parent == ""
    assert alone.trace != later.trace


def test_registration_rollout_and_abort_link_to_the_trace_of_the_candidate(
    receiver: Receiver, tmp_path: Path
) -> None:
    store = ArtifactStore(tmp_path)
    with RolloutLedger.open(f"sqlite:///{tmp_path / 'r.db'}", clock=Clock()) as ledger:
        promote_chain(ledger, store, 1)
        one = ledger.version(MODEL, 1).candidate
        with spans.span("training"):
            number = register_sample(ledger, store, salt=2, reference=one)
        two = ledger.version(MODEL, number).candidate
        rollout = ledger.start_rollout(
            MODEL, number, RolloutSettings(), actor="ada", reason="try it"
        ).rollout
        abort = transitions.abort(rollout, now=rollout.started_at, actor="ada", reason="no")
        ledger.record_transition(rollout, abort)
        with pytest.raises(ContractError):
            ledger.promote(MODEL, 2, expected=1, actor="eve", reason="", store=store)
    spans.shutdown()

    candidate_span = (two[:32], two[32:48])
    training, registered = receiver.one("training"), receiver.named("registry.register")[1]
    first = next(s for s in receiver.named("candidate") if s.attributes["sluice.version"] == 2)
    started = receiver.one("registry.start_rollout")
    aborted = receiver.one("registry.record_transition")
    assert (registered.trace, registered.parent) == (training.trace, training.span)
    assert (first.trace, first.span) == candidate_span
    assert first.links == [(registered.trace, registered.span)]
    assert registered.links == started.links == aborted.links == [candidate_span]
    assert started.attributes["sluice.share"] == 0.05
    assert (aborted.attributes["sluice.outcome"], aborted.attributes["sluice.phase"]) == (
        "abort",
        "rolled_back",
    )
    promoted, refused = receiver.named("registry.promote")
    assert (promoted.attributes["sluice.version"], promoted.error) == (1, "")
    assert refused.error == "ContractError"


def test_a_request_span_continues_the_clients_trace_and_is_the_parent_of_its_arms(
    receiver: Receiver,
) -> None:
    models = [deployed("one", 1, LinearNetwork(1.0)), deployed("bad", 2, RaisingNetwork())]
    split = TrafficSplit(
        epoch=1,
        production=candidate("one"),
        challenger=candidate("bad"),
        rollout="r",
        share=1.0,
    )
    with run_server({m.candidate: m for m in models}, split, settings=quick_settings()) as server:
        response = server.client.post(
            "/predict",
            json={"columns": ["a", "b"], "windows": [[[1.0, 1.0]] * 3]},
            headers={"traceparent": CALLER},
        )
        model_response = server.client.get("/model")
        server.client.get("/nowhere/secret")
        lines = [line for line in server.lines() if line["event"] == "request"]
    spans.shutdown()

    request, model = receiver.one("POST /predict"), receiver.one("GET /model")
    assert response.json()["fallback"]
    assert request.is_server
    assert (request.trace, request.parent) == ("ab" * 16, "cd" * 8)
    assert response.headers["x-trace-id"] == response.json()["trace"] == request.trace
    assert lines[0]["trace"] == request.trace
    assert (request.attributes["sluice.status"], request.attributes["sluice.arm"]) == (
        200,
        "production",
    )
    challenger, production = receiver.one("arm challenger"), receiver.one("arm production")
    assert {(a.trace, a.parent) for a in (challenger, production)} == {
        (request.trace, request.span)
    }
    assert (challenger.error, production.error) == ("errors", "")
    assert model_response.headers["x-trace-id"] == model.trace
    assert model.parent == ""
    assert receiver.one("GET other").attributes["sluice.status"] == 404


def test_an_unreachable_receiver_delays_shutdown_by_less_than_5_s() -> None:
    spans.configure({spans.ENDPOINT_VARIABLE: "http://127.0.0.1:9"}, service="sluice")
    began = time.monotonic()
    with spans.span("lost") as lost:
        assert lost.traceparent
    spans.shutdown()

    assert time.monotonic() - began < 5


def test_disabled_spans_import_no_opentelemetry_and_take_under_20_us() -> None:
    script = (
        "import sys, timeit; from sluice.observability import spans;"
        "import sluice.registry.rollouts, sluice.serving.step_counters;"
        "assert not spans.configure({}, service='x');"
        "assert not spans.configure({'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://x',"
        " 'OTEL_SDK_DISABLED': 'true'}, service='x');\n"
        "def traced():\n with spans.span('a', b=1) as s: s.set_attributes(c=2)\n"
        "print(min(timeit.repeat(traced, number=10000, repeat=5)) / 10000);"
        "print(*[m for m in sys.modules if m.startswith('opentelemetry')])"
    )
    seconds, modules = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.splitlines()

    assert float(seconds) < 20e-6  # 0.4 microseconds on an idle machine
    assert modules == ""


@pytest.mark.parametrize("endpoint", ["localhost:4318", "grpc://x", "http://"])
def test_an_invalid_endpoint_is_rejected(endpoint: str) -> None:
    with pytest.raises(SettingsError, match="must be a URL like"):
        spans.configure({spans.ENDPOINT_VARIABLE: endpoint}, service="sluice")


def test_trace_and_span_id_of_a_candidate_are_derived_from_its_digest(receiver: Receiver) -> None:
    digest = digest_bytes(b"candidate")
    spans.start_candidate_trace(digest, model="m", version=7)
    spans.shutdown()

    first = receiver.one("candidate")
    assert first.trace + first.span == digest[:48]
    assert (first.parent, first.links) == ("", [])
