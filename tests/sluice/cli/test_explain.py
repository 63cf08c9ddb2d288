"""``sluice explain`` prints an entry of the fault catalogue without any file of the repository."""

import json

from sluice.cli.app import run_command
from sluice.findings.catalogue import CATALOGUE


def test_the_command_of_a_finding_explains_its_fault(capsys):
    fault = CATALOGUE["dead units"]
    arguments = fault.explain_command.removeprefix("sluice ").split()

    assert run_command([*arguments, "--json"]) == 0
    explained = json.loads(capsys.readouterr().out)
    assert (explained["name"], explained["fix"]) == (fault.name, fault.fix)
    assert explained["rules"]

    assert run_command(["explain", fault.name]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"cause: {fault.cause}" in printed
    assert all(rule in printed for rule in explained["rules"])


def test_all_faults_are_listed_and_an_unknown_one_is_suggested(capsys):
    assert run_command(["explain", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == list(CATALOGUE)

    assert run_command(["explain", "dead-unit"]) == 2
    assert "Did you mean 'dead-units'?" in " ".join(capsys.readouterr().err.split())
