"""POC-12 as a library: one call in a user's training script, and `sluice poc` on the file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.base.errors import GateBlocked, SettingsError
from sluice.cli.app import run_command
from sluice.failfast import check
from sluice.workloads.workload import Workload
from tests.support import digits_cnn

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[4]

SCRIPT = """
import sys
from tests.support.digits_cnn import Digits, DigitsNet
from sluice import failfast

class Mine(Digits):
    {body}

failfast.check(Mine)
print("training for hours")
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def run_script(tmp_path, body):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(body=body))
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.exhaustive
def test_a_healthy_script_continues_with_its_training(tmp_path):
    completed = run_script(tmp_path, "pass")

    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == "training for hours\n"
    assert "The full gate passed" in completed.stderr


def test_a_faulty_script_ends_before_its_training_with_the_reason(tmp_path):
    completed = run_script(
        tmp_path,
        "def build_model(self, num_features, num_outputs, settings): return DigitsNet(9)",
    )

    assert completed.returncode == 1
    assert completed.stdout == ""
    assert "must have the shape (32, 10)" in completed.stderr
    assert "got (32, 9)" in completed.stderr


@pytest.mark.parametrize(
    ("defect", "check_name", "expected_text"),
    [
        ("LabelAmongFeatures", "features_are_valid", "digit"),
        *(
            pytest.param(*more, marks=pytest.mark.exhaustive)
            for more in (
                ("FrozenBody", "gradients_reach_all_parameters", "body.0.weight"),
                ("ShuffledLabels", "targets_depend_on_features", "features"),
                ("LabelOutOfRange", "gradients_reach_all_parameters", "digits_cnn.py"),
            )
        ),
    ],
)
def test_planted_defects_in_a_users_module_are_found(defect, check_name, expected_text):
    with pytest.raises(GateBlocked) as blocked:
        check(getattr(digits_cnn, defect))

    assert check_name in blocked.value.what
    assert expected_text in blocked.value.what
    assert blocked.value.fix


def test_sluice_poc_checks_a_class_without_a_pipeline_file(capsys, home):
    assert run_command(["poc", "tests.support.digits_cnn:Digits", "--json"]) == 0

    report = json.loads(capsys.readouterr().out)
    assert {result["outcome"] for result in report["results"]} <= {"pass", "warn"}
    assert report["level"] == "full"
    assert len(list((home / "gates").iterdir())) == 1


def test_a_class_inside_a_function_is_rejected_with_the_fix():
    class Inside(digits_cnn.Digits):
        pass

    with pytest.raises(SettingsError, match="top level"):
        check(Inside)


def test_failfast_package_exports_check_and_its_public_names():
    from sluice import failfast

    assert failfast.check is check
    assert all(getattr(failfast, name) for name in failfast.__all__)
    assert issubclass(digits_cnn.Digits, Workload)
    with pytest.raises(AttributeError, match="no_such"):
        _ = failfast.no_such
