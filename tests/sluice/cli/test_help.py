"""``--help`` prints its texts unchanged."""

import pytest

from sluice.cli.app import run_command


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("gate", "Forecast horizon of the target [rows]; 0 when rows are independent."),
        (
            "gate",
            "Mean gain that a candidate must significantly exceed to be promoted [loss units].",
        ),
        (
            "drift",
            "Minimum size of a window [rows]. The verdict on a smaller window is INCONCLUSIVE.",
        ),
        ("serve", "With --ray: number of server processes. [default: 2]"),
    ],
)
def test_words_in_brackets_are_printed(command, expected, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")

    assert run_command([command, "--help"]) == 0
    assert expected in " ".join(capsys.readouterr().out.split())


def test_help_text_wraps_only_at_the_terminal_width(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")

    assert run_command(["serve", "--help"]) == 0
    assert "The log is written to stderr as JSON lines; with --ray" in capsys.readouterr().out
