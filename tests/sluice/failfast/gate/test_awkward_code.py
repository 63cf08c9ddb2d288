"""POC-11, POC-12: user code that is difficult for the supervising process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.base.errors import ContractError, GateBlocked, SettingsError
from sluice.cli.app import run_command
from sluice.config.poc_settings import PocSettings
from sluice.failfast import check
from sluice.failfast.gate.request import GateRequest, WorkloadTarget
from sluice.failfast.gate.supervisor import supervise
from tests.support import awkward_workloads as awkward

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[4]
MODULE = "tests.support.awkward_workloads"
QUICK_SETTINGS = PocSettings(mini_rows=128, mini_epochs=3)
IMPORTS = (
    "from tests.support.failfast_workloads import BrokenModel, OwnNet\n"
    "from sluice import failfast\n"
)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def gate(tmp_path):
    def run(name, level="minimum"):
        target = WorkloadTarget(path=f"{MODULE}:{name}", poc=QUICK_SETTINGS)
        request = GateRequest(target=target, level=level, seed=0)
        return supervise(request, folder=tmp_path / "gates")

    return run


def get_result(run, name):
    return next(result for result in run.report.results if result.name == name)


def run_python(tmp_path, *arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.exhaustive
def test_each_check_call_in_a_script_checks_its_own_workload(tmp_path):
    (tmp_path / "two.py").write_text(
        f"{IMPORTS}class Good(OwnNet): pass\nclass Bad(BrokenModel): pass\n"
        "failfast.check(Good, level='minimum')\nprint('good passed')\n"
        "failfast.check(Bad, level='minimum')\nprint('bad passed')\n"
    )

    completed = run_python(tmp_path, "two.py")

    assert completed.returncode == 1
    assert completed.stdout == "good passed\n"
    assert "no_such_thing" in completed.stderr


@pytest.mark.exhaustive
def test_sluice_poc_can_check_a_module_that_calls_check(tmp_path):
    """The module calls check() itself, which must not start a second gate."""
    (tmp_path / "train.py").write_text(
        f"{IMPORTS}class Mine(OwnNet): pass\nfailfast.check(Mine)\nprint('training for hours')\n"
    )

    completed = run_python(tmp_path, "-m", "sluice", "poc", "train:Mine", "--minimum", "--json")

    assert completed.returncode == 0, completed.stderr
    assert json.loads(completed.stdout)["passed"]
    assert "training for hours" not in completed.stderr


def test_a_script_keeps_its_arguments_and_survives_a_bare_except(tmp_path):
    (tmp_path / "train.py").write_text(
        f"import argparse\n{IMPORTS}"
        "parser = argparse.ArgumentParser(); parser.add_argument('--rows', required=True)\n"
        "rows = parser.parse_args().rows\n"
        "class Mine(OwnNet):\n"
        "    def load_rows(self):\n"
        "        assert rows == '700'\n"
        "        return super().load_rows()\n"
        "try:\n    failfast.check(Mine, level='minimum')\nexcept:\n    print('swallowed')\n"
        "print('training for hours')\n"
    )

    completed = run_python(tmp_path, "train.py", "--rows", "700")

    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == "training for hours\n"
    assert "gate passed" in completed.stderr
    assert "swallowed" not in completed.stderr


@pytest.mark.exhaustive
def test_a_module_of_a_package_may_import_relatively(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("")
    (tmp_path / "mine" / "parts.py").write_text("ROWS = 700\n")
    (tmp_path / "mine" / "train.py").write_text(
        f"from .parts import ROWS\n{IMPORTS}class Mine(OwnNet): pass\n"
        "failfast.check(Mine, level='minimum')\nprint('training for hours')\n"
    )

    completed = run_python(tmp_path, "-m", "mine.train")

    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == "training for hours\n"


@pytest.mark.exhaustive
def test_error_of_the_second_import_of_a_script_is_reported_with_its_line(tmp_path):
    (tmp_path / "train.py").write_text(
        f"{IMPORTS}from pathlib import Path\n"
        "mark = Path('seen')\n"
        "if mark.exists(): raise OSError('the device is taken')\n"
        "mark.touch()\n"
        "class Mine(OwnNet): pass\n"
        "failfast.check(Mine)\n"
    )

    completed = run_python(tmp_path, "train.py")

    assert completed.returncode == 1
    assert "the device is taken" in completed.stderr
    assert "train.py:5 in <module>" in completed.stderr


@pytest.mark.parametrize(
    "name", [pytest.param("Rich", marks=pytest.mark.exhaustive), "Outer.Inner"]
)
def test_all_setting_types_reach_the_gate_process(gate, name):
    assert gate(name).report.passed


def test_an_instance_with_settings_of_every_kind_passes():
    settings = awkward.RichSettings(num_rows=600, pair=(3,))

    assert check(awkward.Rich(settings), level="minimum", settings=QUICK_SETTINGS).passed


def test_an_instance_that_its_settings_do_not_define_is_rejected():
    with pytest.raises(SettingsError, match="differ: rows"):
        check(awkward.CustomConstructor(rows=50))


@pytest.mark.parametrize(
    ("name", "check_name", "expected_texts"),
    [
        ("CallsExit", "data_loads", ["SystemExit: no credentials", "CallsExit.load_rows"]),
        pytest.param(
            "RaisesUnprintableError",
            "data_loads",
            ["UnprintableError"],
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "RaisesLongMessage",
            "features_are_valid",
            ["ValueError: xxx"],
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "Forks",
            "model_runs_on_real_batch",
            ["ended with status 3"],
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_exits_and_unusual_errors_of_user_code_fail_the_running_check(
    gate, name, check_name, expected_texts
):
    failed = get_result(gate(name), check_name)

    assert failed.outcome == "fail"
    for expected in expected_texts:
        assert expected in failed.summary
    assert len(failed.summary) < 1000
    assert failed.seconds < failed.max_s  # reported at once, not stopped at the time limit


@pytest.mark.exhaustive
def test_earlier_results_are_kept_if_data_cannot_be_loaded_again(gate, tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_TEST_MARK", str(tmp_path / "mark"))

    run = gate("FailsWhenLoadedAgain", level="full")

    assert get_result(run, "data_loads").outcome == "pass"
    assert "status 4" in get_result(run, "model_runs_on_real_batch").summary
    assert get_result(run, "event_log_is_writable").outcome == "pass"


def test_error_class_of_the_user_keeps_its_summary_and_fix(capsys):
    """With --json the standard output is valid JSON."""
    assert run_command(["poc", f"{MODULE}:RaisesUserDefinedError", "--json"]) == 1

    report = json.loads(capsys.readouterr().out)
    failed = next(r for r in report["results"] if r["outcome"] == "fail")
    assert (failed["summary"], failed["fix"]) == ("The token has expired.", "Log in again.")


@pytest.mark.exhaustive
def test_brackets_in_a_path_are_not_interpreted_as_markup(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "[" / "a] b"))

    assert run_command(["poc", "tests.support.echo:Echo", "--minimum"]) == 0
    assert "[/a] b/gates" in capfd.readouterr().err.replace("\n", "")


@pytest.mark.exhaustive
def test_output_does_not_reach_the_log_if_the_streams_are_closed(tmp_path):
    command = f"{sys.executable} -m sluice poc {MODULE.replace('awkward', 'stuck')}:PrintsToStdout"

    subprocess.run(
        f"exec {command} --minimum >&- 2>&-", shell=True, cwd=ROOT, timeout=120, check=False
    )

    (log,) = (tmp_path / "home" / "gates").iterdir()
    assert "loading from" not in log.read_text()
    assert run_command(["poc", "--log", str(log)]) == 0


@pytest.mark.exhaustive
def test_failed_gate_raises_gate_blocked_and_not_the_users_error():
    with pytest.raises(GateBlocked) as blocked:
        check(awkward.RaisesUserDefinedError, level="minimum")

    assert not isinstance(blocked.value, ContractError)
