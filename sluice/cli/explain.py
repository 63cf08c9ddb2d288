"""``sluice explain``: a fault of the catalogue, with its cause and fix."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from sluice.base.errors import SettingsError
from sluice.base.settings import suggest_nearest
from sluice.cli.output import results

if TYPE_CHECKING:
    from sluice.findings.fault import Fault


def register(app: typer.Typer) -> None:
    """Add ``sluice explain``."""

    @app.command()
    def explain(
        fault: Annotated[
            str, typer.Argument(help="Name or identifier of a fault; without one, lists all.")
        ] = "",
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Explain a fault that the POC gate, the tracer, a diagnosis or a rollout reported.

        Example: sluice explain dead-units
        """
        from sluice.findings.catalogue import CATALOGUE

        if not fault:
            _print_list(list(CATALOGUE.values()), as_json=as_json)
            return
        entry = _find(fault, list(CATALOGUE.values()))
        rules = _rules_of(entry)
        if as_json:
            print(json.dumps({**_fields(entry), "rules": rules}, indent=2))
            return
        text = Text()
        text.append(f"{entry.name}\n", style="bold")
        text.append(f"{entry.description}\n\n")
        parts = {
            "cause": entry.cause,
            "fix": entry.fix,
            "found by": f"{', '.join(entry.detectors)}; usually as {entry.severity}",
            "rules of the tracer": "; ".join(rules),
        }
        for label, content in parts.items():
            if content:
                text.append(f"{label}: ", style="bold")
                text.append(f"{content}\n")
        results().print(text, end="")


def _find(wanted: str, faults: "list[Fault]") -> "Fault":
    for fault in faults:
        if wanted in (fault.id, fault.name):
            return fault
    hint = suggest_nearest(wanted, [fault.id for fault in faults])
    raise SettingsError(
        f"{wanted!r} is not a fault of the catalogue.{hint}",
        fix="List all faults with: sluice explain",
    )


def _rules_of(fault: "Fault") -> list[str]:
    from sluice.trace.rules.library import RULES

    return [rule.name for rule in RULES if rule.fault == fault.name]


def _fields(fault: "Fault") -> dict[str, Any]:
    names = ("id", "name", "topic", "severity", "description", "cause", "fix", "detectors")
    return {name: getattr(fault, name) for name in names}


def _print_list(faults: "list[Fault]", *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([_fields(fault) for fault in faults], indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("fault", no_wrap=True)
    table.add_column("topic")
    table.add_column("found by")
    for fault in faults:
        table.add_row(fault.id, fault.topic, ", ".join(fault.detectors))
    results().print(table)
