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
def test_a_healthy_script_goes_on_to_train(tmp_path):
    done = run_script(tmp_path, "pass")

    assert done.returncode == 0, done.stderr
    assert done.stdout == "training for hours\n"
    assert "The full gate passed" in done.stderr


def test_a_broken_script_ends_before_the_training_with_the_reason(tmp_path):
    done = run_script(
        tmp_path,
        "def build_model(self, num_features, num_outputs, settings): return DigitsNet(9)",
    )

    assert done.returncode == 1
    assert done.stdout == ""
    assert "must have the shape (32, 10)" in done.stderr
    assert "got (32, 9)" in done.stderr


@pytest.mark.parametrize(
    ("defect", "caught_by", "seen"),
    [
        ("LabelAmongFeatures", "features_are_valid", "digit"),
        *(
            pytest.param(*more, marks=pytest.mark.exhaustive)
            for more in (
                ("FrozenBody", "gradients_reach_all_parameters", "body.0.weight"),
                ("ShuffledLabels", "targets_depend_on_features", "features"),
                ("OutOfRange", "gradients_reach_all_parameters", "digits_cnn.py"),
            )
        ),
    ],
)
def test_defects_planted_into_a_strangers_file_are_caught(defect, caught_by, seen):
    with pytest.raises(GateBlocked) as blocked:
        check(getattr(digits_cnn, defect))

    assert caught_by in blocked.value.what
    assert seen in blocked.value.what
    assert blocked.value.fix


def test_sluice_poc_on_a_strangers_file_needs_no_yaml(capsys, home):
    assert run_command(["poc", "tests.support.digits_cnn:Digits", "--json"]) == 0

    report = json.loads(capsys.readouterr().out)
    assert {result["outcome"] for result in report["results"]} <= {"pass", "warn"}
    assert report["level"] == "full"
    assert len(list((home / "gates").iterdir())) == 1


def test_a_class_inside_a_function_is_rejected_with_what_to_do():
    class Inside(digits_cnn.Digits):
        pass

    with pytest.raises(SettingsError, match="top level"):
        check(Inside)


def test_the_gate_is_the_first_thing_a_reader_finds():
    from sluice import failfast

    assert failfast.check is check
    assert all(getattr(failfast, name) for name in failfast.__all__)
    assert issubclass(digits_cnn.Digits, Workload)
    with pytest.raises(AttributeError, match="no_such"):
        _ = failfast.no_such
