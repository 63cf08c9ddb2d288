"""A file or table of ticks as the source of a pipeline's bars (DATA-2)."""

import pytest
import yaml

from sluice.base.errors import SchemaError, SettingsError, SourceError
from sluice.config.pipeline import read_pipeline
from sluice.config.resolved import resolve
from sluice.data.sources import load_rows
from sluice.workloads.bars import BarsSettings, BarsWorkload
from sluice.workloads.bars_contract import RAW_SCHEMA
from tests.sluice.data.tick_samples import build_reference_bars, random_ticks
from tests.support.sqlite_files import sqlite_file

PIPELINE = """
type: sluice.pipelines.component.ModelPipeline
attributes:
  name: ticks
  workload: sluice.workloads.bars:BarsWorkload
  workload_settings:
    min_rows: 100
    source:
      kind: ticks
      ticks: {kind: csv, uri: "%s", index: ts, rename: {px: price, qty: size}}
      rule: {kind: volume, units: 250}
"""


@pytest.fixture(scope="module")
def ticks():
    return random_ticks(12_000, seed=20)


def parse_settings(source: dict) -> BarsSettings:
    return BarsSettings.parse({"source": source, "min_rows": 100}, where="test.yaml")


def test_bars_workload_loads_bars_from_a_tick_file(ticks, tmp_path):
    """From the pipeline file to features; the bars equal those of the reference builder."""
    path = tmp_path / "ticks.csv"
    columns = {"price": "px", "size": "qty"}
    ticks.rename_axis("ts").rename(columns=columns).to_csv(path)
    (tmp_path / "defs.yaml").write_text(PIPELINE % path)

    workload = resolve(read_pipeline(tmp_path / "defs.yaml")).workload
    bars = workload.load_rows()
    frame = workload.compute_features(bars)

    assert isinstance(workload, BarsWorkload)
    expected = build_reference_bars(ticks, workload.settings.source.rule)
    assert bars.index.name == "date"
    assert bars.index.equals(expected.index.rename("date"))
    assert bars["close"].tolist() == expected["close"].tolist()
    assert bars["volume"].tolist() == expected["volume"].tolist()
    assert len(frame) == len(bars) - workload._num_dropped_rows


@pytest.mark.parametrize("kind", ["csv", "parquet", "sql"])
def test_ticks_are_read_from_every_table_source(ticks, tmp_path, kind):
    path = tmp_path / f"ticks.{kind}"
    location: dict[str, str] = {"uri": str(path)}
    if kind == "csv":
        ticks.to_csv(path)
    elif kind == "parquet":
        ticks.to_parquet(path)
    else:
        with sqlite_file(path) as connection:
            # SQLite has no date type; ISO 8601 text sorts in the order of time.
            ticks.set_axis(ticks.index.astype("str")).to_sql("t", connection, index_label="time")
        connection.close()
        location = {"url": f"sqlite:///{path}", "query": "SELECT * FROM t ORDER BY rowid"}
    source = parse_settings(
        {
            "kind": "ticks",
            "ticks": {"kind": kind, "index": "time", **location},
            "rule": {"kind": "range", "tenths_of_bp": 200},
        }
    ).source

    bars = load_rows(source, schema=RAW_SCHEMA)

    assert bars["close"].tolist() == build_reference_bars(ticks, source.rule)["close"].tolist()
    assert bars.index.name == "date"


def test_ticks_that_complete_no_bar_are_rejected(ticks, tmp_path):
    ticks.to_csv(tmp_path / "ticks.csv")
    source = parse_settings(
        {
            "kind": "ticks",
            "ticks": {"kind": "csv", "index": "time", "uri": str(tmp_path / "ticks.csv")},
            "rule": {"kind": "volume", "units": 1e9},
        }
    ).source

    with pytest.raises(SourceError, match=r"none closes .*units=1000000000.0 in 12,000 ticks"):
        load_rows(source, schema=RAW_SCHEMA)


def test_unsorted_ticks_are_rejected_before_bars_are_built(ticks, tmp_path):
    ticks[::-1].to_csv(tmp_path / "ticks.csv")
    source = parse_settings(
        {
            "kind": "ticks",
            "ticks": {"kind": "csv", "index": "time", "uri": str(tmp_path / "ticks.csv")},
            "rule": {"kind": "tick", "num_ticks": 10},
        }
    ).source

    with pytest.raises(SchemaError, match=r"ticks: .* must be sorted, first label out of order"):
        load_rows(source, schema=RAW_SCHEMA)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("{kind: ticks, ticks: {kind: csv, url: x}, rule: {kind: time, seconds: 60}}", "'uri'"),
        ("{kind: ticks, ticks: {kind: csv, uri: x}, rule: {kind: time, secs: 60}}", "'seconds'"),
        ("{kind: ticks, ticks: {kind: csv, uri: x}, rules: {kind: time, secs: 6}}", "'rule'"),
        ("{kind: ticks, ticks: {kind: csv, uri: x}, rule: {kind: minute}}", "'range'"),
        ("{kind: ticks, ticks: {kind: packaged}, rule: {kind: time, seconds: 60}}", "'parquet'"),
        ("{kind: csv, urii: x}", "'uri'"),
    ],
)
def test_unknown_key_or_kind_error_suggests_the_valid_one(change, expected):
    """Suggestions for keys two levels below the source (CONF-1)."""
    with pytest.raises(SettingsError) as caught:
        parse_settings(yaml.safe_load(change))

    assert expected in str(caught.value)
