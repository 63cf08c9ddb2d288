"""TableWorkload: order of rows, features, folds, invalid inputs and codecs."""

import numpy as np
import pandas as pd
import pytest
import torch

from sluice.base.errors import ContractError, SchemaError, SettingsError, SourceError
from sluice.data.source_settings import CsvSource, JsonLinesSource, ParquetSource
from sluice.workloads.columns import Calendar, Category, Lag, Number
from sluice.workloads.table import TableWorkload, TableWorkloadSettings

ROWS = 200


class Prices(TableWorkload):
    target_column = "price"
    inputs = (Number("area", fill=50.0), Category("city", ("Bonn", "Ulm")))


class TimeSeries(TableWorkload):
    target_column = "price"
    inputs = (Calendar("day", ("weekday",)), Lag("price"), Number("area"))


class DailyGroups(TableWorkload):
    target_column = "price"
    inputs = (Number("area"),)
    repeated_labels = True


class Cities(TableWorkload):
    task = "classification"
    target_column = "city"
    classes = ("Bonn", "Ulm", "Kassel")
    inputs = (Number("area"),)


@pytest.fixture
def rows() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "day": pd.date_range("2024-01-01", periods=ROWS).strftime("%Y-%m-%d"),
            "area": rng.normal(size=ROWS).round(6),
            "city": rng.choice(["Bonn", "Ulm", "Kassel"], ROWS),
            "price": rng.normal(size=ROWS).round(6),
        }
    )


def make_workload(cls, rows: pd.DataFrame, folder, *, index=None) -> TableWorkload:
    path = folder / "data.csv"
    rows.to_csv(path, index=False)
    return cls(TableWorkloadSettings(source=CsvSource(uri=str(path), index=index)))


def test_order_of_independent_rows_does_not_depend_on_the_file(rows, tmp_path):
    ordered = make_workload(Prices, rows, tmp_path).load_rows()
    from_reversed = make_workload(Prices, rows[::-1], tmp_path).load_rows()

    assert ordered.equals(from_reversed)
    assert sorted(ordered["price"]) == sorted(rows["price"])
    assert ordered["price"].tolist() != rows["price"].tolist()
    assert make_workload(Prices, rows, tmp_path).horizon_rows == 0


def test_rows_with_equal_features_get_adjacent_unique_keys(rows, tmp_path):
    with_duplicates = pd.concat([rows, rows.assign(price=0.0)])

    result = make_workload(Prices, with_duplicates, tmp_path).load_rows()

    assert result.index.is_unique
    assert result.index.is_monotonic_increasing
    assert (result["area"].to_numpy()[::2] == result["area"].to_numpy()[1::2]).all()


def test_table_features_are_filled_and_encoded_and_rows_without_target_dropped(rows, tmp_path):
    rows.loc[3, "area"] = np.nan
    rows.loc[4, "price"] = np.nan
    workload = make_workload(Prices, rows, tmp_path)

    raw = workload.load_rows()
    frame = workload.compute_features(raw)

    assert frame.columns.tolist() == ["area", "area_missing", "city=Bonn", "city=Ulm", "price"]
    assert len(frame) == ROWS - 1
    assert frame.loc[frame["area_missing"] == 1, "area"].tolist() == [50.0]
    assert frame["city=Bonn"].sum() == (raw["city"].eq("Bonn") & raw["price"].notna()).sum()


def test_rows_with_dates_are_sorted_and_lags_contain_earlier_targets(rows, tmp_path):
    workload = make_workload(TimeSeries, rows.sample(frac=1, random_state=0), tmp_path, index="day")

    raw = workload.load_rows()
    frame = workload.compute_features(raw)

    assert workload.horizon_rows == 1
    assert raw["price"].tolist() == rows["price"].tolist()
    assert len(frame) == ROWS - 1
    assert frame["price_lag1"].tolist() == rows["price"].tolist()[:-1]
    assert frame.equals(workload.compute_features(raw.iloc[:50]).combine_first(frame))


