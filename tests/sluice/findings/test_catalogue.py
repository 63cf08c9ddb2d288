"""The catalogue contains each fault of every detector once, with cause and fix (RESP-1)."""

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import get_args

import pytest

from sluice.findings.catalogue import CATALOGUE, FaultName
from sluice.rehearsal.faults import FAULT_NAMES, InjectedFault
from sluice.trace.fault_consequences import CONSEQUENCES
from sluice.trace.rules.library import RANK_RULES, RULES

SLUICE = Path(__file__).parents[3] / "sluice"
SOURCES = {
    "POC gate": ("failfast", "findings", "eventlog"),
    "training diagnosis": ("training",),
}
"""Packages in which the detectors name their faults."""

POSITIONS = {"Finding.of": 0, "_slow_outcome": 1}
"""Functions that receive a fault as positional argument."""


def string_values(node: ast.AST) -> Iterator[str]:
    """Yield the strings that an expression can have as its value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from string_values(node.body)
        yield from string_values(node.orelse)


def reported_faults(folder: str) -> Iterator[str]:
    """Yield the faults that modules of a package pass to a finding or assign to ``fault``."""
    for path in (SLUICE / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "fault":
                yield from string_values(node.value)
            elif isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(t, ast.Name) and t.id == "fault" for t in targets):
                    yield from string_values(node.value)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in POSITIONS:
                yield from string_values(node.args[POSITIONS[ast.unparse(node.func)]])


REPORTED = {
    **{
        detector: {fault for folder in folders for fault in reported_faults(folder)}
        for detector, folders in SOURCES.items()
    },
    "tracer": {rule.fault for rule in (*RULES, *RANK_RULES)},
    "rollout": set(FAULT_NAMES.values()),
}


@pytest.mark.parametrize("detector", REPORTED)
def test_each_detector_reports_exactly_its_faults_of_the_catalogue(detector):
    declared = {fault.name for fault in CATALOGUE.values() if detector in fault.detectors}

    assert REPORTED[detector] == declared


def test_every_fault_is_reported_by_a_detector():
    assert all(fault.detectors for fault in CATALOGUE.values())
    assert {d for fault in CATALOGUE.values() for d in fault.detectors} == set(REPORTED)


def test_names_and_ids_are_unique_and_complete():
    assert list(CATALOGUE) == [fault.name for fault in CATALOGUE.values()]
    assert set(CATALOGUE) == set(get_args(FaultName))
    assert max(Counter(fault.id for fault in CATALOGUE.values()).values()) == 1
    assert len(get_args(FaultName)) == len(CATALOGUE)


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_fault_has_a_description_a_cause_and_a_fix(name):
    fault = CATALOGUE[name]

    assert all(text.endswith(".") for text in (fault.description, fault.cause, fault.fix))
    assert fault.explain_command == f"sluice explain {fault.id}"


def test_every_injected_fault_has_a_name():
    assert set(FAULT_NAMES) == set(get_args(InjectedFault)) - {"none"}


def test_the_graph_of_causes_has_known_faults_and_no_cycle():
    effects = {effect for effects in CONSEQUENCES.values() for effect in effects}

    assert set(CONSEQUENCES) | effects <= REPORTED["tracer"]
    assert len(list(TopologicalSorter(CONSEQUENCES).static_order())) >= len(CONSEQUENCES)
