"""``sluice init`` prints the files that it wrote, and reports user errors."""

import json

import pytest

from sluice.base.errors import EXIT_USER_ERROR
from sluice.cli.app import run_command
from tests.sluice.scaffold.tables import write_csv


@pytest.fixture
def target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_csv("numbers", tmp_path / "data.csv")


def test_files_guesses_and_next_command_are_printed(target, capsys):
    assert run_command(["init", "data.csv", "--target", target, "--name", "flats"]) == 0

    assert capsys.readouterr().out == (
        "Wrote flats.yaml, flats.py, test_flats.py.\n"
        "Regression of 'Price' (500 distinct numbers from 33.234 to 491.724), 500 rows "
        "without a time order, 2 inputs. Comments in the files state the reason of each guess.\n"
        "  left out: Id (identifier: a different integer in every row)\n"
        "  left out: country (constant, always 'DE')\n"
        "Next: sluice run flats.yaml\n"
    )


def test_json_has_the_files_and_the_guesses(target, tmp_path, capsys):
    assert run_command(["init", "data.csv", "--target", target, "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["files"][0] == str(tmp_path / "my_model.yaml")
    assert found["inputs"] == ["area", "age"]
    assert found["task"] == "regression"
    assert found["left_out"]["country"] == "constant, always 'DE'"


@pytest.mark.usefixtures("target")
def test_unknown_target_is_a_user_error(tmp_path, capsys):
    assert run_command(["init", "data.csv", "--target", "prize"]) == EXIT_USER_ERROR

    assert "has no column 'prize'. Did you mean 'Price'?" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]
