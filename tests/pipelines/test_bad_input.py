"""Invalid user input ends with one message (what, why, what to do) and without a traceback."""

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
import yaml

from sluice.cli.app import run_command
from sluice.workloads.bars import BarsWorkload
from tests.pipelines.conftest import ECHO

pytestmark = pytest.mark.slow

Edit = Callable[[pd.DataFrame], pd.DataFrame]


@pytest.fixture(scope="module")
def bars() -> pd.DataFrame:
    return BarsWorkload().load_rows().iloc[-1500:].reset_index()


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))


def write_pipeline(csv: Path) -> Path:
    path = csv.with_suffix(".yaml")
    path.write_text(
        yaml.safe_dump(
            {
                "type": "sluice.pipelines.component.ModelPipeline",
                "attributes": {
                    "name": "mine",
                    "workload": "sluice.workloads.bars:BarsWorkload",
                    "workload_settings": {
                        "source": {"kind": "csv", "uri": str(csv), "index": "date"}
                    },
                    "tracking": {"mode": "off"},
                },
            }
        )
    )
    return path


def swap_rows(bars: pd.DataFrame, first: int, second: int) -> pd.DataFrame:
    order = list(range(len(bars)))
    order[first], order[second] = order[second], order[first]
    return bars.iloc[order]


def with_cell(bars: pd.DataFrame, column: str, row: int, value: object) -> pd.DataFrame:
    changed = bars.astype({column: object})
    changed.loc[row, column] = value
    return changed


