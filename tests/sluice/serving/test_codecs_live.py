"""A server with a registry serves texts, tokens, images and raw rows."""

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import CodecMismatch, GateBlocked
from sluice.config.drift_settings import AlarmDebounceSettings, DriftSettings
from sluice.data.rows.protocol import ModelInput, input_length
from sluice.drift.monitor import run_drift_monitor
from sluice.drift.monitor_inputs import MonitorInputs
from sluice.models.served import ServedNetwork
from sluice.registry.loading import require_restorable
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.samples import Sample, ServerReport
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.deployed import DeployedModel
from sluice.serving.isolation import Isolation
from sluice.serving.ledger_models import LedgerModels, ledger_loader_spec
from sluice.serving.model_arrays import as_arrays, concatenate
from sluice.workloads.workload import Workload
from tests.sluice.registry.ledger_samples import MODEL, NOW, Clock, as_version
from tests.sluice.serving.codec_samples import KINDS, codec_lineage, make_workload, register
from tests.sluice.serving.serving_samples import RunningServer, quick_settings, run_server
from tests.support.codec_workloads import network_input

ROW = 100


@dataclass
class Registry:
    """A ledger with versions 1 and 2 of a model; version 1 is in production."""

    workload: Workload
    ledger: RolloutLedger
    store: ArtifactStore
    url: str
    folder: Path

    def load(self, number: int) -> DeployedModel:
        candidate = self.ledger.version(MODEL, number).candidate
        return LedgerModels(self.ledger, MODEL, self.store).load(candidate)

    def body(self, *rows: int) -> dict[str, Any]:
        raw = self.workload.load_rows()
        frame = self.workload.compute_features(raw)
        return self.workload.request_of(raw, frame, np.array(rows))


@pytest.fixture(scope="module", params=KINDS)
def registry(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Registry]:
    folder = tmp_path_factory.mktemp("registry")
    workload = make_workload(request.param, folder / "data")
    store, url = ArtifactStore(folder / "artifacts"), f"sqlite:///{folder / 'registry.db'}"
    with RolloutLedger.open(url, clock=Clock()) as ledger:
        first, second = (codec_lineage(workload, store, salt=salt) for salt in (1, 2))
        number = register(ledger, first)
        ledger.promote(MODEL, number, expected=None, actor="a", reason="b", store=store)
        register(ledger, second, reference=first.candidate)
        yield Registry(workload, ledger, store, url, folder)


class Reports:
    """Collects the samples that the server reports."""

    def __init__(self) -> None:
        self.samples: list[Any] = []

    def write(self, report: ServerReport) -> None:
        self.samples.extend(report.samples)


@pytest.fixture(scope="module")
def served(registry: Registry) -> Iterator[tuple[RunningServer, list[Any]]]:
    """A server with production in this process and challengers in their own processes."""
    loader = ledger_loader_spec(registry.url, MODEL, registry.store.root)
    settings = quick_settings(
        deadline_s=20.0,
        body_timeout_s=20.0,
        challenger_deadline_s=15.0,
        shadow_deadline_s=20.0,
        report_interval_s=0.05,
        samples_per_s=100.0,
        max_body_bytes=4 * 2**20,
    )
    one, reports = registry.load(1), Reports()
    with (
        Isolation(loader, settings) as isolation,
        run_server(
            {one.candidate: one},
            TrafficSplit(epoch=1, production=one.candidate),
            settings=settings,
            isolate=isolation.load,
            reports=reports,
            name=MODEL,
        ) as running,
    ):
        yield running, reports.samples


@pytest.fixture
def server(served: tuple[RunningServer, list[Any]]) -> RunningServer:
    return served[0]


@pytest.fixture
def samples(served: tuple[RunningServer, list[Any]]) -> list[Any]:
    return served[1]


def expected_outputs(deployed: DeployedModel, workload: Workload, *rows: int) -> list[list[float]]:
    """Compute the predictions for stored examples without the code of the server."""
    outputs = []
    for row in rows:
        x = network_input(workload, row)
        with torch.inference_mode():
            payload = torch.stack([_run_network(network, x) for network in deployed.networks])
        outputs.append(payload.double().mean(dim=0)[0].tolist())
    return outputs


def _run_network(network: nn.Module, x: ModelInput) -> Tensor:
    """Return the output of a network, or for a language model the score of its tokens."""
    if not isinstance(network, ServedNetwork):
        return cast("Tensor", network(x))
    assert isinstance(x, Tensor)
    (ids,) = x
    logits = network.network(x)[0, :-1]
    return nn.functional.cross_entropy(logits, ids[1:])[None, None]


def test_a_request_gets_the_prediction_of_the_stored_example(
    registry: Registry, server: RunningServer
) -> None:
    one = registry.load(1)
    response = server.client.post("/predict", json=registry.body(ROW) | {"keys": ["k"]})
    assert response.status_code == 200, response.text
    assert response.json()["outputs"] == expected_outputs(one, registry.workload, ROW)

    batch_response = server.client.post("/predict", json=registry.body(60, 61, 62))
    assert batch_response.status_code == 200, batch_response.text
    np.testing.assert_allclose(
        batch_response.json()["outputs"],
        expected_outputs(one, registry.workload, 60, 61, 62),
        rtol=1e-6,
    )


