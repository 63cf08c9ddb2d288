"""Discovers the rules and applies them to the traces of a run.

A rule is a module in a topic package below ``sluice.trace.rules``. Its public constant has the name
of the module in upper case: ``data/constant_column.py`` defines ``CONSTANT_COLUMN``. Code that
several rules share is in ``sluice.trace.rules._helpers``. Rules run in ascending order of their
``priority``, which is unique among the rules for one process, and among the rules that compare
ranks. To add a rule, add its module.
"""

import pkgutil
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from sluice.trace import rules
from sluice.trace.finding import RankRule, Rule, RuleBase, TraceFinding
from sluice.trace.records.trace import Trace


def _discover() -> Iterator[RuleBase[Any]]:
    """Yield the rule of every module in a topic package."""
    for topic in pkgutil.iter_modules(rules.__path__, rules.__name__ + "."):
        if not topic.ispkg or topic.name.rpartition(".")[2].startswith("_"):
            continue
        package = import_module(topic.name)
        for module in pkgutil.iter_modules(package.__path__, topic.name + "."):
            name = module.name.rpartition(".")[2].upper()
            yield getattr(import_module(module.name), name)


_ALL_RULES = sorted(_discover(), key=lambda rule: rule.priority)

RULES: tuple[Rule[Any], ...] = tuple(rule for rule in _ALL_RULES if isinstance(rule, Rule))
"""Rules that inspect one process, in the order in which they run."""

RANK_RULES: tuple[RankRule[Any], ...] = tuple(
    rule for rule in _ALL_RULES if isinstance(rule, RankRule)
)
"""Rules that compare the ranks of a distributed run, in the order in which they run."""


def judge(trace: Trace) -> tuple[TraceFinding, ...]:
    """Return the findings of every rule for one process.

    An exception of a rule is raised; ``judge_with_failures`` continues with the other rules.
    """
    return tuple(finding for rule in RULES for finding in rule(trace))


def judge_with_failures(trace: Trace) -> tuple[tuple[TraceFinding, ...], tuple[str, ...]]:
    """Return the findings of all rules, and a message for each rule that raised an exception."""
    findings: list[TraceFinding] = []
    failures = []
    for rule in RULES:
        try:
            findings += rule(trace)
        except Exception as error:  # a failing rule must not discard the findings of the others
            failures.append(f"Not checked: whether {rule.name} ({type(error).__name__}: {error}).")
    return tuple(findings), tuple(failures)


def judge_ranks(traces: Sequence[Trace]) -> tuple[TraceFinding, ...]:
    """Return the findings between the ranks of a distributed run; () for a single process."""
    if len(traces) < 2:
        return ()
    return tuple(finding for rule in RANK_RULES for finding in rule(traces))