BAD_ROWS: dict[str, tuple[Edit, int, tuple[str, ...]]] = {
    "missing column": (
        lambda b: b.rename(columns={"close": "closing"}),
        1,
        ("'close'", "closing", "do:"),
    ),
    "text in a price": (
        lambda b: with_cell(b, "open", 700, "n/a?"),
        2,
        ("open", "n/a?", "do:"),
    ),
    "high below low": (
        lambda b: b.assign(high=b["high"].where(b.index != 800, b["low"] - 1)),
        1,
        ("high is at least low", "1 of 1,500 rows", "do:"),
    ),
    "duplicate dates": (
        lambda b: pd.concat([b.iloc[:900], b.iloc[899:]]),
        1,
        ("must be unique", "do:"),
    ),
    "unsorted dates": (lambda b: swap_rows(b, 300, 900), 1, ("sorted", "do:")),
    "40 rows": (lambda b: b.iloc[:40], 2, ("40", "do:")),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows_are_described_in_the_error(
    name: str, bars: pd.DataFrame, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    edit, exit_code, expected = BAD_ROWS[name]
    csv = tmp_path / "bars.csv"
    edit(bars).to_csv(csv, index=False)

    assert run_command(["run", str(write_pipeline(csv))]) == exit_code

    printed = capfd.readouterr().err
    assert "Traceback" not in printed
    for text in expected:
        assert text in printed
    assert not (tmp_path / "home" / "runs").exists()


@pytest.mark.exhaustive
def test_valid_run_succeeds_after_a_blocked_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    document = yaml.safe_load(ECHO.read_text())
    good = tmp_path / "good.yaml"
    good.write_text(yaml.safe_dump(document))
    document["attributes"]["training"]["learning_rate"] = 100.0
    bad = tmp_path / "bad.yaml"
    bad.write_text(yaml.safe_dump(document))

    assert run_command(["run", str(bad)]) == 1
    printed = capfd.readouterr().err
    assert "mini_training_lowers_loss" in printed
    assert "Traceback" not in printed
    assert run_command(["run", "--no-rehearsal", str(good)]) == 0
    assert "PROMOTED" in capfd.readouterr().out


def test_empty_file_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    csv = tmp_path / "bars.csv"
    csv.write_text("")

    assert run_command(["run", str(write_pipeline(csv))]) == 2

    printed = capfd.readouterr().err
    assert "empty" in printed
    assert "Traceback" not in printed


def test_missing_file_suggests_the_nearest_name(
    bars: pd.DataFrame, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bars.to_csv(tmp_path / "bars.csv", index=False)

    assert run_command(["run", str(write_pipeline(tmp_path / "bar.csv"))]) == 2

    printed = capfd.readouterr().err
    assert "bars.csv" in printed
    assert "Traceback" not in printed


def write_edited_echo(tmp_path: Path, change: Callable[[dict[str, object]], None]) -> str:
    document = yaml.safe_load(ECHO.read_text())
    change(document["attributes"])
    path = tmp_path / "edited.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


@pytest.mark.parametrize("command", ["poc", "run"])
def test_unknown_architecture_is_refused_before_the_checks(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_edited_echo(tmp_path, lambda a: a.update(model={"architecture": "mpl"}))

    assert run_command([command, path]) == 2

    printed = capfd.readouterr().err
    assert "'mpl' is not known. Did you mean 'mlp'?" in printed
    assert "data_loads" not in printed


@pytest.mark.parametrize("command", ["poc", "run"])
def test_guard_on_a_missing_suite_is_refused_before_the_checks(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    guard = {"suite": "crashes", "max_broken_share": 0.05}
    path = write_edited_echo(tmp_path, lambda a: a.update(suites={"guards": [guard]}))

    assert run_command([command, path]) == 1

    printed = " ".join(capfd.readouterr().err.split())
    assert "Suite 'crashes' has a guard but does not exist." in printed
    assert "only the hard suite" in printed
    assert "data_loads" not in printed


def test_guard_on_an_unknown_metric_fails_the_gate(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    limit = {"metric": "losses", "maximum": 1.2}
    path = write_edited_echo(tmp_path, lambda a: a.update(guards={"limits": [limit]}))

    assert run_command(["poc", path]) == 1

    printed = " ".join(capfd.readouterr().out.split())
    assert "metrics() of the workload does not return 'losses'. Did you mean 'loss'?" in printed


def test_class_with_required_settings_points_to_its_pipeline_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "sluice.workloads.table:TableWorkload"
    (tmp_path / "other.yaml").write_text("a: b")
    (tmp_path / "prices.yaml").write_text(f"attributes:\n  workload: {name}\n")

    assert run_command(["poc", name]) == 2

    printed = " ".join(capfd.readouterr().err.split())
    assert "'source' is required and missing." in printed
    assert "sluice poc prices.yaml." in printed


def test_unknown_key_suggests_the_nearest_setting(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_edited_echo(tmp_path, lambda a: a["training"].update(learning_rte=0.1))  # type: ignore[attr-defined]

    assert run_command(["run", path]) == 2

    printed = capfd.readouterr().err
    assert "'training.learning_rte' is not a setting. Did you mean 'learning_rate'?" in printed
    assert "Traceback" not in printed


def test_number_that_yaml_parses_as_text_is_reported_with_the_correct_form(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_edited_echo(tmp_path, lambda a: a["training"].update(learning_rate="2e-3"))  # type: ignore[attr-defined]

    assert run_command(["run", path]) == 2
    assert "2.0e-3" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("workload", "word"),
    [
        ("no_such_module:Echo", "No module named 'no_such_module'"),
        ("tests.support.echo:Ecko", "Did you mean 'Echo'?"),
        ("tests.support.echo", "module:Name"),
        ("tests.support.echo:EchoSettings", "inherits from"),
    ],
)
def test_workload_import_error_is_reported(
    workload: str, word: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_edited_echo(tmp_path, lambda a: a.update(workload=workload))

    assert run_command(["run", path]) == 2

    printed = capfd.readouterr().err
    assert word in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"owners": ["nobody"]}, "owner"),
        ({"schedule": {"cron": "every monday"}}, "cron"),
        ({"schedule": {"timezone": "Mars/Base"}}, "timezone"),
        ({"seeds": [0, 1, 2]}, "INCONCLUSIVE"),
        ({"seeds": [0, 1, 2, 3, 3]}, "distinct"),
        ({"name": "Not A Name"}, "name"),
    ],
)
def test_invalid_settings_fail_before_the_run_starts(
    change: dict[str, object], word: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_edited_echo(tmp_path, lambda a: a.update(change))

    assert run_command(["run", path]) == 2

    printed = capfd.readouterr().err
    assert word in printed
    assert "Traceback" not in printed


def test_error_in_user_code_is_reported_with_its_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_edited_echo(
        tmp_path, lambda a: a.update(workload="tests.support.echo:MisspelledColumn")
    )

    assert run_command(["run", path]) == 2

    printed = capfd.readouterr().err
    assert "KeyError: 'cal'" in printed
    assert "echo.py" in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize("command", ["poc", "run"])
def test_inputs_that_clients_cannot_send_block_the_training(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_edited_echo(
        tmp_path, lambda a: a.update(workload="tests.support.echo:DoubledInputs")
    )

    assert run_command([command, path]) == 1

    captured = capfd.readouterr()
    printed = " ".join((captured.out + captured.err).split())
    assert "inputs_can_be_served" in printed
    assert "columns, but 'examples' returns" in printed
    assert "super().examples()" in printed
    assert "trained models" not in printed


def test_unknown_pipeline_suggests_a_known_one(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "sp500_volatilty"]) == 2
    assert "Did you mean 'sp500_volatility'?" in capfd.readouterr().err


def test_home_that_is_a_file_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "file"))

    assert run_command(["run", str(ECHO)]) == 2

    printed = capfd.readouterr().err
    assert "SLUICE_HOME" in printed or "Check the path" in printed
    assert "Traceback" not in printed


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """Return a folder without write access: by its mode, or for root by a read-only mount."""
    folder = tmp_path / "locked"
    folder.mkdir()
    if os.geteuid():
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
        yield folder
        return
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("root may write everywhere, and cannot mount here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_read_only_home_is_reported(
    read_only: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(read_only))

    assert run_command(["run", str(ECHO)]) == 2

    printed = capfd.readouterr().err
    assert f"Cannot write {read_only}" in printed
    assert "SLUICE_HOME" in printed
    assert "Traceback" not in printed
    assert list(read_only.iterdir()) == []


def test_json_error_is_one_object(capfd: pytest.CaptureFixture[str]) -> None:
    import json

    assert run_command(["run", "nothing", "--json"]) == 2

    error = json.loads(capfd.readouterr().out)
    assert error["exit_code"] == 2
    assert error["do"]


def test_unreachable_cluster_is_reported_before_dagster_starts(tmp_path, capfd):
    assert run_command(["tune", "--address", "127.0.0.1:1"]) == 2

    printed = capfd.readouterr().err
    assert "The Ray cluster at '127.0.0.1:1' cannot be reached" in printed
    assert "do:" in printed
    assert not (tmp_path / "home" / "dagster").exists()