def test_concurrent_requests_of_other_lengths_do_not_change_a_prediction(
    registry: Registry, server: RunningServer
) -> None:
    one = registry.load(1)
    rows = list(range(60, 84))

    async def ask() -> list[list[float]]:
        headers = {"authorization": server.client.headers["authorization"]}
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=30) as client:
            responses = await asyncio.gather(
                *(client.post("/predict", json=registry.body(row)) for row in rows)
            )
        assert [r.text for r in responses if r.status_code != HTTPStatus.OK] == []
        return [response.json()["outputs"][0] for response in responses]

    np.testing.assert_allclose(
        asyncio.run(ask()), expected_outputs(one, registry.workload, *rows), rtol=1e-6
    )


def test_model_and_openapi_descriptions_include_the_body_schema(
    registry: Registry, server: RunningServer
) -> None:
    field = next(name for name in registry.body(ROW) if name != "columns")
    description = server.client.get("/model").json()["input"]
    codec = registry.workload.codec()
    assert description["kind"] == codec.kind
    assert description["digest"] == codec.identity().digest
    assert description["body"] == codec.schema()
    post = server.client.get("/openapi.json").json()["paths"]["/predict"]["post"]
    schema = post["requestBody"]["content"]["application/json"]["schema"]
    assert field in schema["required"]
    assert schema["properties"][field]["maxItems"] == codec.max_elements


def test_invalid_bodies_get_the_common_error_format(
    registry: Registry, server: RunningServer
) -> None:
    good = registry.body(ROW)
    field = next(name for name in good if name != "columns")
    many = good | {field: good[field] * (registry.workload.codec().max_elements + 1)}
    windows = {"columns": ["a", "b"], "windows": [[[0.0, 0.0]] * 3]}
    for body, status, kind in (
        (windows, 422, "invalid_input"),
        (good | {"more": 1}, 422, "invalid_input"),
        (good | {"keys": ["a", "b"]}, 422, "invalid_input"),
        (good | {field: []}, 422, "invalid_input"),
        (good | {field: "x"}, 422, "invalid_input"),
        (good | {"model": "other"}, 404, "unknown_model"),
        (many, 413, "too_large"),
    ):
        response = server.client.post("/predict", json=body)
        assert (response.status_code, response.json()["kind"]) == (status, kind), response.text
    huge = json.dumps(good | {"user": "u" * (5 * 2**20)}).encode()
    headers = {"content-type": "application/json"}
    assert server.client.post("/predict", content=huge, headers=headers).status_code == 413
    assert server.client.post("/predict", content=b"{", headers=headers).status_code == 400


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "text": (lambda body: {"texts": [*body["texts"], " "]}, "texts.1 must have at least one token"),
    "tokens": (
        lambda body: {"sequences": [*body["sequences"], [1, 2, 3, 4, 5, 11]]},
        "sequences.1 must have token ids from 0 to 10, got 11",
    ),
    "images": (
        lambda _: {"images": [base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()]},
        "images.0 must be an image of the format",
    ),
    "rows": (
        lambda body: body | {"rows": [body["rows"][0][1:]]},
        "rows.0 must have 8 rows of 3 values, got 7",
    ),
}


def test_a_batch_above_max_elements_is_split(registry: Registry) -> None:
    one = registry.load(1)
    assert one.codec is not None
    x = concatenate([as_arrays(network_input(registry.workload, 80))] * 5)
    sizes: list[int] = []
    for network in one.networks:
        network.register_forward_pre_hook(lambda _, args: sizes.append(input_length(args[0])))

    whole = one.predict(x, None)
    one.codec.max_elements = 2
    parts = one.predict(x, None)

    assert sizes == [5, 5, 2, 2, 2, 2, 1, 1]
    assert parts.shape == whole.shape == (2, 5, 1)
    np.testing.assert_allclose(parts, whole, rtol=1e-6)


def test_the_error_locates_an_element_that_does_not_decode(
    registry: Registry, server: RunningServer
) -> None:
    change, message = HOSTILE[registry.workload.codec().kind]
    response = server.client.post("/predict", json=change(registry.body(ROW)))
    assert (response.status_code, response.json()["kind"]) == (422, "invalid_input")
    assert message in response.json()["what"]
    if registry.workload.codec().kind == "rows":  # Python's json module parses NaN
        body = json.dumps(registry.body(ROW)).replace("[[[", "[[[NaN, ", 1)
        response = server.client.post(
            "/predict", content=body, headers={"content-type": "application/json"}
        )
        assert response.status_code in (400, 422)


