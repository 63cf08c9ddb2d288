"""``sluice bench rows`` with minimal sizes."""

import json

import pytest
import typer
from typer.testing import CliRunner

from sluice.bench.rows import padding, row_sources
from sluice.cli.bench import rows


@pytest.fixture
def invoke(monkeypatch):
    sources, feistel, padded = (
        row_sources.measure_sources,
        row_sources.measure_feistel,
        padding.measure_padding,
    )

    def shrink(measure, **settings):
        return lambda **arguments: measure(**arguments | settings)

    monkeypatch.setattr(row_sources, "measure_sources", shrink(sources, num_rows=600, num_rounds=1))
    monkeypatch.setattr(row_sources, "measure_feistel", shrink(feistel, repeats=1))
    monkeypatch.setattr(padding, "measure_padding", shrink(padded, num_batches=2, num_rounds=1))
    monkeypatch.setenv("COLUMNS", "200")
    app = typer.Typer()
    app.callback()(lambda: None)
    rows.register(app)
    return lambda *options: CliRunner().invoke(app, ["rows", "--quick", *options])


@pytest.mark.slow
def test_json_on_stdout_contains_every_source_and_speed(invoke):
    result = invoke("--json")

    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    classes = {measured["source"].split(",")[0] for measured in found["measured"][:-1]}
    assert classes == {
        *("TableRows", "TokenRows", "TokenBlocks", "ImageFolderRows", "ImageShardRows"),
        *("DatasetRows", "ShardRows"),
    }
    assert found["measured"][-1]["bucketed_tokens_per_s"] > 0
    targets = [speed["target"] for speed in found["speeds"]]
    assert (targets[0], targets[-2:], set(targets[1:-2])) == (20e6, [1.5, 1.5], {0.97})


@pytest.mark.slow
def test_source_that_returns_other_values_than_its_baseline_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(
        "sluice.data.rows.tokens.TokenBlocks.__getitem__", lambda _, rows: rows[:, None]
    )

    with pytest.raises(ValueError, match="must return the same values"):
        list(row_sources.measure_sources(num_rows=400, num_rounds=1, seed=0, folder=tmp_path))
