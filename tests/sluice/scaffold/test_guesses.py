"""Guesses of task, order and inputs from the columns of a table, and refused tables."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sluice.base.errors import ContractError, SettingsError, SourceError
from sluice.scaffold.table_inspection import inspect_table
from tests.sluice.scaffold.tables import write_csv

ROWS = 240


def inspect_generated(path: Path, kind: str):
    return inspect_table(path, write_csv(kind, path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.csv"


def input_codes(found) -> list[str]:
    return [each.code for each in found.inputs]


def omitted_columns(found) -> dict[str, str]:
    return {each.name: each.reason for each in found.left_out}


def write_columns(path: Path, **values) -> None:
    rng = np.random.default_rng(0)
    pd.DataFrame({"x": rng.normal(size=ROWS), "y": rng.normal(size=ROWS)} | values).to_csv(
        path, index=False
    )


def test_numeric_table_is_a_regression_without_identifiers_and_constants(path):
    found = inspect_generated(path, "numbers")

    assert (found.task.value, found.order.value, found.classes) == ("regression", "hash", ())
    assert input_codes(found) == ['Number("area")', 'Number("age")']
    assert omitted_columns(found) == {
        "Id": "identifier: a different integer in every row",
        "country": "constant, always 'DE'",
    }


def test_amounts_whose_names_end_in_id_are_no_identifiers(path):
    distinct = np.random.default_rng(1).permutation(10 * ROWS)[:ROWS]
    keys = ("customerId", "customerID", "customer_id", "order id", "ID")
    write_columns(path, paid=distinct, Bid=distinct[::-1], **dict.fromkeys(keys, distinct))

    found = inspect_table(path, "y")

    assert {'Number("paid")', 'Number("Bid")'} <= set(input_codes(found))
    assert set(omitted_columns(found)) == set(keys)


def test_dates_order_the_rows_and_give_lagged_targets(path):
    found = inspect_generated(path, "dates")

    assert found.order.value == "time"
    assert found.source == {"kind": "csv", "index": "Day", "date_format": "%d/%m/%Y"}
    assert input_codes(found) == [
        'Calendar("Day", ("weekday", "yearday"))',
        'Lag("sales", 1)',
        'Lag("sales", 7)',
        'Number("promotion")',
    ]


@pytest.mark.parametrize(
    ("encoding", "settings"), [("utf-8", {}), ("cp1252", {"encoding": "cp1252"})]
)
def test_a_file_of_a_european_spreadsheet_is_read(path, encoding, settings):
    lines = [
        f"{i % 28 + 1:02d}.{i // 28 % 12 + 1:02d}.{2000 + i // 336};{i},5;1.{i:03d},25"
        for i in range(ROWS)
    ]
    path.write_text("\n".join(("Tag;Gr\u00f6\u00dfe;Preis \u20ac", *lines)), encoding=encoding)

    found = inspect_table(path, "Preis \u20ac")

    assert found.task.value == "regression"
    assert (
        found.source
        == {
            "kind": "csv",
            "index": "Tag",
            "separator": ";",
            "decimal": ",",
            "thousands": ".",
            "date_format": "%d.%m.%Y",
        }
        | settings
    )
    assert "distinct numbers from 1000.25 to 1239.25" in found.task.reason


def test_markers_of_missing_numbers_and_spaces_are_guessed(path):
    areas = np.random.default_rng(0).permutation(ROWS)
    lines = [f"{n}.5, {'?' if n % 4 == 1 else areas[n]}, north" for n in range(ROWS)]
    path.write_text("\n".join(("price, area, region", *lines)))

    found = inspect_table(path, "price")

    assert found.source == {"kind": "csv", "index": None, "missing": ("?",), "skip_spaces": True}
    (area,) = found.inputs
    assert area.name == "area"
    assert "60 of 240 missing" in area.reason


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    "header", ['"Area, net, EUR";y', '\ufeff"Area, net, EUR";"y"', '"Area\n, in ""m"", EUR";y']
)
def test_separators_in_quoted_names_are_ignored(path, header, line_end):
    areas = np.random.default_rng(0).permutation(ROWS)
    lines = (header, *(f"{area},5;{area % 7}" for area in areas))
    path.write_text(line_end.join(lines), newline="")

    found = inspect_table(path, "y")

    assert found.source == {"kind": "csv", "index": None, "separator": ";", "decimal": ","}


def test_a_long_file_is_guessed_although_the_sample_ends_in_a_quoted_value(path):
    note = "a line of a long note\n" * 50_000
    lines = [f'{n * 7 % ROWS},5;{n % 7};"{note if n == 100 else n % 3}"' for n in range(ROWS)]
    path.write_text("\n".join(("area;y;note", *lines)))

    found = inspect_table(path, "y")

    assert found.source == {"kind": "csv", "index": None, "separator": ";", "decimal": ","}
    assert 'Number("area")' in input_codes(found)


def test_times_with_utc_offsets_order_the_rows(path):
    times = pd.date_range("2024-01-01", periods=ROWS, freq="36h", tz="Europe/Berlin")
    assert len({str(time)[-6:] for time in times}) == 2, "daylight saving time must begin"
    write_columns(path, at=[time.isoformat() for time in times])

    found = inspect_table(path, "y")

    assert found.order.value == "time"
    assert found.source == {"kind": "csv", "index": "at"}
    assert "Times with a UTC offset are read in UTC." in found.order.reason


@pytest.mark.parametrize(
    "date_format",
    [
        *("%d-%b-%y", "%b %d, %Y", "%B %d, %Y", "%m/%d/%y", "%m/%d/%Y %I:%M %p", "%d.%m.%y %H:%M"),
        *("%d %b %Y", "%Y%m%d", "%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S", "%Y/%m/%d %H:%M:%S.%f"),
    ],
)
def test_formats_of_dates_are_guessed(path, date_format):
    times = pd.date_range("2024-01-02", periods=ROWS, freq="36h")
    write_columns(path, at=times.strftime(date_format))

    found = inspect_table(path, "y")

    assert found.source == {"kind": "csv", "index": "at", "date_format": date_format}
    assert "'at' has dates from 2024-01-02 to 2024-12-" in found.order.reason


@pytest.mark.parametrize("date_format", ["%b %Y", "%b-%y", "%Y %b", "%B %Y", "%Y%m", "%m/%Y"])
def test_months_are_dates_with_the_target_of_a_year_earlier(path, date_format):
    months = pd.date_range("1992-01-01", periods=ROWS, freq="MS")
    write_columns(path, month=months.strftime(date_format))

    found = inspect_table(path, "y")

    assert found.source == {"kind": "csv", "index": "month", "date_format": date_format}
    assert {'Lag("y", 1)', 'Lag("y", 12)'} <= set(input_codes(found))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_unix_times_order_the_rows_in_utc(path, unit):
    times = pd.date_range("2021-03-01", periods=ROWS, freq="h").as_unit(unit).astype("int64")
    write_columns(path, volume=times[::-1] + 1, open_time=times)

    found = inspect_table(path, "y")

    assert found.source == {"kind": "csv", "index": "open_time", "date_format": f"unix_{unit}"}
    assert "'open_time' has dates from 2021-03-01 to 2021-03-10" in found.order.reason
    assert f"The numbers count {unit} since 1970-01-01" in found.order.reason
    assert input_codes(found) == [
        'Calendar("open_time", ("hour", "weekday"))',
        'Lag("y", 1)',
        'Lag("y", 24)',
        'Number("x")',
        'Number("volume")',
    ]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("amount", range(20240101, 20240101 + ROWS)),  # 20240132 is not a date
        ("month_code", range(202301, 202301 + ROWS)),  # 202313 is not a month
        ("version", [f"1.2.{n}" for n in range(ROWS)]),
        ("phone", [f"555-{n:04d}" for n in range(ROWS)]),
        ("time", np.random.default_rng(0).permutation(ROWS) * 2),
        ("time", [*range(ROWS - 1), np.inf]),
        ("year", [n // 5 for n in range(ROWS)]),
        ("age", range(0, 2 * ROWS, 2)),
    ],
)
def test_columns_that_only_resemble_times_do_not_order_rows(path, name, values):
    write_columns(path, **{name: list(values)})

    found = inspect_table(path, "y")

    assert (found.order.value, found.source) == ("hash", {"kind": "csv", "index": None})


@pytest.mark.parametrize("date_format", ["%Y-%m-%d", "%d.%m.%Y", "%Y%m%d"])
def test_missing_dates_are_reported(path, date_format):
    texts = pd.date_range("2024-01-01", periods=ROWS).strftime(date_format).tolist()
    write_columns(path, day=[None, *texts[1:]])

    found = inspect_table(path, "y")

    assert found.order.value == "hash"
    assert omitted_columns(found)["day"].startswith("1 date missing; a column with a date in every")


def test_sorted_years_order_the_rows(path):
    write_columns(path, Year=range(1750, 1750 + ROWS))

    found = inspect_table(path, "y")

    assert (found.order.value, found.index_kind) == ("time", "int")
    assert found.source == {"kind": "csv", "index": "Year"}
    assert "sorted by 'Year', from 1750 to 1989" in found.order.reason
    assert input_codes(found) == ['Lag("y", 1)', 'Number("x")']


def test_repeated_seconds_order_the_rows(path):
    write_columns(path, Time=np.arange(ROWS) // 2 * 0.5)

    found = inspect_table(path, "y")

    assert (found.order.value, found.index_kind) == ("time", "float")
    assert found.has_repeated_times
    assert "120 distinct numbers; rows with one number stay together" in found.order.reason
    assert input_codes(found) == ['Number("x")']


def test_dates_precede_numbers_as_the_order_of_rows(path):
    write_columns(path, t=range(ROWS), day=pd.date_range("2024-01-01", periods=ROWS))

    found = inspect_table(path, "y")

    assert (found.source["index"], found.index_kind) == ("day", "datetime")


def test_categories_and_missing_values_become_inputs(path):
    found = inspect_generated(path, "categories")

    assert (found.task.value, found.classes) == ("classification", ("no", "yes"))
    assert found.source["separator"] == ";"
    assert input_codes(found)[0] == 'Category("city", ("Bonn", "Kassel", "New York"), missing=True)'
    assert input_codes(found)[1].startswith('Number("income", fill=')
    assert "filled with the median" in found.inputs[1].reason
    assert list(omitted_columns(found)) == ["customer"]


def test_single_text_column_gets_a_width_of_256(path):
    found = inspect_generated(path, "texts")

    assert input_codes(found) == ['Text("review", width=256)']
    assert found.classes == ("negative", "positive")


def test_imbalanced_classes_are_noted(path):
    found = inspect_generated(path, "imbalanced")

    assert found.classes == ("0", "1")
    (note,) = found.target_notes
    assert note.startswith("Imbalanced: class '1' has")


def test_rows_with_equal_dates_are_detected(path):
    days = pd.date_range("2024-01-01", periods=ROWS // 2).repeat(2)
    write_columns(path, day=days)

    found = inspect_table(path, "y")

    assert (found.order.value, found.has_repeated_times) == ("time", True)
    assert input_codes(found) == ['Calendar("day", ("weekday",))', 'Number("x")']


def test_dates_of_birth_and_few_dates_do_not_order_rows(path):
    few = np.tile(pd.date_range("2024-01-01", periods=10).astype(str), ROWS // 10)
    write_columns(path, birthday=pd.date_range("1950-01-01", periods=ROWS, freq="40D"), day=few)

    found = inspect_table(path, "y")

    assert found.order.value == "hash"
    assert input_codes(found)[1] == 'Calendar("birthday", ("weekday", "yearday"))'


def test_columns_that_determine_the_target_are_left_out(path):
    label = np.random.default_rng(1).choice(["a", "b"], ROWS)
    write_columns(path, label=label, code=np.where(label == "a", 7, 9), copy=np.arange(ROWS) * 1.5)

    assert omitted_columns(inspect_table(path, "label"))["code"] == "it determines the target"
    assert "code" not in omitted_columns(inspect_table(path, "y"))
    write_columns(path, doubled=pd.read_csv(path)["y"] * 2)
    assert omitted_columns(inspect_table(path, "y")) == {"doubled": "it determines the target"}


def test_columns_with_the_name_of_another_feature_are_left_out(path):
    age = np.random.default_rng(1).normal(size=ROWS)
    age[:9] = np.nan
    write_columns(
        path, age=age, age_missing=np.arange(ROWS) / 7, y_lag1=0.5, city=["a", "b"] * (ROWS // 2)
    )
    frame = pd.read_csv(path).assign(y_lag1=np.random.default_rng(2).normal(size=ROWS))
    frame.assign(day=pd.date_range("2024-01-01", periods=ROWS)).to_csv(path, index=False)

    found = inspect_table(path, "y")

    assert omitted_columns(found) == {
        "age_missing": "its feature 'age_missing' has the name of a feature of 'age': rename the "
        "column",
        "y_lag1": "its feature 'y_lag1' has the name of a feature of 'y, 1 earlier': rename the "
        "column",
    }


def test_a_column_with_a_feature_named_like_the_target_is_left_out(path):
    write_columns(path, city=["a", "b"] * (ROWS // 2))
    pd.read_csv(path).rename(columns={"y": "city=a"}).to_csv(path, index=False)

    found = inspect_table(path, "city=a")

    assert input_codes(found) == ['Number("x")']
    assert "the name of the target 'city=a'" in omitted_columns(found)["city"]


def test_unusable_columns_are_left_out_with_the_reason(path):
    write_columns(
        path,
        empty=[None] * ROWS,
        amount=[f"{number:,} EUR" for number in range(1_000, 1_000 + ROWS)],
        token=[f"{number:x}" for number in range(10**9, 10**9 + ROWS)],
        marked=["closed"] * 9 + [str(number / 7) for number in range(ROWS - 9)],
        infinite=[np.inf] + [1.5, 2.5] * (ROWS // 2 - 1) + [1.5],
    )

    found = omitted_columns(inspect_table(path, "y"))

    assert found["empty"] == "every value is missing"
    assert found["amount"].startswith("numbers with a unit or separators, such as '1,000 EUR'")
    assert found["token"] == f"identifier: {ROWS} distinct values in {ROWS} rows"
    assert found["marked"].startswith("numbers, but text such as 'closed' in 9 rows: remove it")
    assert found["infinite"] == "infinite values; replace them in the data"


@pytest.mark.parametrize("form", ["{:d}", "{:.5e}"])
def test_numbers_that_json_stores_as_text_are_left_out(tmp_path, form):
    file = tmp_path / "data.jsonl"
    rows = pd.DataFrame({"x": np.arange(ROWS) % 7, "y": np.arange(ROWS) / 3})
    rows["amount"] = [form.format(number) for number in range(1, ROWS + 1)]
    rows.to_json(file, orient="records", lines=True)

    reason = omitted_columns(inspect_table(file, "y"))["amount"]

    assert reason == f"numbers that are stored as text, such as {form.format(1)!r}: convert them"


def test_categories_with_many_values_keep_the_frequent_ones(path):
    write_columns(path, shop=[f"s{number**2 % 41}" for number in range(ROWS)])

    (shop,) = [each for each in inspect_table(path, "y").inputs if each.name == "shop"]

    assert shop.code.count('"s') == 20 + 1
    assert shop.reason.startswith("the 20 most frequent of 21 values")


def test_repeated_rows_are_reported(path):
    write_columns(path)
    rows = pd.read_csv(path)
    pd.concat([rows, rows.head(20)]).to_csv(path, index=False)

    found = inspect_table(path, "y").max_duplicate_share

    assert found is not None
    assert found.value == pytest.approx(1.2 * 20 / 260 + 0.01, abs=0.01)
    assert found.reason.startswith("7.7% of the rows repeat another row.")


def test_few_combinations_of_inputs_are_separate_observations(path):
    write_columns(path, x=np.arange(ROWS) % 8 / 8)

    assert inspect_table(path, "y").has_repeated_inputs
    write_columns(path, x=np.arange(ROWS) % 8 / 8, day=pd.date_range("2024-01-01", periods=ROWS))
    assert not inspect_table(path, "y").has_repeated_inputs


def test_rows_without_a_target_are_noted(path):
    write_columns(path)
    rows = pd.read_csv(path)
    rows.loc[:4, "y"] = np.nan
    rows.to_csv(path, index=False)

    assert inspect_table(path, "y").target_notes == ("5 rows without a target are omitted.",)


@pytest.mark.parametrize(
    ("values", "target", "message"),
    [
        ({}, "Y2", r"has no column 'Y2'.* Its columns: x, y\."),
        ({"z": "same"}, "z", "at least two values, got always 'same'"),
        ({"z": 3}, "z", "at least two values, got always 3"),
        ({"z": [None] * ROWS}, "z", "at least two values, got no value at all"),
        ({"z": [f"t{n}" for n in range(ROWS)]}, "z", "at most 50 classes, got 240 distinct values"),
        ({"z": [np.inf] + [1.5] * (ROWS - 1)}, "z", "must be finite, got infinite values"),
    ],
)
def test_a_target_that_cannot_be_predicted_is_refused(values, target, message, path):
    write_columns(path, **values)

    with pytest.raises(ContractError, match=message):
        inspect_table(path, target)


def test_the_nearest_column_is_suggested(path):
    write_columns(path, price=np.arange(ROWS))

    with pytest.raises(SettingsError, match="Did you mean 'price'"):
        inspect_table(path, "prise")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must contain at least one row, but it is empty"),
        ("x,y\n", "must contain at least one row, but it is empty"),
        ("x,y\n" + "1,2\n3,4\n" * 20, "at least 158 rows with a target .* got 40"),
        ("y\n" + "1\n2\n" * 100, "only the column 'y'"),
        (
            "k,y\n" + "a,1\na,2\n" * 100,
            r"no column from which 'y' could be predicted: k \(constant",
        ),
        ("x,y\n1,2\n1,2,3\n", "cannot be parsed as CSV"),
    ],
)
def test_insufficient_files_are_refused(content, message, path):
    path.write_text(content)

    with pytest.raises(ContractError, match=message):
        inspect_table(path, "y")


def test_an_unknown_format_is_refused(tmp_path):
    path = tmp_path / "data.xlsx"
    path.touch()

    with pytest.raises(SourceError, match=r"data\.xlsx has no known format: .*\.csv"):
        inspect_table(path, "y")
