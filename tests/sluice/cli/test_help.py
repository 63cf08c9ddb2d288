"""What ``--help`` says reaches the reader as it was written."""

import pytest

from sluice.cli.app import run_command


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("gate", "How many rows ahead a target looks [rows]; 0 when rows are independent."),
        ("gate", "Smallest mean gain worth a promotion [loss units]."),
        ("drift", "Smaller windows decide nothing [rows]."),
        ("serve", "With --ray: processes. [default: 2]"),
    ],
)
def test_words_in_brackets_are_kept(command, told, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")

    assert run_command([command, "--help"]) == 0
    assert told in " ".join(capsys.readouterr().out.split())


def test_a_sentence_breaks_where_the_terminal_ends_and_nowhere_else(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")

    assert run_command(["serve", "--help"]) == 0
    assert "the log goes to stderr, one JSON object a line (with --ray" in capsys.readouterr().out