def test_rows_with_the_same_label_are_in_one_split(rows, tmp_path):
    multiple_per_day = pd.concat([rows, rows.assign(area=rows["area"] + 1), rows.head(90)])
    workload = make_workload(DailyGroups, multiple_per_day, tmp_path, index="day")

    frame = workload.compute_features(workload.load_rows())
    folds = workload.plan_folds(frame)

    assert workload.cluster_column == "cluster"
    assert len(folds) == 4
    for fold in folds:
        days = [
            set(frame.index[part.start : part.stop]) for part in (fold.train, fold.val, fold.test)
        ]
        assert not days[0] & days[1]
        assert not days[1] & days[2]
        assert max(days[0]) < min(days[1]) <= max(days[1]) < min(days[2])
    assert folds[-1].test.stop == len(frame)


def test_classifier_defaults_follow_from_the_task(rows, tmp_path):
    workload = make_workload(Cities, rows, tmp_path)

    frame = workload.compute_features(workload.load_rows())
    fold = workload.plan_folds(frame)[0]
    train = workload.examples(frame, fold.train)
    output = torch.zeros(workload.output_shape(train.targets))

    assert train.targets.dtype == torch.int64
    assert output.shape == (len(train), 3)
    assert workload.losses(output, train.targets).tolist() == pytest.approx(
        [np.log(3)] * len(train)
    )
    assert (workload.loss_unit, workload.scale_target) == ("nats", False)
    assert workload.mistakes(output, train.targets).tolist() == (train.targets != 0).tolist()
    metrics = workload.metrics(output, train, frame)
    assert metrics["accuracy"] == pytest.approx((train.targets == 0).float().mean())
    assert workload.headline_metric in metrics


def test_a_regression_reports_metrics_in_target_units(rows, tmp_path):
    workload = make_workload(Prices, rows, tmp_path)
    frame = workload.compute_features(workload.load_rows())
    test = workload.examples(frame, workload.plan_folds(frame)[0].test)

    metrics = workload.metrics(test.targets + 2, test, frame)

    assert metrics["mae"] == pytest.approx(2)
    assert metrics["loss"] == pytest.approx(4, rel=1e-5)
    assert workload.headline_metric == "mae"


def test_unknown_class_is_rejected(rows, tmp_path):
    rows.loc[5, "city"] = "bonn"
    workload = make_workload(Cities, rows, tmp_path)

    with pytest.raises(
        ContractError, match=r"must be one of \['Bonn', 'Ulm', 'Kassel'\], got 'bonn'"
    ):
        workload.compute_features(workload.load_rows())


def test_missing_column_error_suggests_the_nearest_name(rows, tmp_path):
    workload = make_workload(Prices, rows.rename(columns={"area": "Areas"}), tmp_path)

    with pytest.raises(SchemaError, match=r"column 'area' is missing \(nearest: 'Areas'\)"):
        workload.load_rows()


def test_missing_column_error_names_the_source_and_the_class(rows, tmp_path):
    workload = make_workload(
        Prices, rows.rename(columns={"area": "ar_m2", "city": "cit"}), tmp_path
    )

    with pytest.raises(SchemaError, match=r"'city' is missing \(nearest: 'cit'\)") as caught:
        workload.load_rows()

    file = workload.settings.source.uri
    assert f"The rows are from {file}." in caught.value.what
    assert caught.value.fix.startswith(f"Rename the column in {file}, or correct")
    assert "the class Prices in test_table.py" in caught.value.fix


def test_lag_without_time_order_is_rejected(rows, tmp_path):
    with pytest.raises(ContractError, match=r"Lag\('price'\) requires rows in time order"):
        make_workload(TimeSeries, rows, tmp_path)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((), "got no features"),
        ((Number("a"), Number("a")), "the features a twice"),
        ((Number("price"),), "the target 'price' as a feature"),
    ],
)
def test_empty_duplicate_or_target_inputs_are_rejected(inputs, message, rows, tmp_path):
    class Wrong(Prices):
        pass

    Wrong.inputs = inputs

    with pytest.raises(ContractError, match=message):
        make_workload(Wrong, rows, tmp_path)


def test_workload_without_a_source_is_rejected():
    with pytest.raises(SettingsError, match="Prices requires settings with a 'source'"):
        Prices()


def test_json_lines_give_the_same_rows_as_csv(rows, tmp_path):
    path = tmp_path / "data.jsonl"
    rows.to_json(path, orient="records", lines=True)

    workload = Prices(TableWorkloadSettings(source=JsonLinesSource(uri=str(path))))

    expected = make_workload(Prices, rows, tmp_path).load_rows()
    pd.testing.assert_frame_equal(workload.load_rows(), expected)


