"""Drift of images and texts is detected from requests to a server up to the alarm."""

import base64
import dataclasses
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from sluice.assets.drift_report import send_drift_alert, window_metadata
from sluice.base.artifacts import ArtifactStore
from sluice.base.home import Home
from sluice.config.drift_settings import AlarmDebounceSettings, DriftSettings
from sluice.drift.monitor import MonitorRun, run_drift_monitor
from sluice.drift.monitor_inputs import MonitorInputs
from sluice.drift.pending_windows import find_pending_windows
from sluice.drift.reference import no_progress
from sluice.drift.reference_store import ReferenceArtifacts, store_references
from sluice.drift.sampled_embeddings import sampled_embeddings
from sluice.models.embedding import REFERENCE_ROLE, embed
from sluice.observability.alerts import read_alerts
from sluice.rollout.samples import Sample, ServerReport
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.deployed import load_deployed
from sluice.workloads.workload import Workload
from tests.sluice.registry.ledger_samples import MODEL, as_version
from tests.sluice.serving.codec_samples import codec_lineage, make_workload, networks
from tests.sluice.serving.serving_samples import RunningServer, quick_settings, run_server
from tests.support.codec_workloads import WORDS, network_input

pytestmark = pytest.mark.slow

SETTINGS = DriftSettings(window_rows=60, min_rows=40, min_resamples=99)


@dataclass
class Reports:
    samples: list[Sample] = field(default_factory=list)

    def write(self, report: ServerReport) -> None:
        self.samples.extend(report.samples)


@dataclass
class MonitoredServer:
    """A server of one version and the inputs of its drift monitor."""

    workload: Workload
    kind: str
    store: ArtifactStore
    inputs: MonitorInputs
    server: RunningServer
    samples: list[Sample]

    def request(self, rows: range, *, is_shifted: bool) -> None:
        """Send one request per row and wait until all are reported."""
        raw = self.workload.load_rows()
        expected = len(self.embedded) + len(rows)
        for row in rows:
            fields = self.workload.request_of(raw, raw, np.array([row]))
            body = shift_request(fields) if is_shifted else fields
            response = self.server.client.post("/predict", json=body)
            assert response.status_code == 200, response.text
        self.server.wait_for(lambda: len(self.embedded) == expected)

    @property
    def embedded(self) -> list[Sample]:
        return [sample for sample in self.samples if sample.embedding is not None]

    def monitor(self, before: MonitorRun | None = None, **changes: Any) -> MonitorRun:
        inputs = dataclasses.replace(self.inputs, samples=self.samples, **changes)
        return run_drift_monitor(inputs, before.state if before else None)


