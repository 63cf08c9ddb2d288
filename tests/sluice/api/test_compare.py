"""The promotion gate from Python decides as ``sluice gate`` does."""

import json
from html import escape

import numpy as np
import pytest

import sluice
from sluice.base.errors import ContractError, SourceError
from sluice.cli.app import run_command
from sluice.evaluation.losses import LossTable

NUM_ROWS = 300
NOISE = np.random.default_rng(3)
BETTER = NOISE.normal(0.9, 0.1, (5, NUM_ROWS))
BASELINE = NOISE.normal(1.0, 0.1, (5, NUM_ROWS))


def frame(losses):
    return LossTable(
        subject="",
        window="",
        seeds=tuple(range(len(losses))),
        fold_N=np.zeros(NUM_ROWS, np.int64),
        label_N=np.arange(NUM_ROWS).astype(str),
        loss_SN=losses,
    ).to_frame()


def test_arrays_frames_files_and_the_command_give_the_same_verdict(tmp_path, capsys):
    files = {name: tmp_path / f"{name}.csv" for name in ("better", "baseline")}
    frame(BETTER).to_csv(files["better"], index=False)
    frame(BASELINE).to_parquet(tmp_path / "baseline.parquet", index=False)
    files["baseline"] = tmp_path / "baseline.parquet"

    arrays = sluice.compare(BETTER, BASELINE).verdict
    frames = sluice.compare(frame(BETTER), frame(BASELINE)).verdict
    read = sluice.compare(files["better"], str(files["baseline"])).verdict
    command = ["gate", "--candidate", str(files["better"]), "--baseline", str(files["baseline"])]
    assert run_command([*command, "--json"]) == 0

    assert arrays == frames == read
    assert json.loads(capsys.readouterr().out) == json.loads(read.model_dump_json())
    assert arrays.outcome == "PROMOTE"


def test_one_line_of_losses_is_a_rule_without_seeds_and_lists_are_arrays():
    found = sluice.compare(BETTER.tolist(), BASELINE[0])

    assert found.baseline.is_deterministic
    assert (found.outcome, found.passed) == ("PROMOTE", True)
    assert found.verdict.num_reference_seeds == 0


def test_a_worse_candidate_and_the_same_losses_do_not_pass():
    assert sluice.compare(BASELINE, BETTER).outcome == "REJECT"
    assert not sluice.compare(BETTER, BETTER.copy()).passed


def test_folds_clusters_and_settings_are_used():
    folds = np.arange(NUM_ROWS) // 100
    found = sluice.compare(
        BETTER,
        BASELINE,
        folds=folds,
        clusters=[f"day {row // 2}" for row in range(NUM_ROWS)],
        settings=sluice.GateSettings(min_gain=0.5),
        horizon_rows=0,
        unit="nats",
    )

    assert [fold.num_rows for fold in found.verdict.folds] == [100, 100, 100]
    assert found.verdict.num_clusters == NUM_ROWS // 2
    assert (found.verdict.required, found.verdict.unit) == (0.5, "nats")
    assert found.outcome == "INCONCLUSIVE"  # fewer clusters than rows are required


@pytest.mark.parametrize(
    ("candidate", "options", "message"),
    [
        (BETTER[:, :200], {}, "100 are only in baseline"),
        (np.zeros((2, 3, 4)), {}, r"shape \(seeds, rows\) or \(rows,\), got \(2, 3, 4\)"),
        ([], {}, r"got \(0,\)"),
        (["one", "two"], {}, "losses of the candidate must be numbers"),
        (None, {}, r"losses of the candidate must have shape .* got \(\)"),
        (frame(BETTER), {"folds": [0] * NUM_ROWS}, "must be columns of its table"),
        (frame(BETTER).drop(columns="fold"), {}, "fold"),
    ],
)
def test_losses_of_another_form_are_refused(candidate, options, message):
    with pytest.raises(ContractError, match=message):
        sluice.compare(candidate, BASELINE, **options)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SourceError, match=r"nowhere\.csv"):
        sluice.compare(tmp_path / "nowhere.csv", BASELINE)


def test_a_notebook_shows_the_verdict_escaped_and_the_page_in_a_frame(tmp_path):
    found = sluice.compare(BETTER, BASELINE, unit="<script>alert(1)</script>")

    shown = found._repr_html_()
    assert "PROMOTE" in shown
    assert escape(found.verdict.reason) in shown
    assert "<script>" not in shown
    page = found.report()
    assert page.save(tmp_path / "gate.html").read_text() == page.html
    assert "data:image/png" in page.html
    assert 'srcdoc="&lt;!DOCTYPE html&gt;' in page._repr_html_()
