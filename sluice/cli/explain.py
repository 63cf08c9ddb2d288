"""``sluice explain``: explains a fault with its cause and fix, or a check of the POC gate."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from sluice.base.errors import SettingsError
from sluice.base.settings import suggest_nearest
from sluice.cli.output import results_console

if TYPE_CHECKING:
    from sluice.findings.fault import Fault


def register(app: typer.Typer) -> None:
    """Add ``sluice explain``."""

    @app.command()
    def explain(
        fault: Annotated[
            str,
            typer.Argument(help="Name of a fault or check. Without a name, all faults are listed."),
        ] = "",
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Explain a fault that the POC gate, the tracer, a diagnosis or a rollout reported.

        The name of a check of the POC gate is explained as well.

        Example: sluice explain dead-units
        """
        from sluice.findings.catalogue import CATALOGUE

        if not fault:
            _print_list(list(CATALOGUE.values()), as_json=as_json)
            return
        entry = _find_fault(fault, list(CATALOGUE.values()))
        if entry is None:
            _print_check(fault, list(CATALOGUE.values()), as_json=as_json)
            return
        rules = _rule_names(entry)
        if as_json:
            print(json.dumps({**_json_fields(entry), "rules": rules}, indent=2))
            return
        text = Text()
        text.append(f"{entry.name}\n", style="bold")
        text.append(f"{entry.description}\n\n")
        sections = {
            "cause": entry.cause,
            "fix": entry.fix,
            "found by": f"{', '.join(entry.detectors)}; usually as {entry.severity}",
            "rules of the tracer": "; ".join(rules),
        }
        for label, content in sections.items():
            if content:
                text.append(f"{label}: ", style="bold")
                text.append(f"{content}\n")
        results_console().print(text, end="")


def _find_fault(name_or_id: str, faults: "list[Fault]") -> "Fault | None":
    return next((fault for fault in faults if name_or_id in (fault.id, fault.name)), None)


def _print_check(name_or_id: str, faults: "list[Fault]", *, as_json: bool) -> None:
    """Print the check with this name or identifier.

    Raises:
        SettingsError: Neither a fault nor a check has this name.
    """
    checks = _list_checks()
    check = next((c for c in checks if name_or_id in (c["name"], c["id"])), None)
    if check is None:
        hint = suggest_nearest(
            name_or_id, [*(fault.id for fault in faults), *(c["name"] for c in checks)]
        )
        raise SettingsError(
            f"{name_or_id!r} is neither a fault of the catalogue nor a check of the POC gate."
            f"{hint}",
            fix="List all faults with: sluice explain",
        )
    if as_json:
        print(json.dumps(check, indent=2))
        return
    text = Text()
    text.append(f"{check['name']}\n", style="bold")
    text.append(f"{check['description']}\n\n")
    sections = {
        "identifier": check["id"],
        "needs": check["needs"],
        "time limits": check["time_limits"],
        "page of the documentation": check["page"],
    }
    for label, content in sections.items():
        if content:
            text.append(f"{label}: ", style="bold")
            text.append(f"{content if isinstance(content, str) else ', '.join(content)}\n")
    results_console().print(text, end="")


def _list_checks() -> "list[dict[str, Any]]":
    """Return the checks of the POC gate.

    This function imports torch, so it is called only for a name that is not a fault.
    """
    from sluice.config.poc_settings import TimeLimits
    from sluice.failfast.gate.checks import CHECKS
    from sluice.failfast.gate.timing import (
        WHOLE_GATE_CHECK,
        WHOLE_GATE_CHECK_ID,
        WHOLE_GATE_DESCRIPTION,
    )

    limits = TimeLimits()
    whole_gate = (
        WHOLE_GATE_CHECK,
        WHOLE_GATE_CHECK_ID,
        WHOLE_GATE_DESCRIPTION,
        (),
        limits.whole_gate,
    )
    checks = [(c.name, c.check_id, c.description, c.needs, c.select_limit(limits)) for c in CHECKS]
    return [
        {
            "name": name,
            "id": check_id,
            "description": description,
            "needs": list(needs),
            "time_limits": f"warns after {limit.typical_s:g} s, fails after {limit.max_s:g} s",
            "page": f"docs/checks/README.md#{name}",
        }
        for name, check_id, description, needs, limit in [*checks, whole_gate]
    ]


def _rule_names(fault: "Fault") -> list[str]:
    from sluice.trace.rules.library import RULES

    return [rule.name for rule in RULES if rule.fault == fault.name]


def _json_fields(fault: "Fault") -> dict[str, Any]:
    names = ("id", "name", "topic", "severity", "description", "cause", "fix", "detectors")
    return {name: getattr(fault, name) for name in names}


def _print_list(faults: "list[Fault]", *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([_json_fields(fault) for fault in faults], indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("fault", no_wrap=True)
    table.add_column("topic")
    table.add_column("found by")
    for fault in faults:
        table.add_row(fault.id, fault.topic, ", ".join(fault.detectors))
    results_console().print(table)
