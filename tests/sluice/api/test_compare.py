"""``sluice.compare`` returns the same verdicts as the command ``sluice gate``."""

import json
from html import escape

import numpy as np
import pytest

import sluice
from sluice.base.errors import ContractError, SourceError
from sluice.cli.app import run_command
from sluice.evaluation.losses import LossTable
from sluice.evaluation.multiplicity import holm

NUM_ROWS = 300
NOISE = np.random.default_rng(3)
BETTER = NOISE.normal(0.9, 0.1, (5, NUM_ROWS))
BASELINE = NOISE.normal(1.0, 0.1, (5, NUM_ROWS))


def to_frame(losses):
    return LossTable(
        subject="",
        window="",
        seeds=tuple(range(len(losses))),
        fold_N=np.zeros(NUM_ROWS, np.int64),
        label_N=np.arange(NUM_ROWS).astype(str),
        loss_SN=losses,
    ).to_frame()


def test_arrays_frames_files_and_command_give_the_same_verdict(tmp_path, capsys):
    files = {name: tmp_path / f"{name}.csv" for name in ("better", "baseline")}
    to_frame(BETTER).to_csv(files["better"], index=False)
    to_frame(BASELINE).to_parquet(tmp_path / "baseline.parquet", index=False)
    files["baseline"] = tmp_path / "baseline.parquet"

    arrays = sluice.compare(BETTER, BASELINE).verdict
    frames = sluice.compare(to_frame(BETTER), to_frame(BASELINE)).verdict
    read = sluice.compare(files["better"], str(files["baseline"])).verdict
    command = ["gate", "--candidate", str(files["better"]), "--baseline", str(files["baseline"])]
    assert run_command([*command, "--json"]) == 0

    assert arrays == frames == read
    assert json.loads(capsys.readouterr().out) == json.loads(read.model_dump_json())
    assert arrays.outcome == "PROMOTE"


def test_one_dimensional_baseline_is_deterministic_and_lists_are_accepted():
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
    assert found.outcome == "INCONCLUSIVE"  # fewer clusters than gate.min_rows


@pytest.mark.parametrize(
    ("candidate", "options", "message"),
    [
        (BETTER[:, :200], {}, "100 are only in baseline"),
        (np.zeros((2, 3, 4)), {}, r"shape \(seeds, rows\) or \(rows,\), got \(2, 3, 4\)"),
        ([], {}, r"got \(0,\)"),
        (["one", "two"], {}, "losses of the candidate must be numbers"),
        (None, {}, r"losses of the candidate must have shape .* got \(\)"),
        (to_frame(BETTER), {"folds": [0] * NUM_ROWS}, "must be columns of its table"),
        (to_frame(BETTER).drop(columns="fold"), {}, "fold"),
    ],
)
def test_losses_with_an_invalid_form_are_refused(candidate, options, message):
    with pytest.raises(ContractError, match=message):
        sluice.compare(candidate, BASELINE, **options)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(SourceError, match=r"nowhere\.csv"):
        sluice.compare(tmp_path / "nowhere.csv", BASELINE)


def test_notebook_output_is_escaped_and_the_page_is_in_a_frame(tmp_path):
    found = sluice.compare(BETTER, BASELINE, unit="<script>alert(1)</script>")

    shown = found._repr_html_()
    assert "PROMOTE" in shown
    assert escape(found.verdict.reason) in shown
    assert "<script>" not in shown
    page = found.report()
    assert page.save(tmp_path / "gate.html").read_text() == page.html
    assert "data:image/png" in page.html
    assert 'srcdoc="&lt;!DOCTYPE html&gt;' in page._repr_html_()


def test_several_candidates_are_adjusted_in_the_same_way_as_by_the_command(tmp_path, capsys):
    """Alone, the gain of 'slight' is significant; among ten candidates it is not."""
    noise = np.random.default_rng(5)
    slight = BASELINE - 0.0085 + noise.normal(0, 0.03, BASELINE.shape)
    candidates = {"better": BETTER, "slight": slight}
    candidates |= {f"equal {n}": noise.normal(1.0, 0.1, BASELINE.shape) for n in range(8)}
    alone = {name: sluice.compare(each, BASELINE).verdict for name, each in candidates.items()}
    assert (alone["better"].outcome, alone["slight"].outcome) == ("PROMOTE", "PROMOTE")

    cohort = sluice.compare(candidates, BASELINE)

    assert (cohort.promoted, cohort.passed) == (("better",), True)
    adjusted = holm([verdict.p_value for verdict in alone.values()])
    assert tuple(cohort.adjusted_p_values.values()) == adjusted
    assert cohort.adjusted_p_values["slight"] > 0.05 > alone["slight"].p_value
    assert "Not significant among 10 candidates" in cohort.comparisons["slight"].verdict.reason
    assert cohort.comparisons["equal 0"].outcome == alone["equal 0"].outcome

    shown = cohort.report().html
    assert "1 of 10 PROMOTE" in shown
    assert f"{cohort.adjusted_p_values['slight']:.3g}" in shown
    assert f"adjusted p {cohort.adjusted_p_values['slight']:.2g}" in str(cohort)

    command = ["gate", "--baseline", str(tmp_path / "baseline.csv"), "--json"]
    to_frame(BASELINE).to_csv(tmp_path / "baseline.csv", index=False)
    for number, losses in enumerate(candidates.values()):
        to_frame(losses).to_csv(tmp_path / f"{number}.csv", index=False)
        command += ["--candidate", str(tmp_path / f"{number}.csv")]
    assert run_command(command) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [each["outcome"] for each in printed] == [
        comparison.outcome for comparison in cohort.comparisons.values()
    ]


def test_no_candidate_and_the_same_candidate_twice_are_rejected():
    with pytest.raises(ContractError, match="empty mapping"):
        sluice.compare({}, BASELINE)
    with pytest.raises(ContractError, match="one verdict per candidate"):
        sluice.compare({"a": BETTER, "b": BETTER}, BASELINE)
    with pytest.raises(ContractError, match="short"):
        sluice.compare({"short": BETTER[:, 0, None, None]}, BASELINE)


def test_names_of_candidates_are_escaped():
    cohort = sluice.compare({"<script>alert(1)</script>": BETTER}, BASELINE)

    assert "<script>alert" not in cohort.report().html
