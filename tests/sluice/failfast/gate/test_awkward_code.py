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
QUICK = PocSettings(mini_rows=128, mini_epochs=3)
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
        target = WorkloadTarget(path=f"{MODULE}:{name}", poc=QUICK)
        request = GateRequest(target=target, level=level, seed=0)
        return supervise(request, folder=tmp_path / "gates")

    return run


def by(run, name):
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
def test_each_check_in_a_script_judges_its_own_workload(tmp_path):
    (tmp_path / "two.py").write_text(
        f"{IMPORTS}class Good(OwnNet): pass\nclass Bad(BrokenModel): pass\n"
        "failfast.check(Good, level='minimum')\nprint('good passed')\n"
        "failfast.check(Bad, level='minimum')\nprint('bad passed')\n"
    )

    done = run_python(tmp_path, "two.py")

    assert done.returncode == 1
    assert done.stdout == "good passed\n"
    assert "no_such_thing" in done.stderr


@pytest.mark.exhaustive
def test_a_training_script_can_be_gated_from_outside_too(tmp_path):
    """README's two uses together: the module's own check() starts no second gate."""
    (tmp_path / "train.py").write_text(
        f"{IMPORTS}class Mine(OwnNet): pass\nfailfast.check(Mine)\nprint('training for hours')\n"
    )

    done = run_python(tmp_path, "-m", "sluice", "poc", "train:Mine", "--minimum", "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["passed"]
    assert "training for hours" not in done.stderr


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

    done = run_python(tmp_path, "train.py", "--rows", "700")

    assert done.returncode == 0, done.stderr
    assert done.stdout == "training for hours\n"
    assert "gate passed" in done.stderr
    assert "swallowed" not in done.stderr


@pytest.mark.exhaustive
def test_a_module_of_a_package_may_import_relatively(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("")
    (tmp_path / "mine" / "parts.py").write_text("ROWS = 700\n")
    (tmp_path / "mine" / "train.py").write_text(
        f"from .parts import ROWS\n{IMPORTS}class Mine(OwnNet): pass\n"
        "failfast.check(Mine, level='minimum')\nprint('training for hours')\n"
    )

    done = run_python(tmp_path, "-m", "mine.train")

    assert done.returncode == 0, done.stderr
    assert done.stdout == "training for hours\n"


@pytest.mark.exhaustive
def test_a_script_that_cannot_be_read_again_reports_where(tmp_path):
    (tmp_path / "train.py").write_text(
        f"{IMPORTS}from pathlib import Path\n"
        "mark = Path('seen')\n"
        "if mark.exists(): raise OSError('the device is taken')\n"
        "mark.touch()\n"
        "class Mine(OwnNet): pass\n"
        "failfast.check(Mine)\n"
    )

    done = run_python(tmp_path, "train.py")

    assert done.returncode == 1
    assert "the device is taken" in done.stderr
    assert "train.py:5 in <module>" in done.stderr


@pytest.mark.parametrize(
    "name", [pytest.param("Rich", marks=pytest.mark.exhaustive), "Outer.Inner"]
)
def test_all_setting_types_reach_the_gate_process(gate, name):
    assert gate(name).report.passed


def test_an_instance_with_settings_of_every_kind_passes():
    settings = awkward.RichSettings(num_rows=600, pair=(3,))

    assert check(awkward.Rich(settings), level="minimum", settings=QUICK).passed


def test_an_instance_that_settings_cannot_make_is_rejected():
    with pytest.raises(SettingsError, match="differ: rows"):
        check(awkward.OwnConstructor(rows=50))


@pytest.mark.parametrize(
    ("name", "check_name", "seen"),
    [
        ("CallsExit", "data_loads", ["SystemExit: no credentials", "CallsExit.load_rows"]),
        pytest.param("RaisesSilently", "data_loads", ["SilentError"], marks=pytest.mark.exhaustive),
        pytest.param(
            "RaisesAtLength",
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
def test_the_check_fails_and_says_what_can_be_said(gate, name, check_name, seen):
    failed = by(gate(name), check_name)

    assert failed.outcome == "fail"
    for words in seen:
        assert words in failed.summary
    assert len(failed.summary) < 1000
    assert failed.seconds < failed.max_s  # told at once, not ended by its limit


@pytest.mark.exhaustive
def test_data_that_load_only_once_cost_no_result_that_is_known(gate, tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_TEST_MARK", str(tmp_path / "mark"))

    run = gate("FailsWhenLoadedAgain", level="full")

    assert by(run, "data_loads").outcome == "pass"
    assert "status 4" in by(run, "model_runs_on_real_batch").summary
    assert by(run, "event_log_is_writable").outcome == "pass"


def test_an_error_class_of_the_users_arrives_as_ours(capsys):
    """The caller imports nothing of the user's, and --json stays JSON."""
    assert run_command(["poc", f"{MODULE}:RaisesOwnError", "--json"]) == 1

    report = json.loads(capsys.readouterr().out)
    failed = next(r for r in report["results"] if r["outcome"] == "fail")
    assert (failed["summary"], failed["fix"]) == ("The token has expired.", "Log in again.")


@pytest.mark.exhaustive
def test_brackets_in_a_path_are_not_interpreted_as_markup(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "[" / "a] b"))

    assert run_command(["poc", "tests.support.echo:Echo", "--minimum"]) == 0
    assert "[/a] b/gates" in capfd.readouterr().err.replace("\n", "")


@pytest.mark.exhaustive
def test_closed_streams_do_not_end_up_in_the_log(tmp_path):
    command = f"{sys.executable} -m sluice poc {MODULE.replace('awkward', 'stuck')}:PrintsToStdout"

    subprocess.run(
        f"exec {command} --minimum >&- 2>&-", shell=True, cwd=ROOT, timeout=120, check=False
    )

    (log,) = (tmp_path / "home" / "gates").iterdir()
    assert "loading from" not in log.read_text()
    assert run_command(["poc", "--log", str(log)]) == 0


@pytest.mark.exhaustive
def test_blocked_is_the_only_way_out_of_a_failed_gate():
    with pytest.raises(GateBlocked) as blocked:
        check(awkward.RaisesOwnError, level="minimum")

    assert not isinstance(blocked.value, ContractError)
