"""Models of generated pipelines are served from rows in the form of the file."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from sluice.base.errors import PayloadError
from sluice.config.pipeline import read_pipeline
from sluice.config.resolved import resolve
from sluice.failfast.data.served_inputs import check_served_inputs
from sluice.rollout.traffic_split import TrafficSplit
from sluice.scaffold.create import create_for_init
from sluice.serving.contract import CodecContract
from sluice.serving.deployed import DeployedModel
from sluice.workloads.workload import Workload
from tests.sluice.scaffold.tables import TABLES, write_csv
from tests.sluice.serving.serving_samples import quick_settings, run_server

REQUEST_COLUMNS = {
    "numbers": ("area", "age"),
    "dates": ("sales", "promotion", "Day"),
    "categories": ("city", "income"),
    "texts": ("review",),
    "imbalanced": ("V1", "V2", "V3"),
    "unix_times": ("load", "wind", "timestamp"),
    "numbered_times": ("amount", "Time"),
    "survey": ("sex", "agrees"),
}
NUM_REQUEST_ROWS = {"dates": 8, "unix_times": 25}
"""Number of rows of a request, by kind of table; 1 by default."""


class LastRow(nn.Module):
    """Return the features of the newest row (B, D) instead of a prediction."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, -1]


@pytest.fixture(autouse=True)
def _remove_modules() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("served_"):
            del sys.modules[name]


def make_workload(kind: str, folder: Path) -> Workload:
    target = write_csv(kind, folder / "data.csv")
    create_for_init(folder, folder / "data.csv", target=target, name=f"served_{kind}")
    return resolve(read_pipeline(folder / f"served_{kind}.yaml")).workload


@pytest.mark.parametrize("kind", TABLES)
def test_requests_have_the_columns_of_the_file(kind: str, tmp_path: Path) -> None:
    workload = make_workload(kind, tmp_path)
    raw = workload.load_rows()
    frame = workload.compute_features(raw)

    found = check_served_inputs(
        workload, required=True, raw=raw, frame=frame, folds=workload.plan_folds(frame)
    )

    assert (found.outcome, found.numbers["codec"]) == ("pass", "rows")
    assert found.numbers["max_deviation"] == 0
    body = workload.request_of(raw, frame, np.array([30]))
    assert tuple(body["columns"]) == REQUEST_COLUMNS[kind]
    assert len(body["rows"][0]) == NUM_REQUEST_ROWS.get(kind, 1)


def test_newest_target_of_a_series_is_not_used(tmp_path: Path) -> None:
    workload = make_workload("dates", tmp_path)
    raw = workload.load_rows()
    frame = workload.compute_features(raw)
    codec = workload.codec()
    body = workload.request_of(raw, frame, np.array([30]))
    expected = codec.decode(body)
    assert body["rows"][0][-1][0] is None

    body["rows"][0][-1][0] = 1e5
    assert torch.equal(codec.decode(body), expected)
    body["rows"][0][-2][0] = 1e5
    assert not torch.equal(codec.decode(body), expected)
    body["rows"][0][-2][0] = None
    with pytest.raises(PayloadError, match=r"newest row of rows\.0 must have features"):
        codec.decode(body)


@pytest.mark.slow
def test_rows_of_the_file_are_sent_by_http(tmp_path: Path) -> None:
    workload = make_workload("categories", tmp_path)
    codec = workload.codec()
    model = DeployedModel(
        version=1,
        candidate="1" * 64,
        contract=CodecContract(
            kind=codec.kind,
            digest=codec.identity().digest,
            max_elements=codec.max_elements,
            body=codec.schema(),
        ),
        target=workload.target_column,
        networks=(LastRow(),),
        codec=codec,
    )
    rows = pd.read_csv(tmp_path / "data.csv", sep=";")[["income", "city"]].head(12)
    assert rows["city"].isna().any()
    assert rows["income"].isna().any()
    cells = [[[None if pd.isna(value) else value for value in row]] for row in rows.to_numpy()]
    split = TrafficSplit(epoch=1, production=model.candidate)

    with run_server({model.candidate: model}, split, settings=quick_settings()) as server:
        answer = server.client.post("/predict", json={"columns": [*rows], "rows": cells})

    assert answer.status_code == 200, answer.text
    found = pd.DataFrame(answer.json()["outputs"], columns=list(workload.feature_columns))
    assert found["income_missing"].tolist() == rows["income"].isna().astype(float).tolist()
    assert found["city=missing"].tolist() == rows["city"].isna().astype(float).tolist()
    for city in ("Bonn", "Kassel", "New York"):
        assert found[f"city={city}"].tolist() == rows["city"].eq(city).astype(float).tolist()
    np.testing.assert_allclose(found["income"][rows["income"].notna()], rows["income"].dropna())
