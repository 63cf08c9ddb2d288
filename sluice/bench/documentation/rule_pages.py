"""Pages about the tracer's rules: one per rule, and an index."""

import ast
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.bench.documentation import markdown
from sluice.bench.documentation.error_rates import ErrorRates, describe_rates
from sluice.findings.catalogue import find_fault
from sluice.trace.finding import RankRule, Rule
from sluice.trace.rules.library import RANK_RULES, RULES

AnyRule = Rule[Any] | RankRule[Any]

_ALL_RULES: tuple[AnyRule, ...] = (*RULES, *RANK_RULES)

MAX_EXAMPLE_LINES = 25
"""Maximum length of an example program [lines], which a test enforces."""


def topic_and_name(rule: AnyRule) -> tuple[str, str]:
    """Return the topic of a rule and the name of its module."""
    *_, topic, name = rule.judge.__module__.split(".")
    return topic, name


def rule_pages(docs: Path, rates: ErrorRates) -> dict[str, str]:
    """Return the text of every page about rules, by its path in the documentation.

    Args:
        docs: Folder of the documentation, which contains the example programs.
        rates: Measured error rates.
    """
    pages = {"rules/README.md": _index_page()}
    for rule in _ALL_RULES:
        topic, name = topic_and_name(rule)
        example = docs / "rules" / topic / f"{name}.py"
        pages[f"rules/{topic}/{name}.md"] = _rule_page(
            rule, example.read_text() if example.exists() else None, rates
        )
    return pages


def _index_page() -> str:
    rules_by_topic: dict[str, list[tuple[str, AnyRule]]] = {}
    for rule in _ALL_RULES:
        topic, name = topic_and_name(rule)
        rules_by_topic.setdefault(topic, []).append((name, rule))
    paragraphs = [
        "# Rules of the tracer",
        f"{len(_ALL_RULES)} rules inspect the trace of a training. A rule is named by "
        "a sentence that is true when there is no problem. When one fault causes others, the "
        "report names the root cause and lists the consequences below it. Faults are described "
        "in the [fault catalogue](../faults/README.md).",
        "Severities: `error` is certainly wrong, `confirm` is wrong unless intended, `warning` is "
        "worth checking. The tables show the usual severity.",
    ]
    for topic in sorted(rules_by_topic):
        rows = [
            (
                f"[{rule.name}]({topic}/{name}.md)",
                f"[{rule.fault}](../{_fault_link(rule)})",
                find_fault(rule.fault).severity,
            )
            for name, rule in sorted(rules_by_topic[topic], key=lambda pair: pair[0])
        ]
        paragraphs += [
            f"## {markdown.title(topic)}",
            markdown.table(("rule", "fault", "severity"), rows),
        ]
    return markdown.page(*paragraphs)


def _fault_link(rule: AnyRule) -> str:
    fault = find_fault(rule.fault)
    return f"faults/{fault.topic}.md#{fault.id}"


def _rule_page(rule: AnyRule, example: str | None, rates: ErrorRates) -> str:
    fault = find_fault(rule.fault)
    topic, name = topic_and_name(rule)
    description = inspect.getdoc(sys.modules[rule.judge.__module__]) or ""
    thresholds = markdown.settings_rows(rule.settings)
    return markdown.page(
        f"# {markdown.title(rule.name)}",
        f"Rule `{topic}/{name}`; reports [{rule.fault}](../../{_fault_link(rule)}), usually as "
        f"`{fault.severity}`.",
        "## What it detects",
        description,
        "## Why it is harmful",
        fault.description,
        "## Example",
        *_example_paragraphs(rule, example),
        "## Cause and fix",
        f"{fault.cause}\n\n{fault.fix}",
        "## Evidence that it needs",
        markdown.sentence(rule.requires),
        "## When it reports nothing",
        markdown.sentence(rule.abstains),
        "## When it is a false alarm",
        markdown.sentence(rule.contradicted_by),
        "## Thresholds",
        markdown.table(("setting", "default", "range", "meaning"), thresholds)
        if thresholds
        else "The rule has no thresholds.",
        "## Error rate",
        describe_rates(rates, rule.fault),
    )


def _example_paragraphs(rule: AnyRule, program: str | None) -> tuple[str, ...]:
    """Return paragraphs: what the example does, its source, and how to trace it."""
    if program is None:
        return ("The fault shows only in a long training, so there is no short example.",)
    topic, name = topic_and_name(rule)
    is_distributed = topic == "distributed"
    launcher = "torchrun --nproc-per-node 2" if is_distributed else "python"
    return (
        markdown.sentence(ast.get_docstring(ast.parse(program)) or ""),
        f"```python\n{markdown.without_docstring(program).strip()}\n```",
        f"```bash\nsluice trace -- {launcher} docs/rules/{topic}/{name}.py\n```",
    )


def rules_by_fault() -> Mapping[str, list[tuple[str, str, str]]]:
    """Return (topic, module name, rule name) of every rule, by the fault that it reports."""
    rules: dict[str, list[tuple[str, str, str]]] = {}
    for rule in _ALL_RULES:
        rules.setdefault(rule.fault, []).append((*topic_and_name(rule), rule.name))
    return rules