class Rented(TableWorkload):
    target_column = "price"
    inputs = (Category("rented", ("False", "True")), Category("rooms", ("1", "2", "2.5")))


def test_codec_accepts_numbers_and_booleans_as_categories(rows, tmp_path):
    rows = rows.assign(rented=rows["area"] > 0, rooms=np.tile([1.0, 2.0, 2.5, 2.0], ROWS // 4))
    workload = make_workload(Rented, rows, tmp_path)
    result = workload.codec().decode(
        {"columns": ["rented", "rooms"], "rows": [[[True, 1]], [[False, 2.0]], [["True", 2.5]]]}
    )

    assert result[:, 0].tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 1, 0], [0, 1, 0, 0, 1]]


def test_codec_kind_is_windows_if_earlier_rows_are_needed_and_not_in_time_order(rows, tmp_path):
    multiple_per_day = pd.concat([rows, rows.assign(area=rows["area"] + 1)])
    windows = TableWorkloadSettings(
        source=CsvSource(uri=str(tmp_path / "data.csv"), index=None), seq_len=2
    )
    groups = make_workload(DailyGroups, multiple_per_day, tmp_path, index="day")
    grouped_windows = DailyGroups(groups.settings.model_copy(update={"seq_len": 2}))

    assert grouped_windows.codec().kind == "windows"
    assert groups.codec().kind == "rows"
    assert Prices(windows).codec().kind == "windows"
    assert make_workload(Prices, rows, tmp_path, index="day").codec().kind == "rows"
    assert make_workload(Cities, rows, tmp_path).codec().columns == ("area",)


def test_a_row_of_a_day_with_several_rows_is_decoded_alone(rows, tmp_path):
    multiple_per_day = pd.concat([rows, rows.assign(area=rows["area"] + 1)]).reset_index(drop=True)
    multiple_per_day.loc[2, "price"] = None
    workload = make_workload(DailyGroups, multiple_per_day, tmp_path, index="day")
    raw = workload.load_rows()
    frame = workload.compute_features(raw)
    assert len(frame) == len(raw) - 1

    body = workload.request_of(raw, frame, np.array([11, 12, 13]))

    assert frame.index[11] == frame.index[12], "several rows of one day must be requested"
    assert [len(element) for element in body["rows"]] == [1, 1, 1]
    decoded = workload.codec().decode(body)
    assert decoded.flatten().tolist() == frame["area"].iloc[[11, 12, 13]].astype("float32").tolist()
    with pytest.raises(ContractError, match="must have features, in the same order"):
        workload.request_of(raw, frame.iloc[1:], np.array([11]))


class Hours(TableWorkload):
    target_column = "price"
    inputs = (Calendar("at", ("hour",)), Number("area"))


@pytest.mark.parametrize("index", [None, "at"])
def test_requests_have_the_features_of_times_in_a_time_zone(rows, tmp_path, index):
    times = pd.date_range("2024-01-01", periods=ROWS, freq="7h", tz="Europe/Berlin")
    rows.assign(at=times).to_parquet(tmp_path / "data.parquet")
    source = ParquetSource(uri=str(tmp_path / "data.parquet"), index=index)
    workload = Hours(TableWorkloadSettings(source=source))
    raw = workload.load_rows()
    features = workload.compute_features(raw)
    codec = workload.codec()

    request = codec.request_of(raw, features, np.array([50]))
    x = codec.decode_request(codec.request_type.model_validate(request))

    expected = features.iloc[[50]][list(workload.feature_columns)].to_numpy(np.float32)
    np.testing.assert_allclose(x.reshape(1, -1).numpy(), expected, atol=1e-6)


def test_an_invalid_date_in_a_column_is_reported_with_its_row(rows, tmp_path):
    at = ["2024-01-01", "soon"] * (ROWS // 2)

    with pytest.raises(SourceError, match=r"column 'at' must contain .* got 'soon' at row 1"):
        make_workload(Hours, rows.assign(at=at), tmp_path).load_rows()


def test_utc_offsets_of_only_some_dates_in_a_column_are_rejected(rows, tmp_path):
    at = ["2024-01-01T10:00Z", "2024-01-01T10:00"] * (ROWS // 2)

    with pytest.raises(SourceError, match="dates of column 'at' cannot be parsed"):
        make_workload(Hours, rows.assign(at=at), tmp_path).load_rows()
