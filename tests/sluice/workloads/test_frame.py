"""A data frame as a workload: what is read from it, and what is refused."""

import numpy as np
import pandas as pd
import pytest
import torch

import sluice
from sluice.base.errors import ContractError, SettingsError
from sluice.data.validation import validate_schema
from sluice.failfast.data.served_inputs import check_served_inputs
from sluice.failfast.gate.in_script import require_rebuildable
from sluice.workloads.frame import FrameWorkload, workload_of_frame
from sluice.workloads.frame_settings import FrameSettings
from sluice.workloads.load import load_workload

NUM_ROWS = 60


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))


def rows(**more) -> pd.DataFrame:
    noise = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "size": noise.normal(size=NUM_ROWS),
            "rooms": noise.integers(1, 9, NUM_ROWS),
            "garden": noise.random(NUM_ROWS) > 0.5,
            "town": noise.choice(["Bern", "Oslo", None], NUM_ROWS),
            "price": noise.normal(size=NUM_ROWS),
        }
        | more
    )


def features(workload: FrameWorkload) -> pd.DataFrame:
    raw = workload.load_rows()
    validate_schema(raw, workload.raw_schema, "raw")
    frame = workload.compute_features(raw)
    validate_schema(frame, workload.feature_schema, "features")
    return frame


def test_numbers_booleans_and_texts_are_inputs_and_independent_rows_have_a_stable_order():
    workload = workload_of_frame(rows(), "price")
    shuffled = workload_of_frame(rows().sample(frac=1, random_state=1), "price")
    frame = features(workload)

    assert workload.feature_columns == (
        *("size", "rooms", "garden"),
        *("town=(missing)", "town=Bern", "town=Oslo"),
    )
    assert (workload.horizon_rows, workload.settings.time_ordered) == (0, False)
    assert frame.filter(like="town=").sum(axis=1).eq(1).all()
    assert frame["town=(missing)"].sum() == rows()["town"].isna().sum()
    pd.testing.assert_frame_equal(frame, features(shuffled))
    assert sorted(frame["price"]) == sorted(rows()["price"])


def test_clients_send_the_columns_of_the_frame():
    workload = workload_of_frame(rows(), "price")
    raw = workload.load_rows()
    frame = workload.compute_features(raw)

    found = check_served_inputs(
        workload, required=True, raw=raw, frame=frame, folds=workload.plan_folds(frame)
    )

    assert (found.outcome, found.numbers["max_deviation"]) == ("pass", 0)
    assert workload.codec().columns == ("size", "rooms", "garden", "town")


def test_an_index_of_dates_is_time_order():
    table = rows().set_axis(pd.date_range("2026-01-01", periods=NUM_ROWS), axis=0)
    workload = workload_of_frame(table.sample(frac=1, random_state=1), "price", features=["size"])
    frame = features(workload)

    assert (workload.horizon_rows, workload.settings.time_ordered) == (1, True)
    assert frame.index.tolist() == table.index.tolist()
    assert frame["size"].tolist() == table["size"].tolist()


def test_rows_in_the_order_of_the_frame_when_that_is_time():
    workload = workload_of_frame(rows(), "price", order="time", horizon_rows=3)

    assert features(workload)["price"].tolist() == rows()["price"].tolist()
    assert (workload.horizon_rows, workload.codec().kind) == (3, "windows")


@pytest.mark.parametrize(
    ("target", "labels"),
    [
        (["no", "yes"] * (NUM_ROWS // 2), ("no", "yes")),
        ([True, False] * (NUM_ROWS // 2), ("False", "True")),
        ([2, 10, 9] * (NUM_ROWS // 3), ("2", "9", "10")),
    ],
)
def test_texts_booleans_and_few_integers_are_classes(target, labels):
    workload = workload_of_frame(rows(price=target), "price")
    frame = features(workload)
    examples = workload.examples(frame, workload.plan_folds(frame)[0].test)
    output = torch.zeros(workload.output_shape(examples.targets))

    assert workload.settings.labels == labels
    assert examples.targets.dtype == torch.int64
    assert output.shape == (len(examples), len(labels))
    assert workload.losses(output, examples.targets).mean() == pytest.approx(np.log(len(labels)))
    assert workload.metrics(output, examples, frame)["accuracy"] >= 0
    assert (workload.loss_unit, workload.horizon_rows) == ("nats", 0)


def test_integers_can_be_numbers_and_the_settings_rebuild_the_workload():
    workload = workload_of_frame(rows(price=[1, 2, 3] * 20), "price", task="regression")
    path = "sluice.workloads.frame:FrameWorkload"
    stored = workload.settings.model_dump(mode="json")  # as a version of the registry has them

    assert workload.settings.labels == ()
    assert require_rebuildable(workload) is workload
    assert load_workload(path, stored, where="stored").settings == workload.settings
    assert FrameSettings.parse_json(workload.settings.model_dump_json(), where="child") == (
        workload.settings
    )


def test_rows_with_equal_inputs_are_kept():
    table = pd.concat([rows(), rows()], ignore_index=True)

    frame = features(workload_of_frame(table, "price"))

    assert len(frame) == 2 * NUM_ROWS
    assert frame.index.is_unique


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (rows(), {"target": "prize"}, r"no column 'prize'. Did you mean 'price'\?"),
        (rows(), {"features": ["sise"]}, r"no column 'sise'. Did you mean 'size'\?"),
        (rows().rename(columns={"rooms": "size"}), {}, "distinct names, got size twice"),
        (rows(), {"features": ["price"]}, "columns other than the target 'price'"),
        (rows()[["price"]], {}, "got none"),
        (rows(size=[np.nan] * NUM_ROWS), {}, "'size' must have no missing numbers, got 60"),
        (rows(price=[None] * NUM_ROWS), {}, "'price' must have no missing values, got 60"),
        (rows(price=["one"] * NUM_ROWS), {}, "at least two classes, got 1"),
        (rows(town=[str(i) for i in range(NUM_ROWS)]), {}, "at most 32 distinct texts, got 60"),
        (rows(size=pd.Timestamp("2026-01-01")), {}, "'size' must be numbers or texts, got dates"),
        (rows(price=["a", "b"] * 30), {"task": "regression"}, "must be numbers"),
        (
            rows().set_axis([pd.Timestamp("2026-01-01")] * NUM_ROWS, axis=0),
            {},
            "distinct labels, got 59 repeated labels",
        ),
    ],
)
def test_a_frame_that_cannot_be_a_workload_is_refused(table, options, message):
    with pytest.raises(ContractError, match=message):
        workload_of_frame(table, **({"target": "price"} | options))


@pytest.mark.parametrize(
    "given",
    [{}, {"frame": rows()}, {"target": "price"}, {"workload": FrameWorkload, "target": "a"}],
)
def test_either_a_workload_or_a_frame_with_its_target_is_required(given):
    with pytest.raises(SettingsError, match="Either a workload, or a frame and its target"):
        sluice.check(**given)