def shift_request(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the request with its image inverted, or its text reduced to half the vocabulary."""
    if "images" in fields:
        image = Image.open(io.BytesIO(base64.b64decode(fields["images"][0])))
        buffer = io.BytesIO()
        ImageOps.invert(image).save(buffer, "PNG")
        return {"images": [base64.b64encode(buffer.getvalue()).decode()]}
    words = fields["texts"][0].split()
    return {"texts": [" ".join(WORDS[WORDS.index(word) % 5] for word in words)]}


@pytest.fixture(scope="module", params=["images", "texts"])
def monitored(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MonitoredServer]:
    folder = tmp_path_factory.mktemp("world")
    workload, store = make_workload(request.param, folder / "data"), ArtifactStore(folder / "store")
    for file in (folder / "data").glob("*.png"):  # darker, so that inverted images differ
        Image.open(file).point(lambda value: value // 2).save(file)
    trained = networks(workload, salt=1)
    lineage = codec_lineage(workload, store, salt=1, trained=trained)
    frame = workload.compute_features(workload.load_rows())
    by_weights = {m.weights: n for m, n in zip(lineage.members, trained, strict=True)}
    references = store_references(
        workload,
        frame,
        workload.plan_folds(frame),
        lineage.members,
        lambda member: by_weights[member.weights],
        SETTINGS,
        store=store,
        seed=0,
        threads=1,
        on_progress=no_progress,
    )
    version = as_version(lineage.model_copy(update={"artifacts": references.artifacts}))
    model, reports = load_deployed(version, store), Reports()
    settings = quick_settings(
        samples_per_s=1000.0, report_interval_s=0.05, deadline_s=20.0, shadow_deadline_s=20.0
    )
    inputs = MonitorInputs(
        version=version,
        in_production_since=datetime.now(UTC) - timedelta(days=1),
        workload=workload,
        frame=frame,
        references=references,
        samples=(),
        is_served=True,
        settings=SETTINGS,
        alarm_settings=AlarmDebounceSettings(min_drifted=2, num_windows=3),
        store=store,
        save_page=lambda page, _: page(),
        now=datetime.now(UTC),
        threads=1,
    )
    with run_server(
        {model.candidate: model},
        TrafficSplit(epoch=1, production=model.candidate),
        settings=settings,
        reports=reports,
        name=MODEL,
    ) as server:
        yield MonitoredServer(workload, request.param, store, inputs, server, reports.samples)


def test_only_shifted_requests_raise_an_alarm(monitored: MonitoredServer, tmp_path: Path) -> None:
    monitored.request(range(60), is_shifted=False)
    first = monitored.embedded[0]
    expected = embed(
        load_deployed(monitored.inputs.version, monitored.store).networks[0],
        network_input(monitored.workload, 0),
    )
    clean = monitored.monitor()
    monitored.request(range(100), is_shifted=True)
    first_drift = monitored.monitor(clean)
    monitored.request(range(100, 200), is_shifted=True)
    pending = find_pending_windows(
        None,
        monitored.samples,
        first_drift.state,
        SETTINGS,
        in_production_since=monitored.inputs.in_production_since,
    )
    second_drift = monitored.monitor(first_drift)
    idle = monitored.monitor(second_drift)

    assert first.embedding is not None
    assert first.embedding.network == monitored.inputs.version.lineage.members[0].weights
    np.testing.assert_allclose(first.embedding.values, expected.values[0], rtol=1e-5)
    assert clean.state.signal("embedding").verdict == "STABLE"
    assert (clean.embedding.report.reference_rows, clean.embedding.report.num_rows) > (40, 40)
    assert first_drift.state.signal("embedding").verdict == "DRIFT", first_drift.state.signal(
        "embedding"
    ).summary
    assert (
        first_drift.state.training is None or "embedding" not in first_drift.state.training.signals
    )
    assert "embedding" in pending.signals
    alarm = second_drift.state.training
    assert "embedding" in alarm.signals
    assert "Embedding of the network: 2 of the last 3 windows drifted" in alarm.reason
    page = second_drift.state.signal("embedding").windows[-1].page
    assert "squared maximum mean discrepancy" in page
    assert "data:image/png;base64," in page
    metadata = window_metadata(second_drift)
    assert {"embedding of the network", "plot: embedding of the network"} <= metadata.keys()
    assert not any("embedding" in name for name in window_metadata(idle))
    assert idle.state.signal("embedding").windows == second_drift.state.signal("embedding").windows
    home = Home(root=tmp_path, registry_url=f"sqlite:///{tmp_path / 'r.db'}")
    send_drift_alert(second_drift.state, alarm, home)
    (alert,) = read_alerts(home)
    assert "embedding of the network" in alert.what


def test_embeddings_of_another_network_or_without_a_reference_are_inconclusive(
    monitored: MonitoredServer,
) -> None:
    if len(monitored.embedded) < 60:
        monitored.request(range(60), is_shifted=False)
    first, second = monitored.inputs.version.lineage.members
    references = monitored.inputs.references
    assert isinstance(references, ReferenceArtifacts)
    swapped = monitored.inputs.version.lineage.model_copy(
        update={
            "members": (
                first.model_copy(update={"weights": second.weights}),
                second.model_copy(update={"weights": first.weights}),
            )
        }
    )

    def reason(samples: list[Sample], **changes: Any) -> str:
        result = sampled_embeddings(dataclasses.replace(monitored.inputs, **changes), samples)
        return result if isinstance(result, str) else ""

    others = [
        sample.model_copy(
            update={"embedding": sample.embedding.model_copy(update={"network": second.weights})}
        )
        for sample in monitored.embedded
    ]
    none = [sample.model_copy(update={"embedding": None}) for sample in others]
    without = references.model_copy(update={"embedding": None})
    other_version = monitored.monitor(version=as_version(swapped)).state.signal("embedding")
    disabled = monitored.monitor(settings=SETTINGS.model_copy(update={"embedding": None})).state

    assert other_version.verdict == "INCONCLUSIVE"
    assert f"belongs to the network {first.weights[:12]}" in other_version.summary
    assert reason(monitored.embedded) == ""
    assert "without a reference" in reason(monitored.embedded, references=without)
    assert f"embedded by another network ({second.weights[:12]})" in reason(others)
    assert f"None of {len(none)} requests has an embedding" in reason(none)
    assert reason(none[:10]) == ""  # too few requests for a reason: the signal waits
    assert disabled.signal("embedding") is None


def test_a_version_without_a_reference_stores_no_embeddings(monitored: MonitoredServer) -> None:
    lineage = monitored.inputs.version.lineage
    assert REFERENCE_ROLE in lineage.artifacts

    without_reference = load_deployed(
        as_version(lineage.model_copy(update={"artifacts": {}})), monitored.store
    )

    assert without_reference.embedder is None
    x = network_input(monitored.workload, 0)
    with torch.inference_mode():
        assert torch.equal(
            without_reference.networks[0](x),
            load_deployed(monitored.inputs.version, monitored.store).networks[0](x),
        )
