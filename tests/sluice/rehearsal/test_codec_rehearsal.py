"""ROLL-1: a rehearsal sends rows as texts, tokens, images and raw rows through the codec."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import torch

from sluice.base.artifacts import ArtifactStore
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.data.rows.protocol import gather
from sluice.registry.rollouts import RolloutLedger
from sluice.rehearsal.request_rows import load_request_rows
from sluice.rehearsal.run import rehearse
from sluice.workloads.workload import Workload
from tests.sluice.registry.ledger_samples import MODEL, Clock
from tests.sluice.serving.codec_samples import KINDS, codec_lineage, make_workload, register
from tests.support.row_sources import assert_same

Promoted = tuple[Workload, RolloutLedger, ArtifactStore]


@pytest.fixture
def promoted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Promoted]:
    workload = make_workload(request.param, tmp_path / "data")
    store = ArtifactStore(tmp_path / "artifacts")
    with RolloutLedger.open(f"sqlite:///{tmp_path / 'registry.db'}", clock=Clock()) as ledger:
        number = register(ledger, codec_lineage(workload, store, salt=1))
        ledger.promote(MODEL, number, expected=None, actor="a", reason="b", store=store)
        yield workload, ledger, store


@pytest.mark.parametrize("promoted", KINDS, indirect=True)
def test_a_replayed_row_is_decoded_to_its_example(promoted: Promoted) -> None:
    workload, ledger, _ = promoted
    version = ledger.production(MODEL)
    assert version is not None
    rows = load_request_rows(version, workload)

    body = json.loads(rows.body(20, rng=Random(0)))

    assert body["keys"] == [rows.keys[20]]
    assert_same(workload.codec().decode(body), gather(rows.x, torch.tensor([20])))
    assert json.loads(rows.body(20, rng=Random(0))) == body


@pytest.mark.exhaustive
@pytest.mark.parametrize("promoted", ["images", "named rows"], indirect=True)
def test_a_healthy_challenger_is_promoted_and_no_request_fails(promoted: Promoted) -> None:
    workload, ledger, store = promoted
    pipeline = PipelineSettings.parse(
        {
            "name": MODEL,
            "workload": f"{type(workload).__module__}:{type(workload).__name__}",
            "workload_settings": workload.settings.model_dump(mode="json"),
            "model": {"architecture": "linear"},
        },
        where="test",
    )

    rehearsal = rehearse(
        resolve(pipeline),
        ledger,
        store,
        fault="none",
        seconds=40.0,
        seed=0,
        port=0,
        on_sample=lambda _, __, ___: None,
    )

    assert (rehearsal.ended, rehearsal.failed) == ("promoted", 0), rehearsal.reason
    assert rehearsal.answered > 200