def test_samples_contain_a_digest_of_the_element(
    registry: Registry, server: RunningServer, samples: list[Any]
) -> None:
    samples.clear()
    for row in (70, 70, 71):
        server.client.post("/predict", json=registry.body(row))
    server.wait_for(lambda: len(samples) == 3)
    content = [sample.content for sample in samples]
    assert content[0] == content[1] != content[2]
    is_window = registry.workload.codec().kind == "rows" and not isinstance(
        network_input(registry.workload, ROW), dict
    )
    newest = tuple(network_input(registry.workload, 70)[0, -1].tolist()) if is_window else ()
    assert samples[0].features == newest


@pytest.mark.exhaustive
def test_a_challenger_in_its_own_process_answers_and_gets_shadow_requests(
    registry: Registry, server: RunningServer, samples: list[Any]
) -> None:
    one, two = registry.load(1), registry.load(2)

    def put(**split: Any) -> None:
        server.source.split = TrafficSplit(
            epoch=server.source.split.epoch + 1,
            production=one.candidate,
            challenger=two.candidate,
            rollout="r",
            **split,
        )

    def ask(arm: str) -> dict[str, Any]:
        payload: dict[str, Any] = {}

        def is_from_arm() -> bool:
            payload.update(server.client.post("/predict", json=registry.body(ROW)).json())
            return payload["arm"] == arm

        for _ in range(10):  # the process imports torch
            try:
                server.wait_for(is_from_arm)
                break
            except AssertionError:
                continue
        return payload

    put(share=1.0)
    np.testing.assert_allclose(
        ask("challenger")["outputs"], expected_outputs(two, registry.workload, ROW), rtol=1e-6
    )
    server.wait_for(lambda: any(s.challenger and s.production for s in samples))

    put(share=0.0, shadow=True)
    np.testing.assert_allclose(
        ask("production")["outputs"], expected_outputs(one, registry.workload, ROW), rtol=1e-6
    )
    before = server.metrics()
    server.client.post("/predict", json=registry.body(ROW))
    server.wait_for(
        lambda: _count_shadow_requests(server.metrics()) > _count_shadow_requests(before)
    )

    server.source.split = TrafficSplit(
        epoch=server.source.split.epoch + 1, production=one.candidate
    )
    server.wait_for(lambda: server.serving.router.table.challenger is None)


def _count_shadow_requests(metrics: dict[str, float]) -> float:
    return sum(value for name, value in metrics.items() if name.startswith("sluice_shadow"))


def test_a_tokenizer_that_differs_from_training_is_refused(tmp_path: Path) -> None:
    """TRACE-3: at promotion, when a server loads the version, and when a rollout starts."""
    workload = make_workload("texts", tmp_path / "data")
    store, url = ArtifactStore(tmp_path / "artifacts"), f"sqlite:///{tmp_path / 'registry.db'}"
    with RolloutLedger.open(url, clock=Clock()) as ledger:
        lineage = codec_lineage(workload, store, salt=1)
        number = register(ledger, lineage)
        file = tmp_path / "data" / "vocabulary.json"
        before = file.read_text()
        file.write_text(json.dumps(json.loads(before) | {"unheardofword": 3}))

        def promote() -> None:
            ledger.promote(MODEL, number, expected=None, actor="a", reason="b", store=store)

        with pytest.raises((CodecMismatch, GateBlocked), match="the probe 'zzqx unheardofword'"):
            promote()
        assert ledger.production_number(MODEL) is None
        file.write_text(before)
        promote()
        LedgerModels(ledger, MODEL, store).load(lineage.candidate)
        file.write_text(json.dumps(json.loads(before) | {"unheardofword": 3}))
        with pytest.raises(CodecMismatch) as caught:
            LedgerModels(ledger, MODEL, store).load(lineage.candidate)
        current = workload.codec().identity()
        assert lineage.codec is not None
        assert lineage.codec.digest[:12] in caught.value.what
        assert current.digest[:12] in caught.value.what
        restored = require_restorable(ledger.version(MODEL, number), store)
        assert "This checkout cannot serve it: " in restored
        assert current.digest[:12] in restored


def test_drift_of_texts_is_monitored_without_feature_columns(tmp_path: Path) -> None:
    workload = make_workload("texts", tmp_path / "data")
    store = ArtifactStore(tmp_path / "artifacts")
    sample = Sample(
        at=NOW, epoch=1, arm="production", seconds=0.1, features=(), production=((1.0,), (2.0,))
    )
    inputs = MonitorInputs(
        version=as_version(codec_lineage(workload, store, salt=1)),
        in_production_since=NOW - timedelta(days=1),
        workload=workload,
        frame=workload.compute_features(workload.load_rows()),
        references="The version has no references.",
        samples=[sample],
        is_served=True,
        settings=DriftSettings(),
        alarm_settings=AlarmDebounceSettings(),
        store=store,
        save_page=lambda _, __: None,
        now=NOW,
        threads=1,
    )

    state = run_drift_monitor(inputs, None).state

    monitored = {signal.signal: signal.is_monitored for signal in state.signals}
    assert not monitored["rows"]
    assert not monitored["requests"]
    assert monitored["predictions"]
    assert "returns none" in state.signal("requests").wait_reason
