"""``sluice explain`` prints an entry of the fault catalogue without any file of the repository."""

import json
import re
from pathlib import Path

from sluice.cli.app import run_command
from sluice.failfast.gate.checks import CHECKS
from sluice.failfast.gate.timing import WHOLE_GATE_CHECK
from sluice.findings.catalogue import CATALOGUE

DOCS = Path(__file__).parents[3] / "docs"
CHECK_NAMES = [*(check.name for check in CHECKS), WHOLE_GATE_CHECK]


def test_explain_command_of_a_finding_explains_its_fault(capsys):
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


def test_all_faults_are_listed_and_a_misspelled_one_is_suggested(capsys):
    assert run_command(["explain", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == list(CATALOGUE)

    assert run_command(["explain", "dead-unit"]) == 2
    assert "Did you mean 'dead-units'?" in " ".join(capsys.readouterr().err.split())


def test_gate_check_is_explained_by_name_and_identifier(capsys):
    for name in CHECK_NAMES:
        assert run_command(["explain", name, "--json"]) == 0
        check = json.loads(capsys.readouterr().out)
        path, _, anchor = check["page"].partition("#")
        assert f"## `{anchor}`" in (DOCS.parent / path).read_text()

    assert run_command(["explain", "data_loading"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("data_loads The rows load")
    assert "page of the documentation: docs/checks/README.md#data_loads" in printed
    assert run_command(["explain", "data_load"]) == 2
    assert "Did you mean 'data_loads'?" in " ".join(capsys.readouterr().err.split())


def test_gate_guide_lists_the_checks_by_their_printed_names():
    guide = (DOCS / "how-to" / "check-before-training.md").read_text()
    table = guide.partition("## What is checked")[2].partition("## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]

    assert sorted(re.findall(r"`(\w+)`", " ".join(cells))) == sorted(CHECK_NAMES)


def test_only_explain_contains_paths_of_documentation_pages():
    package = DOCS.parent / "sluice"
    path = re.compile(r"""["'(]docs/[\w-]+/[\w./-]*\.md""")
    files_with_paths = {
        str(file.relative_to(package))
        for file in package.glob("**/*.py")
        if "bench" not in file.parts and path.search(file.read_text())
    }

    assert files_with_paths == {"cli/explain.py"}  # an installed package contains no documentation
