"""Pages of the fault catalogue: one per topic, and an index."""

from collections.abc import Mapping

from sluice.bench.documentation import markdown
from sluice.bench.documentation.rule_pages import rules_by_fault
from sluice.findings.catalogue import CATALOGUE
from sluice.findings.fault import Fault
from sluice.rehearsal.faults import FAULT_NAMES


def fault_pages() -> dict[str, str]:
    """Return the text of every page about faults, by its path in the documentation."""
    faults_by_topic: dict[str, list[Fault]] = {}
    for fault in CATALOGUE.values():
        faults_by_topic.setdefault(fault.topic, []).append(fault)
    rules_of_fault = rules_by_fault()
    pages = {
        f"faults/{topic}.md": markdown.page(
            f"# Faults: {topic}", *(_section(fault, rules_of_fault) for fault in faults)
        )
        for topic, faults in faults_by_topic.items()
    }
    return {"faults/README.md": _index(faults_by_topic), **pages}


def _index(faults_by_topic: Mapping[str, list[Fault]]) -> str:
    paragraphs = [
        "# Fault catalogue",
        f"{len(CATALOGUE)} problems that the POC gate, the tracer, the training diagnosis or a "
        "rollout can report. One problem has one name, whichever detector finds it.",
    ]
    for topic, faults in faults_by_topic.items():
        rows = [
            (f"[{f.name}]({topic}.md#{f.id})", f.severity, ", ".join(f.detectors)) for f in faults
        ]
        paragraphs += [
            f"## {markdown.title(topic)}",
            markdown.table(("fault", "severity", "found by"), rows),
        ]
    return markdown.page(*paragraphs)


def _section(fault: Fault, rules_of_fault: Mapping[str, list[tuple[str, str, str]]]) -> str:
    rehearsal_options = [option for option, name in FAULT_NAMES.items() if name == fault.name]
    paragraphs = [
        f'<a id="{fault.id}"></a>\n\n## {markdown.title(fault.name)}',
        fault.description,
        f"**Cause.** {fault.cause}",
        f"**Fix.** {fault.fix}",
        f"**Found by** {', '.join(fault.detectors)}; usually as `{fault.severity}`.",
    ]
    fault_rules = rules_of_fault.get(fault.name, [])
    if fault_rules:
        links = ", ".join(
            f"[{name}](../rules/{topic}/{module}.md)" for topic, module, name in fault_rules
        )
        paragraphs.append(
            f"**{'Rules' if len(fault_rules) > 1 else 'Rule'} of the tracer:** {links}."
        )
    if rehearsal_options:
        command = f"`sluice rollout rehearse --fault {rehearsal_options[0]}`"
        paragraphs.append(f"{command} rehearses a rollout with this fault.")
    return "\n\n".join(paragraphs)
