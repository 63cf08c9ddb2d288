"""``sluice gate`` on files of losses: exit codes, output, options and user errors."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from sluice.base.errors import ContractError, SettingsError, SourceError
from sluice.cli import gate
from sluice.evaluation.losses import LossTable, write_losses

NUM_ROWS = 400


def make_losses(gain: float, *, num_seeds: int, seed: int) -> LossTable:
    rng = np.random.default_rng(seed)
    base_N = np.random.default_rng(1).exponential(size=NUM_ROWS) + 1
    noise = rng.normal(size=(max(1, num_seeds), NUM_ROWS)) * 0.1
    return LossTable(
        subject="",
        window="",
        seeds=tuple(range(num_seeds)),
        fold_N=np.arange(NUM_ROWS) // 100,
        label_N=np.array([str(i) for i in range(NUM_ROWS)]),
        loss_SN=base_N - gain + noise,
    )


@pytest.fixture
def files(tmp_path) -> dict[str, Path]:
    tables = {
        "rule": make_losses(0.0, num_seeds=0, seed=0),
        "better": make_losses(0.1, num_seeds=5, seed=2),
        "worse": make_losses(-0.1, num_seeds=5, seed=3),
        "few": make_losses(0.1, num_seeds=3, seed=4),
    }
    paths = {name: tmp_path / f"{name}.parquet" for name in tables}
    for name, path in paths.items():
        write_losses(tables[name], path)
    return paths


def invoke(*arguments: object):
    app = typer.Typer()
    app.callback()(lambda: None)
    gate.register(app)
    return CliRunner().invoke(app, ["gate", *map(str, arguments)])


@pytest.mark.parametrize(
    ("candidate", "outcome", "code"),
    [("better", "PROMOTE", 0), ("worse", "REJECT", 1), ("few", "INCONCLUSIVE", 1)],
)
def test_exit_code_follows_the_verdict(files, candidate, outcome, code):
    result = invoke("--baseline", files["rule"], "--candidate", files[candidate])

    assert result.exit_code == code
    assert result.stdout.startswith(outcome)
    assert result.stderr == ""


def test_table_contains_numbers_and_a_sentence(files):
    printed = invoke("--baseline", files["rule"], "--candidate", files["better"]).stdout

    assert "Significantly better" in printed
    assert "5 / none" in printed
    assert "400 in blocks of 8" in printed


def test_json_contains_only_the_whole_verdict(files):
    result = invoke("--baseline", files["rule"], "--candidate", files["better"], "--json")

    verdict = json.loads(result.stdout)
    assert verdict["outcome"] == "PROMOTE"
    assert verdict["gain"] == pytest.approx(0.1, abs=0.03)
    assert len(verdict["folds"]) == 4


def test_undefined_numbers_are_null_in_json(files, tmp_path):
    frame = make_losses(0.1, num_seeds=5, seed=2).to_frame()
    frame.loc[7, "loss"] = np.nan
    frame.to_csv(tmp_path / "diverged.csv", index=False)

    result = invoke("--baseline", files["rule"], "--candidate", tmp_path / "diverged.csv", "--json")

    verdict = json.loads(result.stdout, parse_constant=pytest.fail)
    assert result.exit_code == 1
    assert verdict["lower_bound"] is None
    assert verdict["diverged_seeds"] == [0]


def test_identical_losses_are_reported_as_the_same_model(files, tmp_path):
    copy = tmp_path / "copy.csv"
    write_losses(make_losses(0.1, num_seeds=5, seed=2), copy)

    result = invoke("--baseline", copy, "--candidate", files["better"])

    assert result.exit_code == 1
    assert "the same model" in result.stdout


def test_undefined_numbers_are_not_printed_as_nan(files, tmp_path):
    one_seed = tmp_path / "one.csv"
    write_losses(make_losses(0.1, num_seeds=1, seed=2), one_seed)

    shown = [
        invoke("--baseline", baseline, "--candidate", one_seed, *more).stdout
        for baseline, more in (
            (one_seed, ()),
            (files["rule"], ()),
            (files["rule"], ("--candidate", files["better"])),
            (files["rule"], ("--candidate", files["better"], "--explore")),
        )
    ]

    assert not [text for text in shown if re.search(r"\bnan\b", text)]
    assert "not computable" in shown[0]
    assert "not computable to" not in shown[0]


def test_errors_about_rows_name_the_given_files(files, tmp_path):
    frame = make_losses(0.1, num_seeds=5, seed=2).to_frame()
    short, grouped = tmp_path / "short.csv", tmp_path / "grouped.csv"
    frame[frame["fold"] < 3].to_csv(short, index=False)
    frame.assign(cluster=frame["row"]).to_csv(grouped, index=False)

    other_rows = invoke("--baseline", short, "--candidate", files["better"]).exception
    other_clusters = invoke("--baseline", grouped, "--candidate", files["better"]).exception

    assert f"0 are only in {short}, 100 only in {files['better']} (first: fold 3, row 300)." in str(
        other_rows
    )
    assert str(files["better"]) in str(other_clusters)
    assert f"{grouped}" in str(other_clusters)


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        (["--min-gain", "0.5"], "REJECT"),
        (["--min-seeds", "6"], "INCONCLUSIVE"),
        (["--min-rows", "401"], "INCONCLUSIVE"),
        (["--horizon", "30"], "INCONCLUSIVE"),
        (["--alpha", "0.4", "--block-length", "1"], "PROMOTE"),
        (["--min-gain", "0.2", "--margin-share", "0.5"], "EQUIVALENT"),
    ],
)
def test_every_option_reaches_the_gate(files, options, outcome):
    base = ["--baseline", files["rule"], "--candidate", files["better"], "--json"]

    assert json.loads(invoke(*base, *options).stdout)["outcome"] == outcome


def test_alpha_and_block_length_are_in_the_verdict(files):
    base = ["--baseline", files["rule"], "--candidate", files["better"], "--json"]

    verdict = json.loads(invoke(*base, "--alpha", "0.01", "--block-length", "11").stdout)

    assert (verdict["alpha"], verdict["block_length"]) == (0.01, 11)


@pytest.mark.parametrize(
    ("options", "error", "cause"),
    [
        (["--alpha", "0.7"], SettingsError, "'alpha'.*0.7"),
        (["--horizon", "3", "--block-length", "2"], SettingsError, "horizon of 3 rows"),
        (["--candidate", "nowhere.csv"], SourceError, "nowhere.csv"),
    ],
)
def test_invalid_options_are_typed_user_errors(files, options, error, cause):
    result = invoke("--baseline", files["rule"], "--candidate", files["better"], *options)

    assert isinstance(result.exception, error)
    assert result.exception.exit_code == 2
    with pytest.raises(error, match=cause):
        raise result.exception


def test_candidate_with_missing_rows_is_refused(files, tmp_path):
    frame = make_losses(0.1, num_seeds=5, seed=2).to_frame()
    path = tmp_path / "shorter.csv"
    frame[frame["row"] != "17"].to_csv(path, index=False)

    result = invoke("--baseline", files["rule"], "--candidate", path)

    with pytest.raises(ContractError, match=r"only in .*first: fold 0, row 17"):
        raise result.exception


def test_help_has_an_example():
    result = invoke("--help")

    assert result.exit_code == 0
    assert "sluice gate --baseline production.parquet" in " ".join(result.stdout.split())


@pytest.mark.slow
def test_html_report_is_written_besides_the_verdict(files, tmp_path):
    page = tmp_path / "reports" / "gate.html"

    result = invoke("--baseline", files["rule"], "--candidate", files["better"], "--html", page)

    assert result.exit_code == 0
    assert result.stdout.startswith("PROMOTE")
    assert str(page) in result.stderr
    assert "better.parquet against rule.parquet" in page.read_text()


def candidate_options(files, *names: str) -> list[object]:
    return [part for name in names for part in ("--candidate", files[name])]


def test_p_values_are_adjusted_for_the_number_of_candidates(files, tmp_path):
    """A gain that is significant alone is not significant among 20 candidates (STAT-2)."""
    slightly_better = tmp_path / "close.parquet"
    write_losses(make_losses(0.0095, num_seeds=5, seed=2), slightly_better)
    others = []
    for seed in range(19):
        others += ["--candidate", tmp_path / f"{seed}.parquet"]
        write_losses(make_losses(0.0, num_seeds=5, seed=100 + seed), others[-1])
    options = ("--baseline", files["rule"], "--margin-share", 0, "--candidate", slightly_better)

    alone = invoke(*options)
    in_cohort = invoke(*options, *others, "--json")

    assert (alone.exit_code, in_cohort.exit_code) == (0, 1)
    first = json.loads(in_cohort.stdout)[0]
    assert first["outcome"] == "INCONCLUSIVE"
    assert "Not significant among 20 candidates" in first["reason"]


def test_cohort_is_printed_as_a_table_and_the_better_candidate_is_promoted(files, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    result = invoke(
        "--baseline", files["rule"], *candidate_options(files, "better", "worse", "few")
    )

    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    found = {line[1]: line[3] for line in lines if len(line) > 3 and line[1].endswith("parquet")}
    assert found == {
        "better.parquet": "PROMOTE",
        "worse.parquet": "REJECT",
        "few.parquet": "INCONCLUSIVE",
    }


def test_explore_reports_differences_in_both_directions_without_a_decision(files, tmp_path):
    """Adjusts the p values by Benjamini-Hochberg, for ablations (STAT-2)."""
    same = tmp_path / "same.parquet"
    write_losses(make_losses(0.0, num_seeds=5, seed=9), same)
    options = ("--baseline", files["rule"], *candidate_options(files, "better", "worse"))

    result = invoke(*options, "--candidate", same, "--explore", "--json")

    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    assert [(row["candidate"], row["differs"]) for row in rows] == [
        ("better.parquet", True),
        ("worse.parquet", True),
        ("same.parquet", False),
    ]
    assert rows[2]["adjusted_p"] >= rows[2]["p_value"]
    assert "without a decision" in invoke(*options, "--explore").stdout


def test_html_report_of_several_candidates_is_refused(files, tmp_path):
    options = ("--baseline", files["rule"], *candidate_options(files, "better", "worse"))

    result = invoke(*options, "--html", tmp_path / "x.html")

    assert isinstance(result.exception, SettingsError)
    assert "requires a single candidate, got 2" in str(result.exception)
    assert not (tmp_path / "x.html").exists()


def test_cluster_column_is_used_and_reported(tmp_path):
    for name, gain, seeds in (("rule", 0.0, 0), ("better", 0.1, 5)):
        frame = make_losses(gain, num_seeds=seeds, seed=2).to_frame()
        clusters = frame["row"].astype(int) // 4
        frame.assign(cluster=clusters).to_csv(tmp_path / f"{name}.csv", index=False)
    options = ("--baseline", tmp_path / "rule.csv", "--candidate", tmp_path / "better.csv")

    printed = invoke(*options, "--min-rows", 90).stdout

    assert "400 in 100 clusters, in blocks of 5 clusters" in printed
    assert printed.startswith("PROMOTE")
    assert "100 clusters, required 250" in invoke(*options).stdout.replace("\n", " ")
