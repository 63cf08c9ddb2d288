"""A workload built from a data frame: inferred features, target, order and errors."""

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


def make_rows(**more) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "size": rng.normal(size=NUM_ROWS),
            "rooms": rng.integers(1, 9, NUM_ROWS),
            "garden": rng.random(NUM_ROWS) > 0.5,
            "town": rng.choice(["Bern", "Oslo", None], NUM_ROWS),
            "price": rng.normal(size=NUM_ROWS),
        }
        | more
    )


def load_features(workload: FrameWorkload) -> pd.DataFrame:
    """Load the rows, compute the features, and validate both against their schemas."""
    raw = workload.load_rows()
    validate_schema(raw, workload.raw_schema, "raw")
    frame = workload.compute_features(raw)
    validate_schema(frame, workload.feature_schema, "features")
    return frame


def test_numbers_booleans_and_texts_become_features_in_a_stable_row_order():
    workload = workload_of_frame(make_rows(), "price")
    shuffled = workload_of_frame(make_rows().sample(frac=1, random_state=1), "price")
    frame = load_features(workload)

    assert workload.feature_columns == (
        *("size", "rooms", "garden"),
        *("town=(missing)", "town=Bern", "town=Oslo"),
    )
    assert (workload.horizon_rows, workload.settings.time_ordered) == (0, False)
    assert frame.filter(like="town=").sum(axis=1).eq(1).all()
    assert frame["town=(missing)"].sum() == make_rows()["town"].isna().sum()
    pd.testing.assert_frame_equal(frame, load_features(shuffled))
    assert sorted(frame["price"]) == sorted(make_rows()["price"])


def test_rows_with_few_combinations_of_inputs_are_separate_observations():
    rows = pd.DataFrame({"sex": ["f", "m"] * 120, "price": np.arange(240.0)})
    workload = workload_of_frame(rows, "price")

    assert workload.settings.repeated_inputs
    first_rows = workload.load_rows().iloc[:120]
    assert 40 < (first_rows["sex"] == "m").sum() < 80
    assert not workload_of_frame(make_rows(), "price").settings.repeated_inputs


def test_codec_accepts_the_columns_of_the_frame():
    workload = workload_of_frame(make_rows(), "price")
    raw = workload.load_rows()
    frame = workload.compute_features(raw)

    result = check_served_inputs(
        workload, required=True, raw=raw, frame=frame, folds=workload.plan_folds(frame)
    )

    assert (result.outcome, result.numbers["max_deviation"]) == ("pass", 0)
    assert workload.codec().columns == ("size", "rooms", "garden", "town")


def test_frame_with_dates_as_index_is_sorted_by_time():
    table = make_rows().set_axis(pd.date_range("2026-01-01", periods=NUM_ROWS), axis=0)
    workload = workload_of_frame(table.sample(frac=1, random_state=1), "price", features=["size"])
    frame = load_features(workload)

    assert (workload.horizon_rows, workload.settings.time_ordered) == (1, True)
    assert frame.index.tolist() == table.index.tolist()
    assert frame["size"].tolist() == table["size"].tolist()


def test_order_time_keeps_the_row_order_of_the_frame():
    workload = workload_of_frame(make_rows(), "price", order="time", horizon_rows=3)

    assert load_features(workload)["price"].tolist() == make_rows()["price"].tolist()
    assert (workload.horizon_rows, workload.codec().kind) == (3, "windows")


@pytest.mark.parametrize(
    ("target", "labels"),
    [
        (["no", "yes"] * (NUM_ROWS // 2), ("no", "yes")),
        ([True, False] * (NUM_ROWS // 2), ("False", "True")),
        ([2, 10, 9] * (NUM_ROWS // 3), ("2", "9", "10")),
    ],
)
def test_target_of_texts_booleans_or_few_integers_is_a_classification(target, labels):
    workload = workload_of_frame(make_rows(price=target), "price")
    frame = load_features(workload)
    examples = workload.examples(frame, workload.plan_folds(frame)[0].test)
    output = torch.zeros(workload.output_shape(examples.targets))

    assert workload.settings.labels == labels
    assert examples.targets.dtype == torch.int64
    assert output.shape == (len(examples), len(labels))
    assert workload.losses(output, examples.targets).mean() == pytest.approx(np.log(len(labels)))
    assert workload.metrics(output, examples, frame)["accuracy"] >= 0
    assert (workload.loss_unit, workload.horizon_rows) == ("nats", 0)


def test_integer_target_can_be_a_regression_and_settings_rebuild_the_workload():
    workload = workload_of_frame(make_rows(price=[1, 2, 3] * 20), "price", task="regression")
    path = "sluice.workloads.frame:FrameWorkload"
    stored = workload.settings.model_dump(mode="json")  # as stored in the registry

    assert workload.settings.labels == ()
    assert require_rebuildable(workload) is workload
    assert load_workload(path, stored, where="stored").settings == workload.settings
    assert FrameSettings.parse_json(workload.settings.model_dump_json(), where="child") == (
        workload.settings
    )


def test_rows_with_equal_inputs_are_kept():
    table = pd.concat([make_rows(), make_rows()], ignore_index=True)

    frame = load_features(workload_of_frame(table, "price"))

    assert len(frame) == 2 * NUM_ROWS
    assert frame.index.is_unique


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (make_rows(), {"target": "prize"}, r"no column 'prize'. Did you mean 'price'\?"),
        (make_rows(), {"features": ["sise"]}, r"no column 'sise'. Did you mean 'size'\?"),
        (make_rows().rename(columns={"rooms": "size"}), {}, "distinct names, got size twice"),
        (make_rows(), {"features": ["price"]}, "columns other than the target 'price'"),
        (make_rows()[["price"]], {}, "got none"),
        (make_rows(size=[np.nan] * NUM_ROWS), {}, "'size' must have no missing numbers, got 60"),
        (make_rows(price=[None] * NUM_ROWS), {}, "'price' must have no missing values, got 60"),
        (make_rows(price=["one"] * NUM_ROWS), {}, "at least two classes, got 1"),
        (
            make_rows(town=[str(i) for i in range(NUM_ROWS)]),
            {},
            "at most 32 distinct texts, got 60",
        ),
        (
            make_rows(size=pd.Timestamp("2026-01-01")),
            {},
            "'size' must be numbers or texts, got dates",
        ),
        (make_rows(price=["a", "b"] * 30), {"task": "regression"}, "must be numbers"),
        (
            make_rows().set_axis([pd.Timestamp("2026-01-01")] * NUM_ROWS, axis=0),
            {},
            "distinct index labels, got 59 repeated labels",
        ),
    ],
)
def test_unusable_frame_is_rejected(table, options, message):
    with pytest.raises(ContractError, match=message):
        workload_of_frame(table, **({"target": "price"} | options))


@pytest.mark.parametrize(
    "arguments",
    [{}, {"frame": make_rows()}, {"target": "price"}, {"workload": FrameWorkload, "target": "a"}],
)
def test_check_requires_either_a_workload_or_a_frame_with_its_target(arguments):
    with pytest.raises(SettingsError, match="Either a workload, or a frame and its target"):
        sluice.check(**arguments)
